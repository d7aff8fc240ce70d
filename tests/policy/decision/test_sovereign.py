"""Where a prompt may go that could not be inspected: nowhere, unless four bounds say where."""

import pytest

from policy.analysis.diff import effective
from policy.decision.decision import decide
from policy.decision.explain import explain_json, explain_lines
from policy.errors import LooseningError, PolicyDocumentError
from policy.facts import Subprocessor

WHERE = "process_in: [FR], store_in: [FR], operator: {head_office: [FR], ultimate_parent: [FR]}"
TENANT = f"""
policy: acme-default
version: 1
residency: {{process_in: EEA, store_in: EEA}}
redaction: {{input: {{email: mask}}, on_failure: sovereign, sovereign: {{{WHERE}}}}}
"""
SILENT = "policy: acme-default\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"


def project(redaction):
    return f"policy: p\nversion: 1\nredaction: {redaction}\n"


def test_without_the_line_no_backend_gets_an_uninspected_prompt(build, backend, request_facts):
    decision = decide(build(SILENT), request_facts(candidates=(backend(),)))
    assert decision.allowed and decision.sovereign == ()


def test_a_backend_inside_every_bound_may_get_it_and_the_decision_says_so(build, backend, request_facts):
    decision = decide(build(TENANT), request_facts(candidates=(backend(),)))
    assert decision.sovereign == decision.backends != ()
    assert any("may get the prompt as it is" in line for line in explain_lines(decision))
    assert explain_json(decision)["if_redaction_fails"] == list(decision.sovereign)


@pytest.mark.parametrize("changes", [
    {"compute_country": "DE"}, {"storage_country": "DE"}, {"operator_hq": "DE"}, {"parent_country": "DE"},
    {"subprocessors": (Subprocessor(name="Host", country="DE"),)},
])  # fmt: skip
def test_one_fact_outside_a_bound_is_enough_to_stay_out(build, backend, request_facts, changes):
    outside = backend(backend_id="other", operator="A", ultimate_parent="B", **changes)
    decision = decide(build(TENANT), request_facts(candidates=(backend(), outside)))
    assert set(decision.backends) == {backend().backend_id, "other"}
    assert decision.sovereign == (backend().backend_id,)


def test_a_managed_service_is_never_sovereign_wherever_it_is(build, backend, request_facts):
    decision = decide(build(TENANT + "backend: {managed: unredacted}\n"), request_facts(backend(kind="managed")))
    assert decision.allowed and decision.sovereign == ()


def test_a_backend_that_the_decision_refuses_is_never_sovereign(build, backend, request_facts):
    decision = decide(build(TENANT), request_facts(candidates=(backend(tenant="rival"),)))
    assert decision.sovereign == ()


@pytest.mark.parametrize("redaction", [
    "{on_failure: sovereign}", f"{{sovereign: {{{WHERE}}}}}", f"{{on_failure: deny, sovereign: {{{WHERE}}}}}",
    "{on_failure: sovereign, sovereign: {process_in: [FR]}}", "{on_failure: allow}",
    "{on_failure: sovereign, sovereign: {process_in: [FR], store_in: [FR], operator: {head_office: [FR]}}}",
])  # fmt: skip
def test_a_policy_that_leaves_a_bound_open_is_none(build, redaction):
    with pytest.raises(PolicyDocumentError):
        build(f"{SILENT}redaction: {redaction}\n")


def test_a_project_may_narrow_or_deny_but_not_open(build):
    assert build(TENANT, project("{on_failure: deny}")).on_failure.mode == "deny"
    assert build(TENANT, project(f"{{on_failure: sovereign, sovereign: {{{WHERE}}}}}")).on_failure.mode == "sovereign"
    with pytest.raises(LooseningError, match="process_in"):
        build(TENANT, project(f"{{on_failure: sovereign, sovereign: {{{WHERE.replace('[FR]', '[FR, DE]', 1)}}}}}"))
    for above in (SILENT, f"{SILENT}redaction: {{on_failure: deny}}\n"):
        with pytest.raises(LooseningError, match="could not be inspected"):
            build(above, project(f"{{on_failure: sovereign, sovereign: {{{WHERE}}}}}"))


def test_what_holds_is_shown_where_two_versions_are_compared(build):
    assert effective(build(SILENT))["redaction.on_failure"] == "deny"
    assert effective(build(TENANT))["redaction.sovereign.operator.head_office"]
