"""`models.commitments`: what a level asks holds below it, and servers that cannot commit are refused by name."""

import pytest

from policy.analysis.diff import differences, effective
from policy.analysis.policy_tests import run_tests
from policy.decision.decision import decide
from policy.decision.explain import explain_json, explain_lines
from policy.errors import LooseningError, PolicyDocumentError
from tests.policy.conftest import TENANT

ASKED = TENANT + "models: {commitments: activations}\n"
PROJECT = "policy: p\nversion: 1\n"


def with_retention(text, said):
    assert "  content: none\n" in text
    return text.replace("  content: none\n", f"  content: none\n  {said}\n")


def test_only_servers_that_commit_may_answer(build, request_facts, backend):
    able = backend(backend_id="able", kind="domicile")
    others = [backend(backend_id=f"a-{kind}", kind=kind) for kind in ("openai", "managed", None)]
    decision = decide(build(ASKED), request_facts(candidates=(able, *others)))
    assert (decision.backends, decision.commits) == (("able",), True)
    refused = {reason.candidate for reason in decision.reasons if reason.rule == "models.commitments"}
    assert refused == {"a-openai", "a-managed", "a-None"}
    assert not decide(build(ASKED), request_facts(candidates=tuple(others))).allowed


def test_one_that_is_not_up_yet_is_waited_for(build, request_facts, backend):
    decision = decide(build(ASKED), request_facts(candidates=(backend(kind="domicile", pending=True),)))
    assert decision.allowed


def test_what_no_model_writes_commits_to_nothing(build, request_facts, backend):
    policy = build(ASKED)
    vectors = decide(policy, request_facts(candidates=(backend(kind="openai"),), generates=False))
    assert (vectors.allowed, vectors.commits) == (True, False)
    assert not decide(policy, request_facts(candidates=(backend(kind="openai"),))).allowed, "the two are decided apart"


def test_a_policy_that_does_not_ask_demands_nothing(build, request_facts, backend):
    for text in (TENANT, TENANT + "models: [m]\n"):
        decision = decide(build(text), request_facts(candidates=(backend(kind="openai"),)))
        assert (decision.allowed, decision.commits, decision.retention.commitment_days) == (True, False, 0)


@pytest.mark.parametrize("more", ["", "models: [m]", "models: {names: [m]}"])
def test_a_project_cannot_take_them_away(build, request_facts, backend, more):
    facts = request_facts(candidates=(backend(kind="openai"),))
    assert not decide(build(ASKED, PROJECT + more), facts).allowed
    assert not decide(build(TENANT, PROJECT + "models: {commitments: activations}"), facts).allowed


def test_how_long_they_are_kept_is_said_or_ninety_days_and_only_shortened(build):
    assert build(ASKED).retention.commitment_days == 90
    assert build(with_retention(ASKED, "commitments: 2y")).retention.commitment_days == 730
    shorter = build(with_retention(ASKED, "commitments: 30d"), PROJECT + "retention: {commitments: 7d}")
    assert shorter.retention.commitment_days == 7
    with pytest.raises(LooseningError, match="retention"):
        build(with_retention(ASKED, "commitments: 30d"), PROJECT + "retention: {commitments: 31d}")
    assert build(with_retention(TENANT, "commitments: 30d")).retention.commitment_days == 0, "none are asked for"


@pytest.mark.parametrize("said", ["none", "encrypted, 30d", "forever"])
def test_a_period_of_another_form_is_refused(build, said):
    with pytest.raises(PolicyDocumentError, match=r"retention\.commitments"):
        build(with_retention(ASKED, f'commitments: "{said}"'))


@pytest.mark.parametrize("said", ["logits", "[activations]", "", "{}"])
def test_other_commitments_are_refused(build, said):
    with pytest.raises(PolicyDocumentError, match="models"):
        build(TENANT + f"models: {{commitments: {said}}}\n")


def test_difference_and_explanation_name_them(build, request_facts, backend):
    found = {one.rule: (one.before, one.after) for one in differences(build(TENANT), build(ASKED))}
    assert found["models.commitments"] == ("", "activations")
    assert found["retention.commitments"] == ("", "encrypted, 90 d")
    assert effective(build(ASKED))["models.commitments"] == "activations"
    assert "retention.commitments" not in effective(build(TENANT))
    decision = decide(build(ASKED), request_facts(candidates=(backend(kind="domicile"),)))
    lines = explain_lines(decision)
    assert "  commits to its activations" in lines
    assert any("commitments encrypted 90 d" in line for line in lines)
    told = explain_json(decision)
    assert (told["commits"], told["retention"]["commitment_days"]) == (True, 90)


def test_a_policy_s_own_tests_can_say_it(build, countries):
    policy = build(
        ASKED.replace(
            "tests:\n",
            "tests:\n  - {name: ours may, given: {}, expect: allow}\n"
            "  - {name: others may not, given: {kind: openai}, expect: deny, rule: models.commitments}\n",
        )
    )
    outcomes = run_tests(policy, countries)
    assert len(outcomes) == 3
    assert all(outcome.passed for outcome in outcomes)
