"""Files and batches as the store returns them. Content stays sealed: `data_key` names the key that opens it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from audit.events.privacy import BatchEvent

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
ACTIVE: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""States in which a batch is processed."""
Part = Literal["output", "error"]


class Owner(NamedTuple):
    """Owner of a file or batch. For every other project it does not exist."""

    tenant: str
    project: str


class Sealed(NamedTuple):
    """Nonce and ciphertext, and the id of the data key that encrypts them."""

    data_key: str
    content: bytes


class SealedPart(NamedTuple):
    """Consecutive lines of a file. `first`: number of the first line. `lines`: count of lines that are not blank."""

    number: int
    first: int
    lines: int
    sealed: Sealed


class SealedResult(NamedTuple):
    """The result of a line. `size`: its plaintext size in bytes."""

    line: int
    part: Part
    size: int
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file. `size` in bytes; times in seconds since 1970. `batch` and `part` are set for a result file. `sealed`: the
    encrypted file name."""

    id: str
    owner: Owner
    purpose: str
    state: str
    size: int
    lines: int
    created_at: float
    expires_at: float
    sealed: Sealed
    batch: str | None = None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch. Times in seconds since 1970. `ended_at`: when it completed, failed, expired or was cancelled. `sealed`:
    encrypted metadata and errors. `kept_until`: when the batch itself is deleted."""

    id: str
    owner: Owner
    key_id: str
    endpoint: str
    input_file: str
    status: Status
    created_at: float
    expires_at: float
    kept_until: float
    sealed: Sealed
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    in_progress_at: float | None = None
    cancelling_at: float | None = None
    finalizing_at: float | None = None
    ended_at: float | None = None


def batch_event(kind: str, batch: BatchRecord, actor: str) -> BatchEvent:
    return BatchEvent.model_validate(
        {
            "type": kind,
            "tenant": batch.owner.tenant,
            "project": batch.owner.project,
            "actor": actor,
            "batch_id": batch.id,
            "endpoint": batch.endpoint,
            "input_file_id": batch.input_file,
            "status": batch.status,
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        }
    )


class BatchSummary(BaseModel):
    """A batch without its content: metadata and errors are sealed for its project."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    project: str
    key_id: str
    status: Status
    endpoint: str
    input_file: str
    output_file: str | None
    error_file: str | None
    total: int
    completed: int
    failed: int
    created_at: datetime
    in_progress_at: datetime | None
    cancelling_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime


def summary_of(batch: BatchRecord) -> BatchSummary:
    same = {name: getattr(batch, name) for name in BatchSummary.model_fields if hasattr(batch, name)}
    times = {name: _at(value) for name, value in same.items() if name.endswith("_at")}
    return BatchSummary(tenant=batch.owner.tenant, project=batch.owner.project, **{**same, **times})


def _at(instant: float | None) -> datetime | None:
    return None if instant is None else datetime.fromtimestamp(instant, UTC)
