"""`backend.attested`: evidence in force of one alternative, whole; tightened by adding, never by leaving out."""

import pytest

from policy.analysis.diff import differences
from policy.analysis.policy_tests import run_tests
from policy.decision.decision import decide
from policy.errors import LooseningError, PolicyDocumentError
from tests.policy.conftest import TENANT

EITHER = TENANT + "backend: {attested: [sev-snp+nvidia, tdx+nvidia]}\n"
PROJECT = "policy: p\nversion: 1\nbackend: {attested: [%s]}\n"


@pytest.mark.parametrize(
    ("shown", "allowed"),
    [(("nvidia", "sev-snp"), True), (("tdx", "nvidia"), True), (("nvidia", "sev-snp", "tdx", "tpm"), True),
     (("sev-snp",), False), (("nvidia",), False), (("sev-snp", "tdx"), False), ((), False)],
)  # fmt: skip
def test_one_alternative_has_to_be_shown_whole(build, request_facts, backend, shown, allowed):
    facts = backend(attested=shown, attestation_fault=None if allowed else "sev-snp: the guest may be debugged")
    decision = decide(build(EITHER), request_facts(facts))
    assert decision.allowed is allowed
    if not allowed:
        (reason,) = decision.reasons
        assert (reason.rule, reason.candidate) == ("backend.attested", "eu-fr-par/acme-1")
        assert "nvidia+sev-snp or nvidia+tdx: sev-snp: the guest may be debugged" in reason.because


def test_what_has_shown_nothing_yet_waits(build, request_facts, backend):
    decision = decide(build(EITHER), request_facts(backend(pending=True)))
    assert (decision.backends, decision.pending) == ((), ("eu-fr-par/acme-1",))


def test_a_rule_asks_for_some_requests_alone(build, request_facts, backend):
    rule = "rules: [{name: hr, when: {data_classes: [hr]}, backend: {attested: [tpm]}}]\n"
    policy = build(TENANT + rule)
    assert decide(policy, request_facts(backend())).allowed
    decision = decide(policy, request_facts(backend(), data_classes=("hr",)))
    assert [reason.rule for reason in decision.reasons] == ["rules.hr.backend.attested"]
    assert decide(policy, request_facts(backend(attested=("tpm",)), data_classes=("hr",))).allowed
    waits = decide(policy, request_facts(backend(pending=True), data_classes=("hr",)))
    assert waits.pending == ("eu-fr-par/acme-1",)


@pytest.mark.parametrize("words", ["sev-snp+nvidia", "tdx+tpm+nvidia", "sev-snp+nvidia, tdx+nvidia", "nvidia+tdx"])
def test_a_project_may_ask_for_more(build, words):
    assert build(EITHER, PROJECT % words).backend.attested


@pytest.mark.parametrize("words", ["sev-snp", "nvidia", "tpm", "sev-snp+tdx", "sev-snp+nvidia, tpm"])
def test_a_project_may_not_ask_for_less_or_for_something_else(build, words):
    with pytest.raises(LooseningError, match=r"backend\.attested"):
        build(EITHER, PROJECT % words)


@pytest.mark.parametrize("words", ["[]", "[sgx]", "[sev-snp+]", "[+]", "['']", "tpm"])
def test_what_attests_nothing_is_refused(build, words):
    with pytest.raises(PolicyDocumentError, match=r"backend\.attested"):
        build(TENANT + f"backend: {{attested: {words}}}\n")


def test_a_policys_own_tests_can_tell_attested_from_not(build, countries):
    tests = TENANT[TENANT.index("tests:") :]
    policy = build(
        EITHER.replace(
            tests,
            "tests:\n  - {name: attested, given: {}, expect: allow}\n"
            "  - {name: not, given: {attestation: [nvidia]}, expect: deny, rule: backend.attested}\n",
        )
    )
    assert [outcome.passed for outcome in run_tests(policy, countries)] == [True, True]
    (found,) = differences(build(TENANT), build(EITHER))
    assert (found.rule, found.after) == ("backend.attested", "nvidia+sev-snp or nvidia+tdx")
