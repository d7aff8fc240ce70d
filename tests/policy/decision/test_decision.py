import json
from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.decision.compile import compile_policy
from policy.decision.decision import MANAGED_LABELS, decide
from policy.decision.explain import explain_json, explain_lines
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.errors import LooseningError
from policy.facts import Attestation, BackendFacts, RequestFacts, Sink, Subprocessor
from policy.presets import preset_document
from tests.fakes.work import calls
from tests.policy.conftest import ADEQUATE, TENANT

POLICIES = [compile_policy(load_document(text), None, builtin_countries()) for text in (TENANT, ADEQUATE)]
EEA = {row.country for row in builtin_countries().eea}
DPF = Attestation(basis="adequacy", country="US", reference="DPF list entry", valid_from=date(2026, 1, 1))
CLAUSES = Attestation(
    basis="scc", country="IN", reference="SCC module 2", valid_from=date(2026, 1, 1), valid_to=date(2026, 6, 30)
)


def rules(decision):
    return [reason.rule for reason in decision.reasons]


def test_a_backend_inside_every_rule_is_allowed(build, request_facts):
    decision = decide(build(), request_facts())
    assert decision.allowed and decision.backends == ("eu-fr-par/acme-1",) and decision.reasons == ()
    assert decision.transfer_basis == {"eu-fr-par/acme-1": "intra_eea"}
    assert decision.policy_id == "acme-default" and decision.version == "3" and len(decision.hash) == 64
    assert decision.redaction.input["iban"] == "pseudonymise" and decision.redaction.output["email"] == "mask"
    assert decision.retention.metadata_days == 365 and decision.notices[0].name == "art50"


def test_a_refusal_carries_its_reason_word_for_word(build, request_facts, backend):
    us = backend(backend_id="us-east/acme-1", operator="Cloud SAS", ultimate_parent="Cloud Inc", parent_country="US")
    decision = decide(build(), request_facts(us))
    assert not decision.allowed and decision.backends == ()
    (reason,) = decision.reasons
    assert reason.rule == "residency.operator.ultimate_parent" and reason.candidate == "us-east/acme-1"
    assert reason.because == "parent is in US, policy asks for EEA" and reason.article == "GDPR 44, 48"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tenant": "globex"}, "isolation.tenant"),
        ({"tenant": None}, "isolation.tenant"),
        ({"compute_country": "US"}, "residency.process_in"),
        ({"compute_country": "CH"}, "residency.process_in"),
        ({"compute_country": "GL"}, "residency.process_in"),
        ({"compute_country": "NC"}, "residency.process_in"),
        ({"storage_country": "NL"}, "residency.store_in"),
        ({"operator_hq": "US", "ultimate_parent": "Cloud Inc"}, "residency.operator.head_office"),
        ({"parent_country": "US", "ultimate_parent": "Cloud Inc"}, "residency.operator.ultimate_parent"),
        ({"parent_country": "US"}, "facts.contradictory"),
        ({"subprocessors": (Subprocessor(name="Logs Inc", country="US"),)}, "residency.subprocessors"),
        ({"subprocessors": (Subprocessor(name="Logs Inc"),)}, "residency.subprocessors"),
        ({"models": ("other",)}, "model.served"),
        ({"models": ()}, "model.served"),
        ({"compute_country": "UK"}, "facts.country"),
        ({"compute_country": "fr"}, "facts.country"),
        ({"compute_country": "EU"}, "facts.country"),
        *(({fact: missing}, "facts.missing") for missing in (None, "") for fact in (
            "region", "compute_country", "storage_country", "operator", "operator_hq", "ultimate_parent",
            "parent_country")),
    ],
)  # fmt: skip
def test_one_wrong_or_missing_fact_refuses_a_backend(build, request_facts, backend, change, rule):
    good, bad = backend(backend_id="good"), backend(backend_id="bad", **change)
    decision = decide(build(), request_facts(bad, good))
    assert decision.backends == ("good",), "the other one is still allowed"
    assert rule in rules(decision) and all(reason.candidate == "bad" for reason in decision.reasons)
    assert not decide(build(), request_facts(bad)).allowed


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tenant": None}, "facts.missing"),
        ({"tenant": ""}, "facts.missing"),
        ({"project": None}, "facts.missing"),
        ({"model": None}, "facts.missing"),
        ({"risk_class": None}, "facts.missing"),
        ({"risk_class": "unheard-of"}, "risk_class.unknown"),
        ({"risk_class": "prohibited"}, "risk_class.prohibited"),
        ({"legal_basis": "because"}, "legal_basis"),
        ({"data_classes": ("health",)}, "data_classes.special"),
        ({"candidates": ()}, "candidates.none"),
    ],
)
def test_one_wrong_or_missing_fact_denies_the_request(build, request_facts, change, rule):
    decision = decide(build(), request_facts(**change))
    assert not decision.allowed and decision.backends == () and decision.transfer_basis == {}
    assert rule in rules(decision)


