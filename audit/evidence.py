"""What a pack needs to know and no record says: who is responsible, which registers and policy texts were in force.

Whoever runs the log fills this in from its own registers (a JSON file, or `evidence_sources`); what is not filled in is
left empty in the pack and said to be. Where a record holds the fact, the record is what the pack tells.
"""

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from audit.errors import AuditError
from audit.event_base import Country, Sha256
from audit.untrusted_file import read_untrusted


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Party(_Entry):
    """GDPR 30(1)(a), 30(2)(a)."""

    name: str = ""
    contact: str = ""
    dpo: str = ""
    lei: str = ""


class Activity(_Entry):
    """A processing activity (GDPR 30(1)(b), (c))."""

    id: str
    purpose: str = ""
    legal_basis: str = ""
    data_classes: tuple[str, ...] = ()
    subject_categories: tuple[str, ...] = ()
    risk_class: str = ""
    ai_system_id: str = ""


class Operator(_Entry):
    """Who controls backends, and who controls them (GDPR 28(4), 30(1)(d); DORA 28(3); C5 BC-01)."""

    id: str
    entity: str
    head_office: Country
    ultimate_parent: str
    parent_country: Country
    lei: str = ""
    valid_from: str = ""
    valid_to: str = ""
    source: str = ""


class Subprocessor(_Entry):
    """GDPR 28(2), (4)."""

    operator: str
    name: str
    country: str = ""
    valid_from: str = ""
    valid_to: str = ""


class Backend(_Entry):
    """One replica of the tenant: where it computes and stores."""

    id: str
    region: str
    region_name: str = ""
    compute_country: str = ""
    storage_country: str = ""
    operator: str = ""
    models: tuple[str, ...] = ()
    identity: str = ""
    registered_at: str = ""
    revoked_at: str = ""


OPERATOR_SCOPE = "_operator"
"""Of the document that the operator puts above all tenants; no project can be called so."""


class Policy(_Entry):
    """One version of a policy; `scope` is the tenant's own (empty), a project's, or OPERATOR_SCOPE. SHA-256 of
    `text`. In force from `activated_at` until the next number of its scope."""

    scope: str = ""
    number: int
    sha256: Sha256
    text: str
    activated_by: str
    activated_at: str
    active: bool


class Part(_Entry):
    """A version of `Policy`, by its scope and number."""

    scope: str
    number: int
    sha256: Sha256


class Ruling(_Entry):
    """What versions that were in force together make: the policy that calls name by `policy_hash`.

    `canonical` is the RFC 8785 text that this is the SHA-256 of; empty where it cannot be had any more.
    """

    policy_hash: Sha256
    policy_id: str
    policy_version: str
    canonical: str
    made_of: tuple[Part, ...]


class Evidence(_Entry):
    """All of it, of one tenant. `measures` are the security measures of GDPR 32(1) in words."""

    catalogue_version: str = ""
    controller: Party = Party()
    processor: Party = Party()
    activities: tuple[Activity, ...] = ()
    operators: tuple[Operator, ...] = ()
    subprocessors: tuple[Subprocessor, ...] = ()
    backends: tuple[Backend, ...] = ()
    policies: tuple[Policy, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    measures: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> "Evidence":
        """From a JSON file. Raises AuditError if it is not of this form."""
        try:
            return cls.model_validate_json(read_untrusted(path, MAX_EVIDENCE, follow_links=True))
        except (OSError, ValidationError) as error:
            raise AuditError(f"the evidence in {path.name} cannot be read: {error}") from error


MAX_EVIDENCE = 256 << 20
"""Bytes of a file of registers, with every version of every policy."""

Source = Callable[[Path, str], Evidence]
"""From a data folder and a tenant."""

evidence_sources: list[Source] = []
"""What `domicile audit export` asks where no file is given; the program that composes the commands adds its own."""


def evidence_of(data: Path, tenant: str) -> Evidence:
    """What the first source says, empty if there is none."""
    return next((source(data, tenant) for source in evidence_sources), Evidence())
