"""Immutable records returned by the control store. None contains a key or the hash of a key."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated, ClassVar, Literal

import rfc8785
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from regions.identity.trust import Trust

LegalBasis = Literal[
    "consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"
]
"""GDPR 6(1)(a) to (f)."""

RiskClass = Literal["minimal", "limited", "high"]
"""Risk classes of the AI Act. Prohibited practices (Art. 5) have none."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    cell: str
    created_at: datetime

    undigested: ClassVar[frozenset[str]] = frozenset()
    """What is observed rather than configured, and what is personal: a bare hash of a name can be guessed."""

    def digest(self) -> str:
        """SHA-256 of the record's canonical JSON (RFC 8785), used in admin events for the row before and after."""
        return sha256(rfc8785.dumps(self.model_dump(mode="json", exclude=set(self.undigested)))).hexdigest()


class TenantRecord(Record):
    id: str
    display_name: str
    revoked_at: datetime | None


Origins = Annotated[tuple[str, ...], BeforeValidator(lambda value: () if value is None else value)]


class ProjectRecord(Record):
    """A project. `origins`: web origins whose scripts may call the API for it (Fetch Standard, CORS)."""

    tenant: str
    id: str
    purpose: str
    legal_basis: LegalBasis
    data_classes: tuple[str, ...]
    risk_class: RiskClass
    ai_system_id: str | None
    origins: Origins = ()
    revoked_at: datetime | None


def _network(value: object) -> IPv4Network | IPv6Network:
    """Parse a network from text only: `ipaddress` also accepts numbers, booleans and pairs, and reads ``true`` as
    0.0.0.1/32."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            return ip_network(value)
    raise ValueError("this is not a network; give one in CIDR notation without host bits, such as 10.0.0.0/8")


Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class Scopes(BaseModel):
    """Restrictions of a key. ``None`` restricts nothing; an empty tuple allows nothing.

    `regions`: regions that may process its calls, among those that the policy allows. `networks`: IPv4 and IPv6
    networks that callers may have their address in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    networks: tuple[Network, ...] | None = None

    def allows(self, *, model: str, endpoint: str) -> bool:
        """Whether a call of that model and endpoint is allowed. endpoint: for example ``chat/completions``."""
        return (self.models is None or model in self.models) and (self.endpoints is None or endpoint in self.endpoints)

    def allows_region(self, region: str | None) -> bool:
        return self.regions is None or region in self.regions

    def allows_address(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Whether a caller's address is allowed. An unknown address is in no network; ``::ffff:10.0.0.1`` counts as
        10.0.0.1."""
        if self.networks is None:
            return True
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address is not None and any(address in network for network in self.networks)


UNBOUNDED = Scopes()


class KeyRecord(Record):
    """An API key. `replaced_by`: its successor after a rotation."""

    undigested = frozenset({"last_used_at"})

    id: str
    tenant: str
    project: str
    label: str
    last_four: str
    scopes: Scopes
    expires_at: datetime | None
    replaced_by: str | None
    last_used_at: datetime | None
    revoked_at: datetime | None


Role = Literal["operator", "tenant-admin", "developer", "dpo", "auditor", "billing"]


class PersonRecord(Record):
    """A person. `tenant` is None for the operator's staff, whose roles apply in every tenant.

    `federated`: the person logs in through the identity provider, and its groups determine the roles at each login.
    `vouched_by`: id of the second person who vouched for this one, ``cli`` for the host's shell.
    """

    undigested = frozenset({"display_name"})

    id: str
    tenant: str | None
    display_name: str
    roles: tuple[Role, ...]
    federated: bool = False
    vouched_by: str | None = None
    vouched_at: datetime | None = None
    revoked_at: datetime | None


class AccessTokenRecord(Record):
    """A token of the admin API. `person` is None for a bootstrap token. `authenticated_at`: for a session, the time of
    the last authentication; None where it is unknown, and for other tokens."""

    undigested = frozenset({"label"})

    id: str
    person: str | None
    label: str
    last_four: str
    expires_at: datetime
    revoked_at: datetime | None
    authenticated_at: datetime | None = None


class PolicyVersionRecord(Record):
    """A version of a policy. `project` is None for the tenant's document; `tenant` is None for the operator's."""

    tenant: str | None
    project: str | None
    number: int
    sha256: str
    document: str
    active: bool
    activated_by: str


class PolicyProposalRecord(Record):
    """A proposed policy. `project` is None for the tenant's document; `tenant` is None for the operator's.

    People are given by id. `activates_at`: start of a scheduled activation, None for immediate activation. `version`:
    the version that was created from it.
    """

    tenant: str | None
    project: str | None
    number: int
    sha256: str
    document: str
    submitted_by: str
    approved_by: str | None
    approved_at: datetime | None
    activates_at: datetime | None
    version: int | None
    withdrawn_at: datetime | None
    withdrawn_because: str | None

    @property
    def state(self) -> Literal["submitted", "approved", "scheduled", "active", "withdrawn"]:
        """State of the proposal. ``active``: it was activated; a later version may have replaced it since."""
        if self.withdrawn_at is not None:
            return "withdrawn"
        if self.version is not None:
            return "active"
        if self.activates_at is not None:
            return "scheduled"
        return "approved" if self.approved_by is not None else "submitted"


class BackendRecord(Record):
    """A backend. `cost`: micro-euros per million tokens, None if unknown. `weights_sha256`: digest of the checkpoint
    that Domicile's engine is required to run; for another server, the declared digest. `role`: what it does where
    prefill and decode are on backends of their own; `transfer`: where one for prompts listens for the others."""

    id: str
    tenant: str
    region: str
    url: str
    uri: str
    models: tuple[str, ...]
    kind: Literal["domicile", "openai", "managed"] = "domicile"
    single_tenant: Literal["attested", "declared"] | None = None
    trust: Trust | None = None
    cost: int | None = None
    weights_sha256: str | None = None
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    transfer: str | None = None
    revoked_at: datetime | None


class AdminEvent(BaseModel):
    """An administrative change, written to the audit record before it is committed.

    `action` has the form ``<object>.<verb>``; `target` names the object within `tenant`. `before` and `after` are
    record digests, None where the object does not exist. `epoch`: configuration epoch after the change. `models`: for a
    change of a backend, the models that it has ``deployed``, ``withdrawn`` or ``moved``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal[
        "tenant.created",
        "tenant.revoked",
        "project.created",
        "project.revoked",
        "key.created",
        "key.rotated",
        "key.revoked",
        "person.created",
        "person.changed",
        "person.revoked",
        "person.vouched",
        "session.opened",
        "session.closed",
        "token.created",
        "token.revoked",
        "policy.submitted",
        "policy.approved",
        "policy.approval_refused",
        "policy.scheduled",
        "policy.activated",
        "policy.withdrawn",
        "backend.registered",
        "backend.key_accepted",
        "backend.revoked",
        "origins.changed",
        "limits.changed",
        "model_name.created",
        "model_name.changed",
        "model_name.deleted",
        "adapter.created",
        "adapter.deleted",
        "price.set",
        "cell.registered",
        "cell.allowed",
        "cell.forbidden",
        "bundle.applied",
        "oversight.stopped",
        "oversight.resumed",
        "deployment.created",
        "deployment.scaled",
        "deployment.drained",
        "deployment.put_to_sleep",
        "deployment.woken",
        "deployment.pinned",
        "deployment.deleted",
        "replica.starting",
        "replica.ready",
        "replica.asleep",
        "replica.draining",
        "replica.stopped",
        "replica.failed",
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
    models: Mapping[str, Literal["deployed", "withdrawn", "moved"]] = Field(default_factory=dict)
