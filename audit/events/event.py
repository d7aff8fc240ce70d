"""What the record can say: one frozen model an event.

No field may hold a personal value, a prompt or a key. Hence codes instead of free text wherever a request could carry
words in, and no floats (RFC 8785 numbers are exact only for integers up to 2**53 - 1). `docs/audit-format.md` gives
the meaning and the legal source of each field. When and where an event was recorded is its `audit.events.stamp`, not
here.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from audit.events.anchor import (
    AnchorLinked,
    CheckpointCosigned,
    CheckpointTimestamped,
    KeyAccepted,
    KeyGiven,
    KeyringChanged,
    KeyRotated,
    TimestampFailed,
    ocsf_of_entity,
)
from audit.events.base import (
    SYSTEM_TENANT,
    Actor,
    Blob,
    Code,
    Count,
    Country,
    Endpoint,
    Event,
    HttpStatus,
    Milliseconds,
    Ocsf,
    RecordRetention,
    Sentence,
    Sha256,
    Step,
    Strict,
    TenantId,
    Text,
)
from audit.events.incident import AuthorityRequest, Incident, Oversight
from audit.events.ocsf import API_ACTIVITY, AUTHENTICATION, CREATE, LOGON, MEDIUM, START, STOP
from audit.events.privacy import (
    AnswerChallenged,
    AnswerSaltDestroyed,
    AnswerSearched,
    BatchEvent,
    CheckpointAnchored,
    ContentAccessed,
    ContentReplayed,
    DsarAnswered,
    DsarRectified,
    DsarRequest,
    DsarRestricted,
    ErasureCompleted,
    ErasureRefused,
    ErasureRequested,
    FileEvent,
    LegalHold,
    LogExported,
    LogRead,
    MarkTested,
    ResponseEvent,
    ResponsesExpired,
    RetentionRun,
)
from audit.events.stamp import Timestamp

# --- parts -----------------------------------------------------------------------------------------------------------


class Reason(Strict):
    """One step of a decision, in the words that the client and `policy explain` also see."""

    rule: Text
    because: Sentence
    candidate: Text | None = None
    article: Text | None = None


class Decision(Strict):
    outcome: Literal["allow", "deny"]
    reasons: Annotated[tuple[Reason, ...], Field(strict=False)] = ()  # JSON has lists; the items stay strict


def _must_allow(decision: Decision) -> Decision:
    if decision.outcome != "allow":
        raise ValueError("only an allowed call can be accepted; record inference.denied")
    return decision


def _must_deny(decision: Decision) -> Decision:
    if decision.outcome != "deny":
        raise ValueError("only a refused call can be denied; record inference.accepted")
    return decision


class Redaction(Strict):
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
    countries_version: Text | None = None
    catalogue_version: Text | None = None
    redaction: Redaction | None = None
    retention_class: Code | None = None
    bytes_in: Count | None = None
    batch_id: Text | None = None  # of a line of a batch, which `batch_line` counts from 1
    batch_line: Count | None = None


class PrefillRoute(Strict):
    """The backend that computes the prompt of a call that another one answers, and under whose control it is."""

    backend_id: Text
    region: Text
    inference_country: Country
    storage_country: Country
    operator_entity: Text
    operator_hq: Country
    ultimate_parent: Text
    ultimate_parent_country: Country
    transfer_basis: Sentence


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
    subprocessors_version: Text | None = None
    transfer_basis: Sentence  # `intra_eea`, or the tool and its reference: `scc:<contract>`, `adequacy:<decision>`
    model_served: Text | None = None
    adapter_sha256: Sha256 | None = None  # of the weights of the adapter that the model is called with
    fallback_index: Count = 0
    prefill: PrefillRoute | None = None  # of the backend that computes the prompt, where that is another one


# --- inference -------------------------------------------------------------------------------------------------------


class InferenceAccepted(_Call, _Route):
    """The intent: durable before the first byte leaves for a backend."""

    step: ClassVar[Step] = Step.OPENS

    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["inference.accepted"] = "inference.accepted"
    decision: Annotated[Decision, AfterValidator(_must_allow)]
    art50_notice: Code | None = None


class InferenceDenied(_Call):
    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE).failed

    type: Literal["inference.denied"] = "inference.denied"
    decision: Annotated[Decision, AfterValidator(_must_deny)]
    status: HttpStatus


class _Reevaluated(Event):
    """What a later evaluation of an accepted call decided, present where it differs from the one before: by which
    policy, and why."""

    policy_id: Text | None = None
    policy_version: Text | None = None
    policy_hash: Sha256 | None = None
    countries_version: Text | None = None
    catalogue_version: Text | None = None
    decision: Decision | None = None


class RoutingDecision(_Route, _Reevaluated):
    """The call moves on to another backend, or goes to one under another decision: recorded before that one receives a
    byte. `redaction`: of the prompt, where it was prepared again."""

    step: ClassVar[Step] = Step.WITHIN

    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["routing.decision"] = "routing.decision"
    reason: Code
    decision: Annotated[Decision, AfterValidator(_must_allow)] | None = None
    redaction: Redaction | None = None


class AnswerPrints(Strict):
    """Fingerprints of the answer that the client received (`audit.log.answer_prints`), by which the answer is found
    again, and which say nothing without the tenant's salt of `period`. `letters`: letters and digits of the answer.
    `state`: why there are no `prints`, where there are none: it was too short, or held no text."""

    scheme: Code
    period: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}$")]
    state: Literal["stored", "short", "no_text"]
    letters: Count
    prints: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{16,256}$")] | None = None


class _Outcome(Event):
    request_id: Text
    status: HttpStatus | None = None
    model_served: Text | None = None
    backend_id: Text | None = None
    region: Text | None = None
    fallback_index: Count = 0
    prefill_backend_id: Text | None = None  # the backend that was to compute the prompt, where that is another one
    prefill_computed: Literal["elsewhere", "here"] | None = None  # there, or where it was answered
    weights_sha256: Sha256 | None = None  # of the checkpoint; absent where the backend has not shown it
    weights_source: Literal["computed", "declared"] | None = None
    tokens_in: Count | None = None
    tokens_cached: Count | None = None  # of `tokens_in`
    tokens_out: Count | None = None
    tokens_estimated: Literal[True] | None = None  # the answer was cut before the backend said
    bytes_in: Count | None = None
    bytes_out: Count | None = None
    backend_ms: Count | None = None
    energy_mj: Count | None = None  # as the backend measured it; absent where it does not
    ttft_ms: Count | None = None
    latency_ms: Count | None = None
    tool_calls_count: Count | None = None
    redaction: Redaction | None = None
    watermark: Code | None = None  # what came of the mark that policy demands; absent where it demands none
    mark_period: Text | None = None  # the month of the tenant's key that it was made with
    manifest: Code | None = None  # what came of the signed manifest that policy demands; absent where it demands none
    answer_prints: AnswerPrints | None = None  # where policy demands that the answer can be found again


class InferenceCompleted(_Outcome):
    """The answer: durable before its last chunk, or its body, leaves for the client. `fingerprint`: what the backend
    says it came from, its weights and how it computes. `response_id`: by which the project can ask for the answer
    again, where it is kept for that."""

    step: ClassVar[Step] = Step.CLOSES

    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["inference.completed"] = "inference.completed"
    finish_reason: Code | None = None
    fingerprint: Text | None = None
    response_id: Text | None = None


class InferenceAborted(_Outcome, _Reevaluated):
    """The call ended without a whole answer. The log itself gives the reasons crash, cancelled and unrecorded.
    `decision`: the refusal, where a later evaluation refused the call."""

    step: ClassVar[Step] = Step.CLOSES

    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE).failed

    type: Literal["inference.aborted"] = "inference.aborted"
    reason: Code
    decision: Annotated[Decision, AfterValidator(_must_deny)] | None = None


class BackendConnected(Event):
    """A new connection to a backend, and how that showed who it is: recorded before a request is sent on it.

    `peer_sha256`: of its certificate (DER); `peer_uri`: the identity in that, absent for servers that carry none.
    """

    kept: ClassVar[RecordRetention] = RecordRetention.CALL
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["routing.connected"] = "routing.connected"
    backend_id: Text
    region: Text
    kind: Code
    address: Text
    peer_sha256: Sha256
    peer_uri: Text | None = None
    tls_version: Text | None = None


class BackendKeyChanged(Event):
    """A managed service showed a certificate for another key than before, valid for its `name` under a public
    authority. ``refused``: nothing was sent to it; else it was recorded before a request was.

    `before` and `after`: SHA-256 of the public keys (SubjectPublicKeyInfo, DER).
    """

    kept: ClassVar[RecordRetention] = RecordRetention.SECURITY
    ocsf: ClassVar[Ocsf] = Ocsf(severity_id=MEDIUM)

    type: Literal["backend.key_changed", "backend.key_refused"]
    backend_id: Text
    region: Text
    name: Text
    issuer: Text
    before: Sha256
    after: Sha256


class BackendAttested(Event):
    """Evidence of a backend's hardware, for a nonce of ours: before it counts, and as it was sent, so that it can be
    checked again. ``refused``: `reason` says why it does not hold. Bound to `nonce`, to the TLS key and to the weights
    (`regions.evidence.attestation.binding`). `report` and `signature`: base64; `certificates`: PEM."""

    kept: ClassVar[RecordRetention] = RecordRetention.SECURITY
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["backend.attested", "backend.attestation_refused"]
    backend_id: Text
    region: Text
    technology: Code
    nonce: Sha256
    key_sha256: Sha256
    weights_sha256: Sha256
    measurement: Text | None = None
    reason: Sentence | None = None
    report: Blob | None = None
    signature: Blob | None = None
    certificates: Blob | None = None


# --- access and administration ---------------------------------------------------------------------------------------


class _Counted(Event):
    """`count` refusals of one kind between `since` and `until`. `client_ip` may be committed to: an object of caller
    addresses and how often each called."""

    reason: Code
    endpoint: Endpoint | None = None  # absent for a URL that is none of the API
    key_id: Text | None = None
    count: Count | None = None  # absent: one, as records before counts were kept
    since: Timestamp | None = None
    until: Timestamp | None = None


class AuthFailed(_Counted):
    """Callers who could not be authenticated. `key_id` only of a key that is or was real."""

    ocsf: ClassVar[Ocsf] = Ocsf(AUTHENTICATION, LOGON).failed

    type: Literal["auth.failed"] = "auth.failed"
    tenant: TenantId = SYSTEM_TENANT


class RequestRefused(_Counted):
    """Requests answered with an error before a decision or an intent was recorded, so that no other record counts
    them; in the tenant's tree where the caller was authenticated. `status` 499: the client left first."""

    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE).failed

    type: Literal["request.refused"] = "request.refused"
    project: Text | None = None
    status: HttpStatus


