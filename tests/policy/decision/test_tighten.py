"""A lower level only tightens: whatever three levels say, what all together allow each of them allows on its own."""

import json
from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.decision.compile import compile_policy
from policy.decision.decision import MANAGED_LABELS, decide
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.errors import LooseningError, PolicyError
from policy.facts import Attestation, BackendFacts, RequestFacts, Subprocessor
from policy.redact.actions.plan import STRICTNESS

PLACES = ("FR", "DE", "IS", "CH", "US", "GB")
selectors = st.sampled_from(["EU", "EEA", "EEA+adequate", ["FR"], ["FR", "DE"], ["CH", "FR"], ["US", "FR"], ["IS"]])
operators = st.fixed_dictionaries({}, optional={"head_office": selectors, "ultimate_parent": selectors})
servers = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["domicile", "openai", "managed"]),
        "managed": st.sampled_from(["redacted", "unredacted"]),
        "single_tenant": st.sampled_from(["attested", "declared"]),
        "certifications": st.sampled_from([["C5"], ["ISO 27001"], ["C5", "ISO 27001"]]),
    },
)
hours = st.fixed_dictionaries(
    {"zone": st.just("UTC")},
    optional={"from": st.sampled_from(["06:00", "12:00"]), "until": st.sampled_from(["11:00", "18:00"])},
)
rules = st.lists(
    st.fixed_dictionaries(
        {"when": st.fixed_dictionaries({}, optional={"models": st.just(["m"]), "data_classes": st.just(["contact"])})},
        optional={"process_in": selectors, "store_in": selectors, "backend": servers, "deny": st.just(True)},
    ),
    max_size=2,
).map(lambda found: [{"name": f"rule-{number}", **rule} for number, rule in enumerate(found)])
documents = st.fixed_dictionaries(
    {},
    optional={
        "residency": st.fixed_dictionaries({}, optional={
            "process_in": selectors, "store_in": selectors, "operator": operators, "subprocessors": selectors,
            "dpf_accepted": st.booleans(),
            "transfer_basis": st.lists(st.sampled_from(["intra_eea", "adequacy", "scc"]), unique=True, min_size=1)}),
        "backend": servers,
        "hours": hours,
        "rules": rules,
        "priority": st.sampled_from(["high", "normal", "low"]),
        "models": st.sampled_from([["m"], ["m", "n"], ["n"]]),
        "purposes": st.sampled_from(["required", ["support"], ["marketing"]]),
        "legal_basis": st.sampled_from(["required", ["contract"], ["consent"]]),
        "data_classes": st.sampled_from([[], ["contact"]]),
        "special_categories": st.sampled_from([{}, {"health": "9(2)(h)"}, {"health": "9(2)(a)"}]),
        "redaction": st.fixed_dictionaries({"input": st.dictionaries(
            st.sampled_from(["email", "iban"]), st.sampled_from(sorted(STRICTNESS))) | st.fixed_dictionaries(
            {label: st.sampled_from(sorted(STRICTNESS)) for label in MANAGED_LABELS})}),
        "retention": st.fixed_dictionaries({}, optional={
            "metadata": st.sampled_from(["1y", "30d"]), "content": st.sampled_from(["none", "encrypted, 7d"])}),
        "limits": st.fixed_dictionaries({}, optional={"rpm": st.integers(1, 3)}),
    },
)  # fmt: skip
placed = documents.map(
    lambda said: {**said, "residency": {"process_in": "EEA+adequate", "store_in": "EEA+adequate",
                                        **said.get("residency", {})}}
)  # fmt: skip
"""Of a level that has none above it."""
DPF = Attestation(basis="adequacy", country="US", reference="list", valid_from=date(2026, 1, 1))
SCC = Attestation(basis="scc", country="US", reference="module 2", valid_from=date(2026, 1, 1))
backends = st.builds(
    BackendFacts,
    backend_id=st.just("b"),
    tenant=st.just("acme"),
    region=st.just("r"),
    operator=st.just("O"),
    ultimate_parent=st.just("P"),
    models=st.just(("m", "n")),
    compute_country=st.sampled_from(PLACES),
    storage_country=st.sampled_from(PLACES),
    operator_hq=st.sampled_from(PLACES),
    parent_country=st.sampled_from(PLACES),
    subprocessors=st.sampled_from(
        [(), (Subprocessor(name="S", country="US"),), (Subprocessor(name="S", country="FR"),)]
    ),
    attested_transfer=st.sampled_from([(), (DPF,), (SCC,), (DPF, SCC)]),
    kind=st.sampled_from([None, "domicile", "openai", "managed"]),
    single_tenant=st.sampled_from([None, "declared", "attested"]),
    certifications=st.sampled_from([(), ("C5",), ("C5", "ISO 27001")]),
)
requests = st.builds(
    RequestFacts,
    tenant=st.just("acme"),
    project=st.just("shop"),
    model=st.sampled_from(["m", "n"]),
    at=st.integers(0, 23).map(lambda hour: datetime(2026, 11, 27, hour, 30, tzinfo=UTC)),
    purpose=st.sampled_from([None, "support"]),
    legal_basis=st.sampled_from([None, "contract"]),
    data_classes=st.sampled_from([(), ("contact",), ("health",)]),
    risk_class=st.sampled_from(["limited", "high"]),
    candidates=backends.map(lambda backend: (backend,)),
)