@pytest.mark.parametrize(
    ("rule", "section", "fine", "wrong"),
    [
        ("models", "models: [m, n]", {}, {"model": "x"}),
        ("purposes", "purposes: [support]", {}, {"purpose": "marketing"}),
        ("purposes", "purposes: required", {}, {"purpose": None}),
        ("legal_basis", "legal_basis: [contract]", {"legal_basis": "6(1)(b)"}, {"legal_basis": "consent"}),
        ("legal_basis", "legal_basis: required", {}, {"legal_basis": None}),
        ("data_classes", "data_classes: [contact]", {"data_classes": ("contact",)}, {"data_classes": ("salary",)}),
        ("data_classes.special", "data_classes: [contact]", {}, {"data_classes": ("health",)}),
    ],
)
def test_a_list_in_the_policy_allows_what_is_on_it_only(build, request_facts, rule, section, fine, wrong):
    policy = build(TENANT + section)
    assert decide(policy, request_facts(**fine)).allowed
    assert rule in rules(decide(policy, request_facts(**wrong)))


def test_a_special_category_is_allowed_where_the_policy_gives_a_ground_for_it(build, request_facts):
    health = request_facts(data_classes=("health",))
    assert decide(build(TENANT + "special_categories: {health: 9(2)(h)}"), health).allowed
    assert rules(decide(build(TENANT + "data_classes: [health]"), health)) == ["data_classes.special"]
    assert rules(decide(build(TENANT + "special_categories: {genetic: 9(2)(j)}"), health)) == ["data_classes.special"]


@pytest.mark.parametrize(
    ("country", "rule"), [("FR", None), ("US", "residency.store_in"), ("XX", "facts.country"), (None, "facts.missing")]
)
def test_what_a_call_leaves_behind_must_lie_where_the_policy_allows_it(build, request_facts, country, rule):
    record = Sink(name="the record", country=country)
    spans = Sink(name="spans", country=country, required=False)
    bound = decide(build(), request_facts(sinks=(record,)))
    assert [reason.rule for reason in bound.reasons] == ([rule] if rule else [])
    assert bound.allowed == (rule is None)
    free = decide(build(), request_facts(sinks=(spans,)))
    assert free.allowed and free.sinks == (() if rule else ("spans",))


def test_two_candidates_with_one_id_are_both_refused(build, request_facts, backend):
    decision = decide(build(), request_facts(backend(), backend(storage_country="DE"), backend(backend_id="other")))
    assert decision.backends == ("other",) and rules(decision) == ["facts.contradictory"] * 2


def test_of_another_tenants_backend_nothing_else_is_told(build, request_facts, backend):
    decision = decide(build(), request_facts(backend(tenant="globex", compute_country="US", operator_hq=None)))
    assert rules(decision) == ["isolation.tenant"] and "US" not in str(decision.reasons[0])


def test_the_us_is_adequate_for_an_attested_recipient_only(build, request_facts, backend):
    us = dict(compute_country="US", storage_country="US", operator_hq="US", parent_country="US")
    policy = build(ADEQUATE)
    refused = decide(policy, request_facts(backend(**us)))
    assert "attested recipients" in refused.reasons[0].because
    allowed = decide(policy, request_facts(backend(**us, attested_transfer=(DPF,))))
    assert allowed.transfer_basis["eu-fr-par/acme-1"] == "adequacy:(EU) 2023/1795"
    other = DPF.model_copy(update={"country": "CA"})
    assert not decide(policy, request_facts(backend(**us, attested_transfer=(other,)))).allowed


@pytest.mark.parametrize(("day", "allowed"), [((2025, 12, 31), False), ((2026, 1, 1), True), ((2030, 1, 1), True)])
def test_an_attestation_counts_on_its_own_days_only(build, request_facts, backend, day, allowed):
    us = backend(compute_country="US", storage_country="US", attested_transfer=(DPF,))
    assert decide(build(ADEQUATE), request_facts(us, at=datetime(*day, 9, tzinfo=UTC))).allowed is allowed