class AdminChanged(Event):
    """An administrator's change, recorded before it is committed. `before` and `after` are digests of the object's
    canonical JSON, absent where there was or is nothing; `epoch` is the configuration epoch the change makes."""

    is_access: ClassVar[bool] = True

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
        "admin.person.vouched",
        "admin.session.opened",
        "admin.session.closed",
        "admin.token.created",
        "admin.token.revoked",
        "admin.policy.submitted",
        "admin.policy.approved",
        "admin.policy.approval_refused",
        "admin.policy.scheduled",
        "admin.policy.activated",
        "admin.policy.withdrawn",
        "admin.backend.registered",
        "admin.backend.key_accepted",
        "admin.backend.revoked",
        "admin.origins.changed",
        "admin.limits.changed",
        "admin.model_name.created",
        "admin.model_name.changed",
        "admin.model_name.deleted",
        "admin.adapter.created",
        "admin.adapter.deleted",
        "admin.price.set",
        "admin.cell.registered",
        "admin.cell.allowed",
        "admin.cell.forbidden",
        "admin.bundle.applied",
        "admin.deployment.created",
        "admin.deployment.scaled",
        "admin.deployment.drained",
        "admin.deployment.put_to_sleep",
        "admin.deployment.woken",
        "admin.deployment.pinned",
        "admin.deployment.deleted",
        "admin.replica.starting",
        "admin.replica.ready",
        "admin.replica.asleep",
        "admin.replica.draining",
        "admin.replica.stopped",
        "admin.replica.failed",
    ]
    actor: Actor
    target: Text
    project: Text | None = None
    before: Sha256 | None = None
    after: Sha256 | None = None
    epoch: Count
    detail: dict[Code, Text] = Field(default_factory=dict)

    @classmethod
    def kept_as(cls, kind: str) -> RecordRetention:
        return RecordRetention.GOVERNANCE if kind.startswith("admin.policy.") else RecordRetention.SECURITY

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        return ocsf_of_entity(kind)


