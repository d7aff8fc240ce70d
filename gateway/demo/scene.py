"""Who plays in the demonstration: two tenants, their policies, projects and backends."""

from dataclasses import dataclass
from pathlib import Path

from gateway.database.errors import Duplicate
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation
from gateway.store.control.control import Control
from regions.fleet.fleet import Backend
from regions.fleet.launcher import BackendSpec
from regions.identity.identity import BackendIdentity

CELL = "demo"
MODEL_NAME = "smollm2-135m"
REGIONS = ("eu-fr-par", "eu-de-fra", "us-east")

ACME = """\
policy: acme-default
version: 1
residency:
  process_in: EEA
  store_in: EEA
  operator: {head_office: EEA, ultimate_parent: EEA}
  transfer_basis: [intra_eea]
redaction:
  input: {email: pseudonymise, iban: pseudonymise, phone: pseudonymise, card: mask, secret: block}
  output: {email: mask, iban: mask, phone: mask, card: mask}
retention: {metadata: 12mo, content: none}
limits: {rpm: 600, tpm: 200000}
transparency: {art50_notice: header}
tests:
  - {name: a US-owned host is refused, given: {operator_parent: US}, expect: deny}
"""
GLOBEX = """\
policy: globex-default
version: 1
residency:
  process_in: [FR, DE, US]
  store_in: [FR, DE, US]
  transfer_basis: [intra_eea, scc]
redaction:
  input: {secret: block}
retention: {metadata: 12mo, content: none}
"""
GLOBEX_PATIENTS = """\
policy: globex-patients
version: 1
residency:
  process_in: [FR, DE]
  store_in: [FR, DE]
  operator: {head_office: EEA, ultimate_parent: EEA}
redaction:
  input: {email: pseudonymise, national_id: block}
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """One a project; `patients` belongs to a project whose policy refuses its tenant's only backend."""

    acme: str
    globex: str
    patients: str


def identities() -> tuple[BackendIdentity, BackendIdentity]:
    return (
        BackendIdentity(CELL, "acme", "eu-fr-par", "acme-par-1"),
        BackendIdentity(CELL, "globex", "us-east", "globex-east-1"),
    )


def specs(model: Path) -> list[BackendSpec]:
    return [BackendSpec(identity, model, MODEL_NAME, options=("--max-num-seqs", "16")) for identity in identities()]


def set_up(installation: Installation) -> Keys:
    """Create what is not there yet, and new keys each time: keys are shown once."""
    database = installation.database()
    try:
        with recorded_admin(installation) as on_event:
            control = installation.control(database, actor="system", on_event=on_event)
            _tenant(control, "acme", "Acme Bank", ACME)
            _project(control, "acme", "support", "customer support")
            _tenant(control, "globex", "Globex Clinics", GLOBEX)
            _project(control, "globex", "website", "public website")
            _project(control, "globex", "patients", "patient letters", policy=GLOBEX_PATIENTS)
            return Keys(
                acme=control.create_key("acme", "support", label="demo")[1].token,
                globex=control.create_key("globex", "website", label="demo")[1].token,
                patients=control.create_key("globex", "patients", label="demo")[1].token,
            )
    finally:
        database.close()


def register(installation: Installation, backend: Backend) -> None:
    """Register the address of `backend`, for every gateway of the cell."""
    database = installation.database()
    try:
        with recorded_admin(installation) as on_event:
            control = installation.control(database, actor="system", on_event=on_event)
            control.register_backend(backend.identity, url=backend.url, models=backend.models)
    finally:
        database.close()


def _tenant(control: Control, tenant: str, name: str, policy: str) -> None:
    try:
        control.create_tenant(tenant, display_name=name)
    except Duplicate:
        return
    control.activate_policy(tenant, policy)


def _project(control: Control, tenant: str, project: str, purpose: str, policy: str | None = None) -> None:
    try:
        control.create_project(tenant, project, purpose=purpose, legal_basis="contract", risk_class="limited")
    except Duplicate:
        return
    if policy is not None:
        control.activate_policy(tenant, policy, project=project)
