"""`models`: names, and keys that must have signed the weights, of which a lower level may take away and add none."""

import pytest

from policy.analysis.diff import differences, effective
from policy.analysis.policy_tests import run_tests
from policy.decision.decision import decide
from policy.decision.explain import explain_json, explain_lines
from policy.errors import LooseningError, PolicyDocumentError
from tests.policy.conftest import TENANT

ONE, TWO = ("sha256:" + digit * 64 for digit in "ab")
SIGNED = TENANT + f"models: {{signed_by: ['{ONE}']}}\n"
PROJECT = "policy: p\nversion: 1\n"
WEIGHTS = "0" * 64


def signed(backend, *keys, **changes):
    return backend(**{"weights": WEIGHTS, "weights_source": "computed", "signed_by": keys, **changes})


def test_weights_signed_by_a_key_of_the_policy_may_answer(build, request_facts, backend):
    decision = decide(build(SIGNED), request_facts(signed(backend, TWO, ONE)))
    assert decision.backends == ("eu-fr-par/acme-1",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "no signature"),
        ({"signed_by": (TWO,)}, "another key signed them"),
        ({"signature_fault": "model.safetensors is not the file that was signed"}, "is not the file that was signed"),
        ({"signed_by": (ONE,), "weights_source": "declared"}, "does not compute the digest"),
        ({"signed_by": (ONE,), "weights_source": None}, "does not compute the digest"),
        ({"signed_by": (ONE[:-1] + "0",)}, "another key signed them"),
    ],
)
def test_any_other_weights_are_refused_by_name(build, request_facts, backend, changes, why):
    facts = request_facts(signed(backend, **changes), signed(backend, ONE, backend_id="good"))
    decision = decide(build(SIGNED), facts)
    assert decision.backends == ("good",)
    (reason,) = decision.reasons
    assert (reason.rule, reason.candidate) == ("models.signed_by", "eu-fr-par/acme-1")
    assert why in reason.because


def test_a_policy_that_does_not_ask_takes_unsigned_weights(build, request_facts, backend):
    assert decide(build(TENANT), request_facts(signed(backend))).allowed
    assert decide(build(TENANT + "models: [m]\n"), request_facts(signed(backend))).allowed
    assert not decide(build(TENANT + "models: [other]\n"), request_facts(signed(backend))).allowed


def test_names_and_signers_hold_together(build, request_facts, backend):
    policy = build(TENANT + f"models: {{names: [other], signed_by: ['{ONE}']}}\n")
    reasons = decide(policy, request_facts(signed(backend))).reasons
    assert [reason.rule for reason in reasons] == ["models", "models.signed_by"]


def test_a_project_may_take_signers_away_and_add_none(build, request_facts, backend):
    both = TENANT + f"models: {{signed_by: ['{ONE}', '{TWO}']}}\n"
    narrowed = build(both, PROJECT + f"models: {{signed_by: ['{TWO}']}}\n")
    assert not decide(narrowed, request_facts(signed(backend, ONE))).allowed
    silent = build(both, PROJECT + "models: [m]\n")
    assert not decide(silent, request_facts(signed(backend))).allowed, "a list of names takes no signer away"
    with pytest.raises(LooseningError, match=r"models\.signed_by"):
        build(SIGNED, PROJECT + f"models: {{signed_by: ['{ONE}', '{TWO}']}}\n")


@pytest.mark.parametrize(
    "text", ["{}", "{signed_by: []}", "{signed_by: [acme]}", f"{{signed_by: ['{ONE[:-1]}']}}", "{names: []}", "m", "5"]
)
def test_what_asks_for_nothing_or_names_no_key_is_refused(build, text):
    with pytest.raises(PolicyDocumentError, match="models"):
        build(TENANT + f"models: {text}\n")


def test_what_has_shown_nothing_yet_gets_no_call_and_is_not_refused(build, request_facts, backend):
    policy = build(SIGNED)
    decision = decide(policy, request_facts(backend(pending=True)))
    assert (decision.allowed, decision.backends, decision.pending) == (True, (), ("eu-fr-par/acme-1",))
    assert dict(decision.transfer_basis) == {}
    assert "once it has shown" in "\n".join(explain_lines(decision))
    assert explain_json(decision)["pending"] == ["eu-fr-par/acme-1"]
    beside = decide(policy, request_facts(backend(pending=True), signed(backend, ONE, backend_id="good")))
    assert (beside.backends, beside.pending) == (("good",), ("eu-fr-par/acme-1",))


def test_what_is_refused_for_other_reasons_is_not_pending(build, request_facts, backend):
    decision = decide(build(SIGNED), request_facts(backend(pending=True, compute_country="US")))
    assert (decision.allowed, decision.pending) == (False, ())
    twice = decide(build(SIGNED), request_facts(backend(pending=True), backend(pending=True)))
    assert (twice.allowed, twice.pending) == (False, ())
    others = decide(build(SIGNED), request_facts(backend(pending=True, tenant="other")))
    assert (others.allowed, others.pending) == (False, ())
    model = decide(build(SIGNED + "purposes: [other]\n"), request_facts(backend(pending=True)))
    assert (model.allowed, model.pending) == (False, ())


def test_a_policy_that_asks_for_nothing_does_not_wait(build, request_facts, backend):
    decision = decide(build(TENANT), request_facts(backend(pending=True)))
    assert (decision.backends, decision.pending) == (("eu-fr-par/acme-1",), ())


@pytest.mark.parametrize(
    ("runs", "pinned", "allowed"),
    [(WEIGHTS, WEIGHTS, True), (WEIGHTS, None, True), (None, None, True), (None, WEIGHTS, False),
     (WEIGHTS, "0" * 63 + "1", False)],
)  # fmt: skip
def test_other_weights_than_those_pinned_are_refused_whatever_the_policy(
    build, request_facts, backend, runs, pinned, allowed
):
    decision = decide(build(TENANT), request_facts(backend(weights=runs, weights_pinned=pinned)))
    assert decision.allowed is allowed
    assert [reason.rule for reason in decision.reasons] == ([] if allowed else ["model.weights"])


def test_a_pinned_backend_that_has_shown_nothing_is_pending(build, request_facts, backend):
    decision = decide(build(TENANT), request_facts(backend(weights_pinned=WEIGHTS, pending=True)))
    assert (decision.backends, decision.pending) == ((), ("eu-fr-par/acme-1",))


def test_the_difference_of_two_versions_names_the_signers(build):
    (found,) = differences(build(TENANT), build(SIGNED))
    assert (found.rule, found.after) == ("models.signed_by", ONE)
    assert "models" not in effective(build(SIGNED))


def test_a_policys_own_tests_can_tell_signed_from_unsigned(build, countries):
    tests = TENANT[TENANT.index("tests:") :]
    policy = build(
        SIGNED.replace(
            tests,
            "tests:\n  - {name: signed, given: {}, expect: allow}\n"
            "  - {name: unsigned, given: {signed_by: []}, expect: deny, rule: models.signed_by}\n",
        )
    )
    assert [outcome.passed for outcome in run_tests(policy, countries)] == [True, True]