class ModelChanged(Event):
    """What answers is not what answered before (AI Act 12(2)(a), 3(23)): `what` changed of it, by digest where it has
    one. `substantial` is the provider's judgement that it makes a new conformity assessment due."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["model.changed"] = "model.changed"
    actor: Actor
    model: Text
    what: Code
    backend_id: Text | None = None
    ai_system_id: Text | None = None
    before: Sha256 | None = None
    after: Sha256 | None = None
    substantial: bool = False


# --- the log itself --------------------------------------------------------------------------------------------------


class SystemStart(Event):
    ocsf: ClassVar[Ocsf] = Ocsf(activity_id=START)

    type: Literal["system.start"] = "system.start"
    tenant: TenantId = SYSTEM_TENANT
    orphans_closed: Count
    build: Text | None = None


class SystemStop(Event):
    ocsf: ClassVar[Ocsf] = Ocsf(activity_id=STOP)

    type: Literal["system.stop"] = "system.stop"
    tenant: TenantId = SYSTEM_TENANT


class SettingsReloaded(Event):
    """A running gateway took over changed settings. Names alone: `applied`, and `pending` until it is restarted."""

    type: Literal["system.reloaded"] = "system.reloaded"
    tenant: TenantId = SYSTEM_TENANT
    applied: Annotated[tuple[Code, ...], Field(strict=False)] = ()
    pending: Annotated[tuple[Code, ...], Field(strict=False)] = ()


class SystemSelftest(Event):
    """A probe's durable write; or, with `check`, whether a regular test of a safeguard passed (GDPR 32(1)(d))."""

    type: Literal["system.selftest"] = "system.selftest"
    tenant: TenantId = SYSTEM_TENANT
    check: Code | None = None
    passed: bool | None = None