@pytest.mark.parametrize(
    ("day", "allowed"),
    [((2021, 6, 27), False), ((2021, 6, 28), True), ((2031, 12, 27), True), ((2031, 12, 28), False)],
)
def test_an_adequacy_decision_counts_on_its_own_days_only(build, request_facts, backend, day, allowed):
    gb = backend(compute_country="GB", storage_country="GB")
    assert decide(build(ADEQUATE), request_facts(gb, at=datetime(*day, 9, tzinfo=UTC))).allowed is allowed


def test_clauses_carry_a_transfer_only_to_a_place_the_policy_names_and_only_while_they_run(
    build, request_facts, backend
):
    policy = build(ADEQUATE.replace("EEA+adequate", "[FR, IN]"))
    india = backend(compute_country="IN", attested_transfer=(CLAUSES,))
    in_may, in_july = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)
    decision = decide(policy, request_facts(india, at=in_may))
    assert decision.transfer_basis["eu-fr-par/acme-1"] == "scc:SCC module 2"
    assert rules(decide(policy, request_facts(india, at=in_july))) == ["residency.transfer_basis"]
    assert not decide(build(ADEQUATE), request_facts(india, at=in_may)).allowed


def test_a_tool_the_policy_does_not_accept_carries_nothing(build, request_facts, backend):
    policy = build("policy: p\nversion: 1\nresidency: {process_in: [FR, CH], store_in: [FR]}")
    decision = decide(policy, request_facts(backend(compute_country="CH")))
    assert rules(decision) == ["residency.transfer_basis"] and "accepts intra_eea" in decision.reasons[0].because


def test_high_risk_records_are_kept_184_days_at_least_and_the_conflict_is_explained(build, request_facts):
    policy = build(TENANT.replace("metadata: 12mo", "metadata: 30d"))
    assert decide(policy, request_facts()).retention.metadata_days == 30
    high = decide(policy, request_facts(risk_class="high")).retention
    assert high.metadata_days == 184 and "AI Act 19(1), 26(6)" in high.because and "not 30 d" in high.because


def test_a_decision_is_told_in_the_same_words_everywhere(build, request_facts, backend):
    decision = decide(
        build(), request_facts(backend(), backend(backend_id="us", operator_hq="US", ultimate_parent="X"))
    )
    text, data = "\n".join(explain_lines(decision)), json.loads(json.dumps(explain_json(decision)))
    assert text.startswith("allowed by acme-default version 3")
    assert data["allowed"] and data["backends"] == [{"id": "eu-fr-par/acme-1", "transfer_basis": "intra_eea"}]
    for reason in data["reasons"]:
        assert reason["because"] in text and reason["rule"] in text
    denied = explain_lines(decide(build(), request_facts(model=None)))
    assert denied[0].startswith("denied") and not any("kept" in line for line in denied)


countries_or_not = st.sampled_from([None, "", "FR", "DE", "IS", "CH", "US", "GB", "UK", "fr", "ZZ", "GL", "RE", "EU"])
backends = st.builds(
    BackendFacts,
    backend_id=st.sampled_from(["a", "b", "c"]),
    tenant=st.sampled_from([None, "", "acme", "globex"]),
    region=st.sampled_from([None, "eu-fr-par"]),
    compute_country=countries_or_not,
    storage_country=countries_or_not,
    operator=st.sampled_from([None, "O"]),
    operator_hq=countries_or_not,
    ultimate_parent=st.sampled_from([None, "O", "P"]),
    parent_country=countries_or_not,
    subprocessors=st.lists(st.builds(Subprocessor, name=st.just("S"), country=countries_or_not), max_size=2).map(tuple),
    models=st.sampled_from([(), ("m",), ("x", "m")]),
    attested_transfer=st.sampled_from([(), (DPF,), (CLAUSES, DPF)]),
)


@settings(max_examples=500, deadline=None)
@given(
    candidates=st.lists(backends, max_size=4).map(tuple),
    tenant=st.sampled_from([None, "", "acme"]),
    risk=st.sampled_from([None, "limited", "high", "prohibited", "?"]),
    at=st.datetimes(timezones=st.just(UTC)),
    wide=st.booleans(),
)
def test_every_input_has_an_answer_and_no_allowed_backend_has_a_missing_or_outside_fact(
    candidates, tenant, risk, at, wide
):
    facts = RequestFacts(tenant=tenant, project="p", model="m", risk_class=risk, at=at, candidates=candidates)
    policy = POLICIES[wide]
    decision = decide(policy, facts)
    assert decision == decide(policy, facts)
    assert decision.allowed == bool(decision.backends) and (decision.allowed or decision.reasons)
    for backend_id in decision.backends:
        (backend,) = (b for b in candidates if b.backend_id == backend_id)
        assert tenant == backend.tenant == "acme" and "m" in backend.models and risk in ("limited", "high")
        assert backend.region and backend.operator and backend.ultimate_parent
        known = [backend.compute_country, backend.storage_country, backend.operator_hq, backend.parent_country]
        assert all(country in builtin_countries().known for country in known)
        places = [backend.compute_country, backend.storage_country, *(s.country for s in backend.subprocessors)]
        if wide:
            assert set(places) <= EEA | {"CH", "GB", "US"} and ("US" not in places or backend.attested_transfer)
        else:
            assert {*places, backend.operator_hq, backend.parent_country} <= EEA and backend.storage_country in (
                "FR",
                "DE",
            )


