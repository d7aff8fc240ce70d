import json
from datetime import date

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.decision.decision import decide
from policy.decision.policy_identity import identity_of
from policy.document.document import load_document
from policy.errors import LooseningError, PolicyDocumentError
from policy.facts import Attestation
from policy.redact.actions.plan import STRICTNESS
from tests.policy.conftest import ADEQUATE, TENANT

PROJECT = "policy: shop\nversion: 2\n"


def test_a_project_that_says_nothing_has_its_tenants_policy(build, request_facts):
    alone, both = build(), build(TENANT, PROJECT)
    assert (both.policy_id, both.version) == ("acme-default+shop", "3+2")
    assert both.redaction == alone.redaction and both.limits == alone.limits and both.retention == alone.retention
    assert decide(both, request_facts()).backends == decide(alone, request_facts()).backends


def test_a_project_tightens_every_rule(build):
    policy = build(
        TENANT,
        PROJECT
        + """
residency: {process_in: [FR], store_in: [FR], operator: {head_office: EU, ultimate_parent: [FR]}}
redaction: {input: {iban: mask, phone: mask}, output: {email: block}}
retention: {metadata: 6mo}
limits: {rpm: 10}
models: [m]
purposes: [support]
legal_basis: required
data_classes: [contact]
""",
    )
    assert set(policy.process_in.full) == {"FR"} and set(policy.ultimate_parent.full) == {"FR"}
    assert policy.redaction.input == {
        "iban": "mask", "national_id": "block", "email": "pseudonymise", "secret": "block", "phone": "mask",
    }  # fmt: skip
    assert policy.redaction.output == {"iban": "mask", "email": "block"}
    assert policy.retention.metadata_days == 182 and policy.limits.rpm == 10 and policy.limits.tpm == 200000
    assert policy.asked["models"].names == {"m"} and policy.asked["purposes"] == {"support"}
    assert policy.asked["legal_basis"] == "required"


@pytest.mark.parametrize(
    ("tenant_more", "loosening", "rule"),
    [
        ("", "residency: {process_in: EEA+adequate}", "residency.process_in"),
        ("", "residency: {process_in: [US]}", "residency.process_in"),
        ("", "residency: {store_in: [FR, NL]}", "residency.store_in"),
        ("", "residency: {store_in: EEA}", "residency.store_in"),
        ("", "residency: {operator: {head_office: [US]}}", "residency.operator.head_office"),
        ("", "residency: {operator: {ultimate_parent: EEA+adequate}}", "residency.operator.ultimate_parent"),
        ("", "residency: {transfer_basis: [intra_eea, adequacy]}", "residency.transfer_basis"),
        ("", "redaction: {input: {iban: tag}}", "redaction.input.iban"),
        ("", "redaction: {input: {secret: mask}}", "redaction.input.secret"),
        ("", "redaction: {output: {email: tag}}", "redaction.output.email"),
        ("", "retention: {metadata: 2y}", "retention.metadata"),
        ("", "retention: {content: 'encrypted, 1d'}", "retention.content"),
        ("", "limits: {rpm: 601}", "limits.rpm"),
        ("", "limits: {eur_per_month: 500.01}", "limits.eur_per_month"),
        ("", "transparency: {art50_notice: none}", "transparency.art50_notice"),
        ("models: [m]", "models: [m, n]", "models"),
        ("purposes: [support]", "purposes: [marketing]", "purposes"),
        ("legal_basis: [contract]", "legal_basis: [consent]", "legal_basis"),
        ("data_classes: []", "data_classes: [health]", "data_classes"),
    ],
)
def test_a_project_that_loosens_is_refused_naming_the_rule(build, tenant_more, loosening, rule):
    with pytest.raises(LooseningError) as error:
        build(TENANT + tenant_more, PROJECT + loosening)
    assert error.value.rule == rule and str(error.value).startswith(rule)


def test_a_tenants_policy_must_say_where(build):
    with pytest.raises(
        PolicyDocumentError, match=r"residency\.store_in: this key is missing; add it to the tenant's policy"
    ):
        build("policy: p\nversion: 1\nresidency: {process_in: EU}")
    with pytest.raises(PolicyDocumentError, match=r"residency\.process_in"):
        build("policy: p\nversion: 1")