class SystemClock(Event):
    """How far the node's clock is from its source, as the kernel knows it (ISO 27001 A.8.17; DORA RTS 2024/1774 12)."""

    type: Literal["system.clock"] = "system.clock"
    tenant: TenantId = SYSTEM_TENANT
    synchronised: bool
    offset_ms: Milliseconds
    max_error_ms: Count


class SigningDelayed(Event):
    """Trees could not be signed for `seconds`: the signer was out of reach. Recorded once the time exceeds what is
    allowed, and again with `resumed` when they are signed."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["system.signing_delayed"] = "system.signing_delayed"
    tenant: TenantId = SYSTEM_TENANT
    seconds: Count
    resumed: bool


class AuditDegraded(Event):
    """From here on new intents are refused; only calls already running are closed, out of the reserve."""

    ocsf: ClassVar[Ocsf] = Ocsf().failed

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
    | BackendConnected
    | BackendKeyChanged
    | BackendAttested
    | AuthFailed
    | RequestRefused
    | AdminChanged
    | LegalHold
    | ErasureRequested
    | ErasureRefused
    | ErasureCompleted
    | RetentionRun
    | DsarAnswered
    | DsarRectified
    | DsarRequest
    | DsarRestricted
    | ContentAccessed
    | AnswerChallenged
    | ContentReplayed
    | LogRead
    | MarkTested
    | AnswerSearched
    | AnswerSaltDestroyed
    | LogExported
    | KeyRotated
    | KeyringChanged
    | KeyGiven
    | KeyAccepted
    | CheckpointAnchored
    | CheckpointTimestamped
    | CheckpointCosigned
    | AnchorLinked
    | TimestampFailed
    | ModelChanged
    | FileEvent
    | ResponseEvent
    | ResponsesExpired
    | BatchEvent
    | Oversight
    | Incident
    | AuthorityRequest
    | SystemStart
    | SystemStop
    | SettingsReloaded
    | SystemSelftest
    | SystemClock
    | SigningDelayed
    | AuditDegraded
    | AuditRestored,
    Field(discriminator="type"),
]
