"""`transparency.marking`: what a level asks holds below it, and servers that cannot mark are refused."""

import pytest

from policy.analysis.diff import differences
from policy.decision.decision import decide
from policy.errors import PolicyDocumentError
from tests.policy.conftest import TENANT

MARKED = TENANT.replace("{art50_notice: header}", "{art50_notice: header, marking: [watermark]}")
PROJECT = "policy: p\nversion: 1\n"


def test_only_servers_that_watermark_may_answer(build, request_facts, backend):
    able, unable = backend(backend_id="able", watermarks=True), backend(backend_id="unable")
    decision = decide(build(MARKED), request_facts(candidates=(able, unable)))
    assert (decision.backends, decision.marking) == (("able",), ("watermark",))
    (reason,) = [reason for reason in decision.reasons if reason.candidate == "unable"]
    assert (reason.rule, reason.article) == ("transparency.marking", "AI Act 50(2)")
    assert not decide(build(MARKED), request_facts(candidates=(unable,))).allowed


def test_what_no_model_writes_needs_no_mark(build, request_facts, backend):
    policy = build(MARKED)
    vectors = decide(policy, request_facts(candidates=(backend(),), generates=False))
    assert (vectors.allowed, vectors.marking) == (True, ())
    assert not decide(policy, request_facts(candidates=(backend(),))).allowed, "the two are decided apart"


def test_a_policy_that_does_not_ask_demands_nothing(build, request_facts, backend):
    decision = decide(build(TENANT), request_facts(candidates=(backend(),)))
    assert (decision.allowed, decision.marking) == (True, ())


@pytest.mark.parametrize("more", ["", "transparency: {marking: []}", "transparency: {art50_notice: header}"])
def test_a_project_cannot_take_a_mark_away(build, more):
    assert build(MARKED, PROJECT + more).marking == ("watermark",)
    assert build(TENANT, PROJECT + "transparency: {marking: [watermark]}").marking == ("watermark",)


def test_a_record_is_demanded_of_any_server_and_adds_up_with_what_is_above(build, request_facts, backend):
    recorded = TENANT.replace("{art50_notice: header}", "{art50_notice: header, marking: [record]}")
    decision = decide(build(recorded), request_facts(candidates=(backend(),)))
    assert (decision.allowed, decision.marking) == (True, ("record",))
    assert decide(build(recorded), request_facts(candidates=(backend(),), generates=False)).marking == ()
    both = build(MARKED, PROJECT + "transparency: {marking: [record]}")
    assert both.marking == ("record", "watermark")
    assert not decide(both, request_facts(candidates=(backend(),))).allowed, "the watermark is still demanded"


def test_the_difference_of_two_versions_names_it(build):
    (found,) = differences(build(TENANT), build(MARKED))
    assert (found.rule, found.before, found.after) == ("transparency.marking", "", "watermark")


def test_a_mark_that_there_is_not_is_refused(build):
    with pytest.raises(PolicyDocumentError, match=r"transparency\.marking"):
        build(MARKED.replace("[watermark]", "[invisible_ink]"))
