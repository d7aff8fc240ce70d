import pytest

from policy.analysis.policy_tests import check_policy, run_tests
from policy.decision.compile import compile_policy
from policy.document.document import load_document
from policy.errors import PolicyTestError
from policy.presets import PRESETS, preset_text
from tests.policy.conftest import TENANT


def test_a_policy_that_keeps_its_own_promise_passes(build, countries):
    (outcome,) = check_policy(build(), countries)
    assert outcome.passed and str(outcome) == "pass  US-owned host is refused"


def test_a_failing_test_is_an_error_that_says_what_happened(build, countries):
    policy = build(TENANT + "  - {name: Norway may host, given: {storage_country: NO}, expect: allow}")
    with pytest.raises(PolicyTestError, match="Norway may host: expected allow, was denied") as error:
        check_policy(policy, countries)
    assert len(error.value.failures) == 1 and "residency.store_in" in str(error.value)
    assert [outcome.passed for outcome in run_tests(policy, countries)] == [True, False]


def test_a_denial_for_another_reason_than_the_one_named_fails(build, countries):
    rule = "residency.operator.ultimate_parent"
    test = f"  - {{name: refused as US owned, given: {{operator_hq: US}}, expect: deny, rule: {rule}}}"
    with pytest.raises(PolicyTestError, match="expected deny by residency"):
        check_policy(build(TENANT + test), countries)


def test_a_policy_that_can_never_allow_fails_a_test_that_expects_it_to(build, countries):
    document = "policy: p\nversion: 1\nresidency: {process_in: [US], store_in: [US]}\ntests:\n"
    with pytest.raises(PolicyTestError, match="no transfer basis for US"):
        check_policy(build(document + "  - {name: works, given: {}, expect: allow}"), countries)


def test_a_project_must_still_deny_what_its_tenants_tests_deny(build, countries):
    policy = build(TENANT, "policy: shop\nversion: 1\nmodels: [only-this]\n")
    assert [outcome.test.name for outcome in check_policy(policy, countries)] == ["US-owned host is refused"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_passes_its_own_tests(name, countries):
    policy = compile_policy(load_document(preset_text(name)), None, countries)
    outcomes = check_policy(policy, countries)
    assert policy.policy_id == name and {outcome.test.expect for outcome in outcomes} == {"allow", "deny"}


def test_there_is_no_other_preset():
    with pytest.raises(KeyError):
        preset_text("../../../etc/passwd")
