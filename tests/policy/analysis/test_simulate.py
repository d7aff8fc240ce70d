import json
from datetime import UTC, datetime

import pytest

from policy.analysis.diff import differences, effective
from policy.analysis.simulate import RecordedCalls, simulate
from policy.decision.decision import decide
from policy.decision.explain import Source, explain_lines, explain_source
from policy.document.document import load_document
from tests.policy.conftest import TENANT

WIDE = (
    "policy: wide\nversion: 1\nresidency: {process_in: [FR, DE, US], store_in: [FR, DE, US], "
    "transfer_basis: [intra_eea, scc]}\n"
)
NARROW = "policy: narrow\nversion: 2\nresidency: {process_in: [DE], store_in: [DE]}\n"


def kinds(request_facts, backend):
    fr, de = backend(backend_id="fr"), backend(backend_id="de", compute_country="DE", storage_country="DE")
    return [
        RecordedCalls(request_facts(fr), "fr", 10),
        RecordedCalls(request_facts(fr, de), "fr", 5),
        RecordedCalls(request_facts(fr, de), "de", 3),
        RecordedCalls(request_facts(backend(backend_id="us", compute_country="US", storage_country="US")), None, 2),
    ]


def test_each_kind_of_call_is_refused_moved_or_left_as_it_is(build, request_facts, backend):
    old, new = build(WIDE), build(NARROW)
    impact = simulate(kinds(request_facts, backend), lambda project: old, lambda project: new)
    assert (impact.calls, impact.same, impact.refused) == (20, 5, 10)
    assert [str(group) for group in impact.groups] == [
        "10 of shop/m would be refused: computes in FR, policy asks for DE [residency.process_in]",
        "5 of shop/m would move to another backend: computes in FR, policy asks for DE [residency.process_in]",
    ]
    assert impact.rules == {"residency.process_in": 15}


def test_the_way_back_admits_what_would_have_been_refused(build, request_facts, backend):
    old, new = build(NARROW), build(WIDE)
    impact = simulate(kinds(request_facts, backend), lambda project: old, lambda project: new)
    assert [(group.effect, group.count, group.rule) for group in impact.groups] == [
        ("admitted", 10, "residency.process_in")
    ]
    assert json.loads(json.dumps(impact.as_json()))["changes"][0]["count"] == 10


def test_each_project_is_judged_by_its_own_policies(build, request_facts, backend):
    calls = [RecordedCalls(request_facts(backend(backend_id="fr"), project=name), "fr", 1) for name in ("a", "b")]
    open_policy, closed = build(WIDE), build(NARROW)
    impact = simulate(calls, lambda project: open_policy, {"a": closed, "b": open_policy}.__getitem__)
    assert [(group.project, group.effect) for group in impact.groups] == [("a", "refused")]


def test_nothing_recorded_changes_nothing(build):
    policy = build()
    assert simulate([], lambda project: policy, lambda project: policy).as_json() == {
        "calls": 0, "same": 0, "changes": [], "rules": {},
    }  # fmt: skip


@pytest.mark.parametrize("text", [TENANT, WIDE, NARROW])
def test_a_policy_differs_from_itself_in_nothing(build, text):
    assert differences(build(text), build(text)) == []


def test_differences_name_rules_and_the_countries_gained_and_lost(build):
    found = {one.rule: str(one) for one in differences(build(WIDE), build(NARROW))}
    expected = "residency.process_in: FR, DE, US -> DE  (loses FR, US)"
    assert found["residency.process_in"] == expected
    assert found["residency.transfer_basis"] == "residency.transfer_basis: intra_eea, scc -> intra_eea"


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("models: [m]", "models"), ("purposes: required", "purposes"), ("legal_basis: [consent]", "legal_basis"),
        ("data_classes: []", "data_classes"), ("priority: low", "priority"),
        ("hours: {from: '07:00', zone: UTC}", "hours"), ("backend: {kind: domicile}", "backend.kind"),
        ("backend: {certifications: [C5]}", "backend.certifications"), ("limits: {rpm: 3}", "limits.rpm"),
        ("special_categories: {health: 9(2)(h)}", "special_categories.health"),
        ("rules: [{name: x, deny: true}]", "rules.x.deny"),
        ("retention: {content: 'encrypted, 3d'}", "retention.content"),
        ("redaction: {input: {email: mask}}", "redaction.input.email"),
        ("transparency: {art50_notice: header}", "transparency.art50_notice"),
    ],
)  # fmt: skip
def test_whatever_a_policy_can_say_shows_in_a_difference(build, more, rule):
    changed = [one.rule for one in differences(build(NARROW), build(NARROW + more))]
    assert rule in changed
    assert rule in effective(build(NARROW + more))


def test_an_explanation_points_at_the_line_that_refuses_in_every_document(build, request_facts, backend):
    project = "policy: shop\nversion: 1\nresidency:\n  store_in: [DE]   # the works council\n"
    decision = decide(build(TENANT, project), request_facts())
    sources = [Source("acme", load_document(TENANT), TENANT), Source("acme/shop", load_document(project), project)]
    shown = "\n".join(explain_source(decision, sources))
    assert "refused[residency.store_in]: eu-fr-par/acme-1 stores in FR, policy asks for DE" in shown
    assert " --> acme:6\n  |\n6 |   store_in: [FR, DE]\n  |   ^^^^^^^^^^^^^^^^^^\n" in shown
    assert " --> acme/shop:4\n  |\n4 |   store_in: [DE]   # the works council\n  |   ^^^^^^^^^^^^^^\n" in shown
    assert "  = law: GDPR 44" in shown


def test_an_explanation_of_what_no_document_says_says_so(build, request_facts, backend):
    decision = decide(build(), request_facts(backend(tenant="globex")))
    shown = "\n".join(explain_source(decision, [Source("acme", load_document(TENANT), TENANT)]))
    assert "refused[isolation.tenant]" in shown and "always holds: no document asks for it" in shown


def test_an_explanation_finds_a_rule_by_its_name_and_a_sub_processor_by_where_prompts_are_computed(
    build, request_facts, backend
):
    from policy.facts import Subprocessor

    text = TENANT + "rules:\n  - {name: other, deny: false}\n  - {name: germany, process_in: [DE]}\n"
    us = backend(subprocessors=(Subprocessor(name="Logs", country="US"),))
    decision = decide(build(text), request_facts(us))
    shown = "\n".join(explain_source(decision, [Source("acme", load_document(text), text)]))
    assert "refused[rules.germany.process_in]" in shown and "--> acme:21" in shown
    assert "refused[residency.subprocessors]" in shown and "--> acme:5" in shown


def test_what_is_allowed_is_told_as_well(build, request_facts):
    decision = decide(build(), request_facts(catalogue_version="7"))
    assert explain_source(decision, [])[:2] == [
        f"allowed: acme-default version 3, countries {decision.countries_version}, catalogue 7",
        "  may use eu-fr-par/acme-1, transfer basis intra_eea",
    ]
    assert explain_lines(decision)[0].startswith("allowed by acme-default")
    assert decision.holds_until == datetime(2026, 11, 28, tzinfo=UTC)