def said(name, sections):
    return load_document(json.dumps({"policy": name, "version": 1, **sections}))


def compiled(tenant, project=None, operator=None):
    return compile_policy(tenant, project, builtin_countries(), operator=operator)


@settings(max_examples=300, deadline=None)
@given(operator=documents, tenant=placed, project=documents, facts=requests)
def test_what_all_levels_allow_together_each_level_with_those_above_it_allows_too(operator, tenant, project, facts):
    first, second, third = said("o", operator), said("t", tenant), said("p", project)
    try:
        alone = compiled(second)
        under = compiled(second, None, first)
        whole = compiled(second, third, first)
    except PolicyError:
        return
    for lower, upper in ((under, alone), (whole, under)):
        if decide(lower, facts).allowed:
            # What a level adds to the redaction may be what a managed service has to be spared of.
            assert {reason.rule.rpartition(".")[2] for reason in decide(upper, facts).reasons} <= {"managed"}
        for label, action in upper.redaction.input.items():
            assert STRICTNESS[lower.redaction.input[label]] >= STRICTNESS[action]
        assert lower.retention.content_days <= upper.retention.content_days
        assert lower.retention.metadata_days <= upper.retention.metadata_days
        assert upper.limits.rpm is None or lower.limits.rpm <= upper.limits.rpm
        assert not (upper.dpf_accepted is False and lower.dpf_accepted)


@settings(max_examples=150, deadline=None)
@given(operator=placed, tenant=placed, facts=requests)
def test_what_a_tenant_allows_its_operators_document_allows_as_a_tenants_own(operator, tenant, facts):
    first, second = said("o", operator), said("t", tenant)
    try:
        ceiling, both = compiled(first), compiled(second, None, first)
    except PolicyError:
        return
    if decide(both, facts).allowed:
        refused = {reason.rule for reason in decide(ceiling, facts).reasons}
        assert refused <= {
            "residency.transfer_basis",
            "data_classes.special",
            "backend.managed",
        }  # on which an operator may be silent


@pytest.mark.parametrize(
    ("above", "below", "rule"),
    [
        ("residency: {dpf_accepted: false}", "residency: {dpf_accepted: true}", "residency.dpf_accepted"),
        ("backend: {kind: domicile}", "backend: {kind: openai}", "backend.kind"),
        ("backend: {single_tenant: attested}", "backend: {single_tenant: declared}", "backend.single_tenant"),
        ("backend: {managed: redacted}", "backend: {managed: unredacted}", "backend.managed"),
        ("priority: low", "priority: normal", "priority"),
        ("special_categories: {health: 9(2)(h)}", "special_categories: {health: 9(2)(a)}", "special_categories.health"),
        ("special_categories: {}", "special_categories: {genetic: 9(2)(h)}", "special_categories.genetic"),
        ("residency: {subprocessors: EU}", "residency: {subprocessors: EEA}", "residency.subprocessors"),
        ("residency: {process_in: EU}", "residency: {subprocessors: EEA}", "residency.subprocessors"),
    ],
)
def test_each_new_bound_is_refused_when_loosened_with_the_line_and_whose_it_is(above, below, rule):
    places = said("t", {"residency": {"process_in": ["FR"], "store_in": ["FR"]}})
    operator = load_document(f"policy: o\nversion: 1\n{above}\n")
    lower = load_document(f"policy: p\nversion: 1\n{below}\n")
    with pytest.raises(LooseningError, match=r"\(line 3\)") as error:
        compiled(places, lower, operator)
    assert error.value.rule == rule


def test_sub_processors_follow_where_prompts_are_computed_unless_they_are_named():
    wide = {"residency": {"process_in": "EEA", "store_in": "EEA"}}
    narrow = {"residency": {"process_in": ["FR"]}}
    assert set(compiled(said("t", wide), said("p", narrow)).subprocessors.full) == {"FR"}
    wide["residency"]["subprocessors"] = "EEA+adequate"
    assert "CH" in compiled(said("t", wide), said("p", narrow)).subprocessors.full


def test_an_operator_that_gives_up_the_dpf_takes_it_from_every_tenant(countries):
    wide = {"process_in": "EEA+adequate", "store_in": "EEA+adequate", "transfer_basis": ["intra_eea", "adequacy"]}
    tenant = said("t", {"residency": wide})
    off = said("o", {"residency": {"dpf_accepted": False}})
    us = BackendFacts(
        backend_id="us",
        tenant="acme",
        region="us",
        compute_country="US",
        storage_country="US",
        operator="O",
        operator_hq="US",
        ultimate_parent="O",
        parent_country="US",
        models=("m",),
        attested_transfer=(DPF,),
    )
    facts = RequestFacts(
        tenant="acme",
        project="p",
        model="m",
        at=datetime(2026, 11, 27, 12, tzinfo=UTC),
        risk_class="limited",
        candidates=(us,),
    )
    assert decide(compiled(tenant), facts).transfer_basis == {"us": "adequacy:(EU) 2023/1795"}
    refused = decide(compiled(tenant, None, off), facts)
    assert not refused.allowed and {reason.rule for reason in refused.reasons} >= {"residency.process_in"}
    assert any(row.framework == "DPF" for row in countries.adequacy)
