"""What the record can say: one frozen model an event.

No field may hold a personal value, a prompt or a key. Hence codes instead of free text wherever a request could carry
words in, and no floats (RFC 8785 numbers are exact only for integers up to 2**53 - 1). `docs/audit-format.md` gives
the meaning and the legal source of each field. When and where an event was recorded is its `audit.stamp`, not here.
"""

from enum import Enum
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from audit.canonical import MAX_INTEGER
from audit.stamp import Timestamp, Uuid7

SYSTEM_TENANT = "_system"
"""The tree of events that belong to no tenant."""
ANCHOR_TENANT = "_anchor"
"""The tree that vouches for the checkpoints of all others."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Code = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]
TenantId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_-]{0,62}$")]
Country = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]  # ISO 3166-1 alpha-2
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Actor = Annotated[str, StringConstraints(pattern=r"^(system|cli|key:[A-Za-z0-9_-]{1,64})$")]
"""Who did it, if no person: a person appears only as a commitment."""
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
HttpStatus = Annotated[int, Field(ge=100, le=599)]
Endpoint = Annotated[str, StringConstraints(pattern=r"^/[a-z0-9/_{}-]{0,127}$")]


class Step(Enum):
    """Where an event stands in the life of a request."""

    NONE = "none"  # stands alone
    OPENS = "opens"  # the intent, written ahead of the call
    WITHIN = "within"  # needs its intent to be open
    CLOSES = "closes"  # the one outcome of an intent


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Event(_Model):
    step: ClassVar[Step] = Step.NONE

    type: str
    tenant: TenantId
    request_id: Text | None = None
    commits: dict[Code, Sha256] | None = None


# --- parts -----------------------------------------------------------------------------------------------------------


class Reason(_Model):
    """One step of a decision, in the words that the client and `policy explain` also see."""

    rule: Text
    because: Sentence
    candidate: Text | None = None
    article: Text | None = None


class Decision(_Model):
    outcome: Literal["allow", "deny"]
    reasons: Annotated[tuple[Reason, ...], Field(strict=False)] = ()  # JSON has lists; the items stay strict


def _must_allow(decision: Decision) -> Decision:
    if decision.outcome != "allow":
        raise ValueError("only an allowed call can be accepted")
    return decision


def _must_deny(decision: Decision) -> Decision:
    if decision.outcome != "deny":
        raise ValueError("only a refused call can be denied")
    return decision


class Redaction(_Model):
    """How often each kind was found and treated; never what was found."""

    engine_version: Text
    counts_by_type: dict[Code, Count]
    profile: Text | None = None


class _Call(Event):
    """What is known of a call before it goes anywhere (AI Act 12, 19; GDPR 30)."""

    request_id: Text
    trace_id: Text | None = None
    key_id: Text
    project: Text
    activity_id: Text | None = None
    ai_system_id: Text | None = None
    risk_class: Code | None = None
    endpoint: Endpoint
    stream: bool
    model_requested: Text
    policy_id: Text | None = None
    policy_version: Text | None = None
    policy_hash: Sha256 | None = None
    redaction: Redaction | None = None
    retention_class: Code | None = None
    bytes_in: Count | None = None


class _Route(Event):
    """Where a call goes and under whose control: the four facts of residency (GDPR 28, 30, 44-49)."""

    request_id: Text
    backend_id: Text
    region: Text
    inference_country: Country
    storage_country: Country
    operator_entity: Text
    operator_hq: Country
    ultimate_parent: Text
    ultimate_parent_country: Country
    transfer_basis: Sentence  # `intra_eea`, or the tool and its reference: `scc:<contract>`, `adequacy:<decision>`
    model_served: Text | None = None
    fallback_index: Count = 0


# --- inference -------------------------------------------------------------------------------------------------------


class InferenceAccepted(_Call, _Route):
    """The intent: durable before the first byte leaves for a backend."""

    step: ClassVar[Step] = Step.OPENS

    type: Literal["inference.accepted"] = "inference.accepted"
    decision: Annotated[Decision, AfterValidator(_must_allow)]
    art50_notice: Code | None = None


class InferenceDenied(_Call):
    type: Literal["inference.denied"] = "inference.denied"
    decision: Annotated[Decision, AfterValidator(_must_deny)]
    status: HttpStatus


class RoutingDecision(_Route):
    """The call moves on to another backend: recorded before that one receives a byte."""

    step: ClassVar[Step] = Step.WITHIN

    type: Literal["routing.decision"] = "routing.decision"
    reason: Code


class _Outcome(Event):
    request_id: Text
    status: HttpStatus | None = None
    model_served: Text | None = None
    backend_id: Text | None = None
    region: Text | None = None
    fallback_index: Count = 0
    tokens_in: Count | None = None
    tokens_out: Count | None = None
    bytes_in: Count | None = None
    bytes_out: Count | None = None
    ttft_ms: Count | None = None
    latency_ms: Count | None = None
    tool_calls_count: Count | None = None
    redaction: Redaction | None = None


class InferenceCompleted(_Outcome):
    """The answer: durable before its last chunk, or its body, leaves for the client."""

    step: ClassVar[Step] = Step.CLOSES

    type: Literal["inference.completed"] = "inference.completed"
    finish_reason: Code | None = None


class InferenceAborted(_Outcome):
    """The call ended without a whole answer. The log itself gives the reasons crash, cancelled and unrecorded."""

    step: ClassVar[Step] = Step.CLOSES

    type: Literal["inference.aborted"] = "inference.aborted"
    reason: Code


# --- access and administration ---------------------------------------------------------------------------------------


class AuthFailed(Event):
    type: Literal["auth.failed"] = "auth.failed"
    tenant: TenantId = SYSTEM_TENANT
    reason: Code
    key_id: Text | None = None
    endpoint: Endpoint | None = None


class AdminChanged(Event):
    """An administrator's change, recorded before it is committed. `before` and `after` are digests of the object's
    canonical JSON, absent where there was or is nothing; `epoch` is the configuration epoch the change makes."""

    type: Literal[
        "admin.tenant.created",
        "admin.tenant.revoked",
        "admin.project.created",
        "admin.project.revoked",
        "admin.key.created",
        "admin.key.rotated",
        "admin.key.revoked",
        "admin.person.created",
        "admin.person.changed",
        "admin.person.revoked",
        "admin.token.created",
        "admin.token.revoked",
        "admin.policy.activated",
        "admin.backend.registered",
        "admin.backend.revoked",
    ]
    actor: Actor
    target: Text
    project: Text | None = None
    before: Sha256 | None = None
    after: Sha256 | None = None
    epoch: Count
    detail: dict[Code, Text] = Field(default_factory=dict)


# --- private values: what became of them ----------------------------------------------------------------------------

Scope = Literal["subject", "records", "tenant"]
KeyIds = Annotated[tuple[Uuid7, ...], Field(strict=False, max_length=64)]


class LegalHold(Event):
    """While it stands nothing within its scope is deleted: a subject (`key_ids`), records `first` to `last`, or all."""

    type: Literal["legal_hold.placed", "legal_hold.released"]
    hold_id: Uuid7
    scope: Scope
    actor: Actor
    reason: Code
    key_ids: KeyIds = ()
    first: Count | None = None
    last: Count | None = None


class ErasureRequested(Event):
    type: Literal["erasure.requested"] = "erasure.requested"
    erasure_id: Uuid7
    scope: Scope
    actor: Actor
    reason: Code


class ErasureRefused(Event):
    """A legal hold stands in the way (GDPR 17(3)); nothing was deleted."""

    type: Literal["erasure.refused"] = "erasure.refused"
    erasure_id: Uuid7
    hold_ids: KeyIds


class ErasureCompleted(Event):
    """Keys, salts and ciphertexts are gone. `key_ids` names at most 64 of the `keys` destroyed keys; the certificate
    whose body has this SHA-256 names them all, and every record and field concerned."""

    type: Literal["erasure.completed"] = "erasure.completed"
    erasure_id: Uuid7
    scope: Scope
    records: Count
    values: Count
    keys: Count
    key_ids: KeyIds
    backups_until: Timestamp
    certificate_sha256: Sha256


class RetentionRun(Event):
    """Values whose time is over were deleted, but for those on hold; certified like an erasure if there were any."""

    type: Literal["retention.run"] = "retention.run"
    run_id: Uuid7
    due: Count
    deleted: Count
    held: Count
    orphans: Count
    oldest_expiry: Timestamp | None = None
    backups_until: Timestamp | None = None
    certificate_sha256: Sha256 | None = None


class DsarAnswered(Event):
    """A person was given a copy of what is kept (GDPR 15); SHA-256 of the package in canonical form."""

    type: Literal["dsar.answered"] = "dsar.answered"
    dsar_id: Uuid7
    actor: Actor
    key_id: Uuid7
    records: Count
    values: Count
    package_sha256: Sha256


class DsarRectified(Event):
    """The values it commits to take the place of those of record `supersedes_seq`, which stay as they were."""

    type: Literal["dsar.rectified"] = "dsar.rectified"
    actor: Actor
    supersedes_seq: Count


class DsarRestricted(Event):
    """From here on (`dsar.unrestricted`: no longer) what is under the key is kept, but used for nothing."""

    type: Literal["dsar.restricted", "dsar.unrestricted"]
    actor: Actor
    key_id: Uuid7


class ContentAccessed(Event):
    """Somebody was shown values of a record; durable before they were."""

    type: Literal["content.accessed"] = "content.accessed"
    actor: Actor
    seq: Count
    fields: Annotated[tuple[Code, ...], Field(strict=False)]
    reason: Code


class LogExported(Event):
    """An evidence pack of records `first` up to but not including `end` was made."""

    type: Literal["log.exported"] = "log.exported"
    pack_id: Uuid7
    actor: Actor
    first: Count
    end: Count


class CheckpointAnchored(Event):
    """The SHA-256 of a checkpoint's text, in the tree `_anchor`. It names no tenant: anybody may see it."""

    type: Literal["checkpoint.anchored"] = "checkpoint.anchored"
    tenant: TenantId = ANCHOR_TENANT
    checkpoint_sha256: Sha256


