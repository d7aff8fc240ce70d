from datetime import UTC, datetime

import pytest

from policy.decision.compile import compile_policy
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.facts import BackendFacts, RequestFacts

TENANT = """
policy: acme-default
version: 3
residency:
  process_in: EEA
  store_in: [FR, DE]
  operator: {head_office: EEA, ultimate_parent: EEA}
  transfer_basis: [intra_eea]
redaction:
  input: {iban: pseudonymise, national_id: block, email: pseudonymise, secret: block}
  output: {iban: mask, email: mask}
retention:
  metadata: 12mo
  content: none
limits: {rpm: 600, tpm: 200000, eur_per_month: 500}
transparency: {art50_notice: header}
tests:
  - {name: US-owned host is refused, given: {operator_parent: US}, expect: deny}
"""
ADEQUATE = """
policy: wide
version: 1
residency: {process_in: EEA+adequate, store_in: EEA+adequate, transfer_basis: [intra_eea, adequacy, scc]}
"""


@pytest.fixture
def countries():
    return builtin_countries()


@pytest.fixture
def build(countries):
    """Compile a tenant's YAML, and a project's if given."""

    def compiled(tenant=TENANT, project=None):
        return compile_policy(load_document(tenant), load_document(project) if project else None, countries)

    return compiled


@pytest.fixture
def backend():
    """A French backend of a French operator, changed as asked."""

    def facts(**changes):
        base = {
            "backend_id": "eu-fr-par/acme-1",
            "tenant": "acme",
            "region": "eu-fr-par",
            "compute_country": "FR",
            "storage_country": "FR",
            "operator": "Nuage SA",
            "operator_hq": "FR",
            "ultimate_parent": "Nuage SA",
            "parent_country": "FR",
            "models": ("m",),
        }
        return BackendFacts(**{**base, **changes})

    return facts


@pytest.fixture
def request_facts(backend):
    def facts(*candidates, **changes):
        base = dict(
            tenant="acme",
            project="shop",
            model="m",
            at=datetime(2026, 11, 27, 12, tzinfo=UTC),
            purpose="support",
            legal_basis="contract",
            risk_class="limited",
            candidates=candidates or (backend(),),
        )
        return RequestFacts(**{**base, **changes})

    return facts
