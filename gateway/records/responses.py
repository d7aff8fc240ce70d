"""Kept responses as the store returns them. Content stays sealed under the data key that `data_key` names."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.records.batches import Owner

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
WAITING: tuple[ResponseStatus, ...] = ("queued", "in_progress")
"""The states of a response in the background that is not over."""
ANSWERED: tuple[ResponseStatus, ...] = ("completed", "incomplete")
"""The states of a response that has an answer, and can be gone on with."""


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """Times in seconds since 1970. `previous`: the response that it goes on with. `asked`: sealed, what was asked;
    `answered`: sealed, the response, once there is one."""

    id: str
    owner: Owner
    key_id: str
    background: bool
    status: ResponseStatus
    previous: str | None
    created_at: float
    expires_at: float
    data_key: str
    asked: bytes
    answered: bytes | None = None


class QueuedResponse(NamedTuple):
    """A response in the background that is not over, without its content."""

    id: str
    status: ResponseStatus
    data_key: str
    created_at: float


class DueResponse(NamedTuple):
    """One to be deleted. `expired`: by its time, and not on the project's word."""

    id: str
    tenant: str
    expired: bool
