"""Stored responses. Their content is encrypted under the data key that `data_key` names."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.records.batches import Owner

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
WAITING: tuple[ResponseStatus, ...] = ("queued", "in_progress")
"""States of a background response that has not ended."""
ANSWERED: tuple[ResponseStatus, ...] = ("completed", "incomplete")
"""States of a response that has an answer and can be continued."""


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """A stored response. Times in seconds since 1970. `previous`: the response that it continues. `asked`: encrypted
    request. `answered`: encrypted response, None until there is one."""

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
    """A background response that has not ended, without its content."""

    id: str
    status: ResponseStatus
    data_key: str
    created_at: float


class DueResponse(NamedTuple):
    """A response to be deleted. `expired`: its retention ended; False if the project requested the deletion."""

    id: str
    tenant: str
    expired: bool
