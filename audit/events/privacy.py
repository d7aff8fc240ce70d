"""Events about private values: what was read, kept, corrected and erased, and on whose word (GDPR 15 to 18, 30)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from audit.events.base import (
    ANCHOR_TENANT,
    Actor,
    Code,
    Count,
    Endpoint,
    Event,
    Ocsf,
    RecordRetention,
    Sha256,
    TenantId,
    Text,
)
from audit.events.ocsf import API_ACTIVITY, CREATE, DELETE, OTHER, READ
from audit.events.stamp import Timestamp, Uuid7

Scope = Literal["subject", "records", "tenant"]
KeyIds = Annotated[tuple[Uuid7, ...], Field(strict=False, max_length=64)]


class LegalHold(Event):
    """While it is in force, nothing within its scope is deleted: a subject (`key_ids`), records `first` to `last`, or
    all."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["legal_hold.placed", "legal_hold.released"]
    hold_id: Uuid7
    scope: Scope
    actor: Actor
    reason: Code
    key_ids: KeyIds = ()
    first: Count | None = None
    last: Count | None = None


class ErasureRequested(Event):
    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["erasure.requested"] = "erasure.requested"
    erasure_id: Uuid7
    scope: Scope
    actor: Actor
    reason: Code


class ErasureRefused(Event):
    """A legal hold prevents the erasure (GDPR 17(3)); nothing was deleted."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.PROOF
    ocsf: ClassVar[Ocsf] = Ocsf().failed

    type: Literal["erasure.refused"] = "erasure.refused"
    erasure_id: Uuid7
    hold_ids: KeyIds


class ErasureCompleted(Event):
    """Keys, salts and ciphertexts are gone. `key_ids` names at most 64 of the `keys` destroyed keys; the certificate
    whose body has this SHA-256 names them all, and every record and field concerned."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.PROOF
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, DELETE)

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
    """What is over its time was deleted, but for what is on hold; certified like an erasure if there was any.

    `due`, `deleted` and `held` count private values, `expired_records` and `held_records` whole records whose content
    went while their hash stays in the tree."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, DELETE)

    type: Literal["retention.run"] = "retention.run"
    run_id: Uuid7
    due: Count
    deleted: Count
    held: Count
    orphans: Count
    oldest_expiry: Timestamp | None = None
    backups_until: Timestamp | None = None
    certificate_sha256: Sha256 | None = None
    expired_records: Count | None = None
    held_records: Count | None = None


class DsarAnswered(Event):
    """A person was given a copy of what is kept (GDPR 15); SHA-256 of the package in canonical form. `content` counts
    what files and responses hold of them."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["dsar.answered"] = "dsar.answered"
    dsar_id: Uuid7
    actor: Actor
    key_id: Uuid7
    records: Count
    values: Count
    content: Count | None = None
    package_sha256: Sha256


class DsarRectified(Event):
    """The values it commits to take the place of those of record `supersedes_seq`, which stay as they were."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["dsar.rectified"] = "dsar.rectified"
    actor: Actor
    supersedes_seq: Count


class DsarRestricted(Event):
    """From here on (`dsar.unrestricted`: no longer) what is under the key is kept, but used for nothing."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["dsar.restricted", "dsar.unrestricted"]
    actor: Actor
    key_id: Uuid7


class DsarRequest(Event):
    """The life of a request of a person, who stands in `commits` alone (GDPR 12(3), 12(4)). Each record says all that
    holds from then on: the `right` that is asked for, when it was `received_at`, and until when it is `due_at`.
    `dsar.extended`: the person was informed of it, with this `reason`. `dsar.closed`: with this `outcome`, by the act
    of record `act_seq` where one of this log answers it."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["dsar.received", "dsar.extended", "dsar.closed"]
    matter_id: Uuid7
    actor: Actor
    right: Code
    received_at: Timestamp
    due_at: Timestamp
    reason: Code | None = None
    outcome: Code | None = None
    act_seq: Count | None = None


class ContentAccessed(Event):
    """Somebody was shown values of a record; durable before they were."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["content.accessed"] = "content.accessed"
    actor: Actor
    seq: Count
    fields: Annotated[tuple[Code, ...], Field(strict=False)]
    reason: Code