def test_a_project_keeps_the_dates_of_its_tenants_rule(build):
    rule = build(ADEQUATE, PROJECT + "residency: {process_in: [FR, GB]}").process_in
    assert rule.full["GB"][0][1].year == 2031
    partial = build(ADEQUATE, PROJECT + "residency: {process_in: EEA+adequate}").process_in
    assert set(partial.partial) == {"CA", "JP", "US"}


def test_naming_a_country_does_not_lift_the_attestation_it_needs(build, request_facts, backend):
    policy = build(ADEQUATE, PROJECT + "residency: {process_in: [US], store_in: [US]}")
    attestation = Attestation(basis="adequacy", country="US", reference="list", valid_from=date(2026, 1, 1))
    us = backend(compute_country="US", storage_country="US")
    assert not decide(policy, request_facts(us)).allowed
    assert decide(policy, request_facts(us.model_copy(update={"attested_transfer": (attestation,)}))).allowed


def test_the_hash_is_of_what_is_said_and_not_of_how_it_is_written():
    document = load_document(TENANT)
    rewritten = load_document(yaml.safe_dump(yaml.safe_load(TENANT), sort_keys=True))
    assert identity_of(document).hash == identity_of(rewritten).hash
    assert identity_of(document).hash != identity_of(load_document(TENANT.replace("rpm: 600", "rpm: 601"))).hash
    assert identity_of(document).hash != identity_of(document, load_document(PROJECT)).hash


def test_a_compiled_policy_cannot_be_changed(build):
    policy = build()
    with pytest.raises(AttributeError):
        policy.asked = None
    with pytest.raises(TypeError):
        policy.asked["models"] = None
    with pytest.raises(TypeError):
        policy.redaction.input["email"] = "tag"


selectors = st.sampled_from(
    ["EU", "EEA", "EEA+adequate", ["FR"], ["FR", "DE"], ["CH", "FR"], ["US"], ["IS", "NO", "SE"]]
)
labels = st.sampled_from(["email", "iban", "card"])
documents = st.fixed_dictionaries(
    {"residency": st.fixed_dictionaries({"process_in": selectors, "store_in": selectors}, optional={
        "operator": st.fixed_dictionaries({}, optional={"head_office": selectors, "ultimate_parent": selectors}),
        "transfer_basis": st.lists(st.sampled_from(["intra_eea", "adequacy"]), unique=True, min_size=1)})},
    optional={
        "redaction": st.fixed_dictionaries({"input": st.dictionaries(labels, st.sampled_from(sorted(STRICTNESS)))}),
        "models": st.sampled_from([["m"], ["m", "n"], ["n"]]),
        "purposes": st.sampled_from(["required", ["support"], ["marketing"]]),
        "limits": st.fixed_dictionaries({}, optional={"rpm": st.integers(1, 3)}),
    },
)  # fmt: skip


def _yaml(sections, name):
    return json.dumps({"policy": name, "version": 1, **sections})  # which is YAML


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tenant=documents,
    project=documents,
    place=st.sampled_from(["FR", "IS", "CH", "US", "DE"]),
    hq=st.sampled_from(["FR", "CH", "US"]),
    model=st.sampled_from(["m", "n"]),
)
def test_what_a_project_allows_its_tenant_allows_too(build, request_facts, backend, tenant, project, place, hq, model):
    try:
        both = build(_yaml(tenant, "t"), _yaml(project, "p"))
    except LooseningError:
        return
    alone = build(_yaml(tenant, "t"))
    facts = request_facts(
        backend(compute_country=place, storage_country=place, operator_hq=hq, ultimate_parent="X", models=("m", "n")),
        model=model,
    )
    if decide(both, facts).allowed:
        assert decide(alone, facts).allowed
    for label, action in alone.redaction.input.items():
        assert STRICTNESS[both.redaction.input[label]] >= STRICTNESS[action]