def test_a_decision_over_a_few_backends_takes_few_calls(build, request_facts, backend):
    policy, facts = build(), request_facts(*(backend(backend_id=f"b{i}") for i in range(3)))
    decide(policy, facts)
    assert calls(lambda: decide(policy, facts)) < 400  # some tenths of a microsecond each


# --- managed services ------------------------------------------------------------------------------------------------

REDACTED = "{" + ", ".join(f"{label}: mask" for label in MANAGED_LABELS) + "}"


def of_managed(build, request_facts, backend, redaction=REDACTED, more="", project=None, **changes):
    policy = (
        f"policy: t\nversion: 1\nresidency: {{process_in: EEA, store_in: EEA}}\nredaction: {{input: {redaction}}}\n"
    )
    return decide(build(policy + more, project), request_facts(backend(kind="managed", **changes)))


def test_what_managed_services_have_to_be_spared_of_is_what_the_preset_redacts():
    assert set(MANAGED_LABELS) == set(preset_document("gdpr-standard").redaction.input)


def test_a_managed_service_is_allowed_where_all_of_it_is_redacted(build, request_facts, backend):
    assert of_managed(build, request_facts, backend).allowed


@pytest.mark.parametrize("label", MANAGED_LABELS)
@pytest.mark.parametrize("action", ["tag", None])
def test_one_label_that_is_left_alone_refuses_it_and_is_named(build, request_facts, backend, label, action):
    actions = {each: "mask" for each in MANAGED_LABELS} | {label: action}
    said = json.dumps({each: what for each, what in actions.items() if what})
    decision = of_managed(build, request_facts, backend, said)
    (reason,) = decision.reasons
    assert reason.rule == "backend.managed"
    assert reason.because == f"is a managed service, and the policy leaves {label} of prompts as they are"


def test_a_part_of_a_label_is_not_all_of_it(build, request_facts, backend):
    said = REDACTED.replace("national_id: mask", "national_id.de_idnr: mask")
    assert not of_managed(build, request_facts, backend, said).allowed


@pytest.mark.parametrize(("said", "allowed"), [("unredacted", True), ("redacted", False)])
def test_only_a_policy_that_says_so_lets_it_have_prompts_as_they_are(build, request_facts, backend, said, allowed):
    assert of_managed(build, request_facts, backend, "{}", f"backend: {{managed: {said}}}\n").allowed is allowed


def test_a_project_may_be_stricter_and_not_laxer_than_a_tenant_that_said_nothing(build, request_facts, backend):
    loose, strict = (f"policy: p\nversion: 1\nbackend: {{managed: {word}}}\n" for word in ("unredacted", "redacted"))
    with pytest.raises(LooseningError, match=r"backend\.managed"):
        of_managed(build, request_facts, backend, "{}", project=loose)
    decision = of_managed(build, request_facts, backend, "{}", "backend: {managed: unredacted}\n", project=strict)
    assert rules(decision) == ["backend.managed"]


def test_a_rule_may_ask_for_redaction_of_some_requests_alone(build, request_facts, backend):
    more = (
        "backend: {managed: unredacted}\nrules: [{name: health, when: {models: [m]}, backend: {managed: redacted}}]\n"
    )
    assert rules(of_managed(build, request_facts, backend, "{}", more)) == ["rules.health.backend.managed"]
    assert of_managed(build, request_facts, backend, "{}", more.replace("[m]", "[other]")).allowed
    loosening = "rules: [{name: health, when: {models: [m]}, backend: {managed: unredacted}}]\n"
    assert not of_managed(build, request_facts, backend, "{}", loosening).allowed, "a rule lifts nothing"


@pytest.mark.parametrize("kind", ["domicile", "openai", None])
def test_other_servers_are_not_asked_for_it(build, request_facts, backend, kind):
    assert of_managed(build, request_facts, lambda **facts: backend(**facts | {"kind": kind}), "{}").allowed
