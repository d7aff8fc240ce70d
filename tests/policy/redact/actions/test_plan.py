import pytest

from policy.errors import RedactionBlocked, RedactionError
from policy.redact.actions.plan import OUTPUT_LABELS, RedactionPlan, action_for
from policy.redact.redactor import Redactor
from tests.policy.redact.layouts import LAYOUTS

BODY = {"prompt": "PESEL 44051401359, BSN 111222333"}


def test_a_policy_may_name_one_kind_or_all_and_the_stricter_holds():
    assert action_for({"national_id": "mask"}, "national_id.pl_pesel") == "mask"
    assert action_for({"national_id.pl_pesel": "mask"}, "national_id.nl_bsn") is None
    for general, kind in (("tag", "block"), ("block", "tag")):
        assert action_for({"national_id": general, "national_id.pl_pesel": kind}, "national_id.pl_pesel") == "block"


def test_findings_and_counts_say_which_number_it_is():
    redactor = Redactor(RedactionPlan({"national_id": "pseudonymise"}, {}))
    result = redactor.redact_body(BODY, LAYOUTS["completions"], "k7f3")
    assert result.body["prompt"] == "PESEL <NATIONALID_1_k7f3>, BSN <NATIONALID_2_k7f3>"
    assert result.counts == {"national_id.pl_pesel": 1, "national_id.nl_bsn": 1}


def test_one_kind_alone_can_be_masked_or_blocked():
    one = Redactor(RedactionPlan({"national_id.pl_pesel": "mask"}, {}))
    assert one.redact_body(BODY, LAYOUTS["completions"], "k7f3").body["prompt"] == "PESEL [NATIONAL_ID], BSN 111222333"
    with pytest.raises(RedactionBlocked) as refusal:
        Redactor(RedactionPlan({"national_id.nl_bsn": "block"}, {})).redact_body(BODY, LAYOUTS["completions"], "k7f3")
    assert refusal.value.labels == ("national_id.nl_bsn",)


def test_a_kind_nobody_knows_is_refused():
    with pytest.raises(RedactionError, match=r"no detector finds national_id\.xx_id"):
        Redactor(RedactionPlan({"national_id.xx_id": "mask"}, {}))


def test_what_a_stream_cannot_hold_back_is_not_offered_for_answers():
    assert not {"address", "plate", "bic"} & set(OUTPUT_LABELS)


@pytest.mark.parametrize(("named", "found"), [("lt_ak", "ee_ik"), ("ee_ik", "lt_ak"), ("cz_rc", "sk_rc")])
def test_an_action_for_a_number_that_two_states_issue_holds_for_both(named, found):
    actions = {f"national_id.{named}": "block", "national_id": "tag"}
    assert action_for(actions, f"national_id.{found}") == "block"
    assert action_for({f"national_id.{named}": "block"}, "national_id.pl_pesel") is None
    assert action_for({"national_id": "mask", f"national_id.{found}": "tag"}, f"national_id.{named}") == "mask"