# --- the log itself --------------------------------------------------------------------------------------------------


class SystemStart(Event):
    type: Literal["system.start"] = "system.start"
    tenant: TenantId = SYSTEM_TENANT
    orphans_closed: Count
    build: Text | None = None


class SystemStop(Event):
    type: Literal["system.stop"] = "system.stop"
    tenant: TenantId = SYSTEM_TENANT


class SystemSelftest(Event):
    """A probe's durable write."""

    type: Literal["system.selftest"] = "system.selftest"
    tenant: TenantId = SYSTEM_TENANT


class AuditDegraded(Event):
    """From here on new intents are refused; only calls already running are closed, out of the reserve."""

    type: Literal["system.audit_degraded"] = "system.audit_degraded"
    tenant: TenantId = SYSTEM_TENANT
    reason: Code


class AuditRestored(Event):
    """The log keeps records again after it could not, or not fully; `refused` appends were turned away meanwhile."""

    type: Literal["system.audit_restored"] = "system.audit_restored"
    tenant: TenantId = SYSTEM_TENANT
    refused: Count


AnyEvent = Annotated[
    InferenceAccepted
    | InferenceDenied
    | RoutingDecision
    | InferenceCompleted
    | InferenceAborted
    | AuthFailed
    | AdminChanged
    | LegalHold
    | ErasureRequested
    | ErasureRefused
    | ErasureCompleted
    | RetentionRun
    | DsarAnswered
    | DsarRectified
    | DsarRestricted
    | ContentAccessed
    | LogExported
    | CheckpointAnchored
    | SystemStart
    | SystemStop
    | SystemSelftest
    | AuditDegraded
    | AuditRestored,
    Field(discriminator="type"),
]