class ContentReplayed(Event):
    """The kept call of intent `seq` was asked once more, at `backend_id` or at a server on this host that is none of
    the directory's; `equal` says whether the answer was the kept one, to the last bit, `same_weights` whether it came
    from the same weights (absent where the fingerprints do not tell). Its content was `content.accessed` before."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["content.replayed"] = "content.replayed"
    actor: Actor
    seq: Count
    equal: bool
    same_weights: bool | None = None
    backend_id: Text | None = None
    region: Text | None = None


class AnswerChallenged(Event):
    """A text was compared with what the answer of outcome `seq` commits to, by weights that were available. `verdict`:
    what came of it, over `compared` of the answer's `tokens`. `weights_sha256`: of the weights that computed it.
    `backend_id`, `region`: of the running backend that did, which read prompt and text; absent where the gateway's host
    did. The commitment was `content.accessed` before; of text and prompt nothing is recorded."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["content.challenged"] = "content.challenged"
    actor: Actor
    seq: Count
    choice: Count
    verdict: Code
    tokens: Count
    compared: Count
    weights_sha256: Sha256
    reason: Code
    backend_id: Text | None = None
    region: Text | None = None


class MarkTested(Event):
    """A text was tested for the tenant's watermarks, by all keys and models in `tests`. `tokens`: of the text, of which
    nothing else is recorded. `period`: of the key that was found. `project`: by whose policy the text was processed."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["content.mark_tested"] = "content.mark_tested"
    actor: Actor
    project: Text
    verdict: Code
    period: Text | None = None
    tests: Count
    tokens: Count


class AnswerSearched(Event):
    """It was asked whether the tenant's models gave a text: the fingerprints of all answers in records from
    `first` (absent: the first of all) to before `end` were compared with it. `letters`: letters and digits of the text,
    of which nothing else is recorded. `matches`: answers that have a passage of it."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["content.answer_searched"] = "content.answer_searched"
    actor: Actor
    reason: Code
    verdict: Code
    letters: Count
    compared: Count
    matches: Count
    first: Count | None = None
    end: Count


class AnswerSaltDestroyed(Event):
    """The salt of a month was destroyed: the fingerprints of its answers say nothing any more, and none of these
    answers can be found again by its text."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.PROOF
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, DELETE)

    type: Literal["content.answer_salt_destroyed"] = "content.answer_salt_destroyed"
    actor: Actor
    reason: Code
    period: Text


class LogRead(Event):
    """Somebody was shown records `first` up to but not including `end`, or what was counted from them; durable before
    they were (GDPR 32; NIS2 Implementing Regulation 3.2.3(f))."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["log.read"] = "log.read"
    actor: Actor
    first: Count
    end: Count
    reason: Code


class LogExported(Event):
    """An evidence pack of records `first` up to but not including `end` was made."""

    is_access: ClassVar[bool] = True
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, READ)

    type: Literal["log.exported"] = "log.exported"
    pack_id: Uuid7
    actor: Actor
    first: Count
    end: Count
    reason: Code | None = None


class CheckpointAnchored(Event):
    """The SHA-256 of a checkpoint's text, in the tree `_anchor`. It names no tenant: anybody may see it."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["checkpoint.anchored"] = "checkpoint.anchored"
    tenant: TenantId = ANCHOR_TENANT
    checkpoint_sha256: Sha256


class FileEvent(Event):
    """A file was kept, read by its project, or deleted: on the project's word, or by its time (`reason`). Its content
    is sealed; `bytes` and `lines` are of what it says."""

    is_access: ClassVar[bool] = True

    type: Literal["file.stored", "file.read", "file.deleted"]
    project: Text
    actor: Actor
    file_id: Text
    purpose: Code
    bytes: Count
    lines: Count
    reason: Code | None = None

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        activity = {"file.stored": CREATE, "file.read": READ, "file.deleted": DELETE}[kind]
        return Ocsf(API_ACTIVITY, activity)


class ResponseEvent(Event):
    """A response was queued to be answered in the background, cancelled there, or came to an end there; one that is
    kept was read or deleted by its project. Its call is on record as any other, and names it (`response_id`)."""

    is_access: ClassVar[bool] = True

    type: Literal["response.queued", "response.cancelled", "response.ended", "response.read", "response.deleted"]
    project: Text
    actor: Actor
    response_id: Text
    status: Code

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        activity = {"response.queued": CREATE, "response.read": READ, "response.deleted": DELETE}.get(kind, OTHER)
        return Ocsf(API_ACTIVITY, activity)


class ResponsesExpired(Event):
    """Kept responses were deleted because their time was over: how many."""

    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, DELETE)

    type: Literal["response.expired"] = "response.expired"
    responses: Count


class BatchEvent(Event):
    """A batch was created, cancelled, or came to its end. Each of its lines is a call of its own on record, with
    `batch_id` and `batch_line`; `total`, `completed` and `failed` count them."""

    kept: ClassVar[RecordRetention] = RecordRetention.SECURITY
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["batch.created", "batch.cancelled", "batch.ended"]
    project: Text
    actor: Actor
    batch_id: Text
    endpoint: Endpoint
    input_file_id: Text
    status: Code
    total: Count = 0
    completed: Count = 0
    failed: Count = 0
