"""What the control store says of its rows: frozen values that cross boundaries. None holds a key or its hash."""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

LegalBasis = Literal[
    "consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"
]
"""GDPR 6(1)(a) to (f)."""

RiskClass = Literal["minimal", "limited", "high"]
"""AI Act: what is prohibited (Art. 5) has no class here."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    cell: str
    created_at: datetime

    def digest(self) -> str:
        """SHA-256 of the record's canonical JSON (RFC 8785): what an admin event says was there before and after."""
        return sha256(rfc8785.dumps(self.model_dump(mode="json"))).hexdigest()


class TenantRecord(Record):
    id: str
    display_name: str
    revoked_at: datetime | None


class ProjectRecord(Record):
    tenant: str
    id: str
    purpose: str
    legal_basis: LegalBasis
    data_classes: tuple[str, ...]
    risk_class: RiskClass
    ai_system_id: str | None
    revoked_at: datetime | None


class Scopes(BaseModel):
    """What a key may be used for. ``None`` sets no bound; an empty tuple allows nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None

    def allows(self, *, model: str, endpoint: str) -> bool:
        """`endpoint` as in ``chat/completions``."""
        return (self.models is None or model in self.models) and (self.endpoints is None or endpoint in self.endpoints)


UNBOUNDED = Scopes()


class KeyRecord(Record):
    id: str
    tenant: str
    project: str
    label: str
    last_four: str
    scopes: Scopes
    expires_at: datetime | None
    revoked_at: datetime | None


class PolicyVersionRecord(Record):
    """`project` is None for the tenant's own document."""

    tenant: str
    project: str | None
    number: int
    sha256: str
    document: str
    active: bool
    activated_by: str


class BackendRecord(Record):
    id: str
    tenant: str
    region: str
    url: str
    uri: str
    models: tuple[str, ...]
    revoked_at: datetime | None


class AdminEvent(BaseModel):
    """One administrator's change, offered to the record before it is committed.

    `action` reads ``<what>.<done>``; `target` names the object within `tenant`. `before` and `after` are record
    digests, None where there was or is nothing. `epoch` is the configuration epoch the change makes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal[
        "tenant.created",
        "tenant.revoked",
        "project.created",
        "project.revoked",
        "key.created",
        "key.revoked",
        "policy.activated",
        "backend.registered",
        "backend.revoked",
    ]
    cell: str
    tenant: str
    project: str | None = None
    target: str
    actor: str
    at: datetime
    before: str | None
    after: str | None
    epoch: int
    detail: Mapping[str, str] = Field(default_factory=dict)
