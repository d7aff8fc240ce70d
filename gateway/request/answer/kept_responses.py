"""Responses that the gateway stores so that clients can retrieve or continue them: which are stored, and the interface.

The implementation is `gateway.responses`, a layer above this package.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.api_format import Earlier, Translation
from gateway.errors import PolicyDenied
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Header
from gateway.request.stages import Accepted, Parsed, Redacted
from policy.reason import Reason

NOTHING_KEPT = (
    "the policy keeps no content, and a response that can be asked for again is content; send store: false and the"
    " whole conversation, or set retention.content, as in `encrypted, 7d`"
)
UNINSPECTED = "the prompt could not be inspected, and what was not inspected is not kept; send store: false"


class KeptResponses(Protocol):
    """Store of responses. All methods raise ContentUnavailable or AuditUnavailable if a store or the record fails."""

    async def expanded(self, principal: Principal, raw: bytes) -> tuple[bytes, Earlier]:
        """Return the body `raw` with the stored items that it refers to in place of their references.

        Raises ObjectNotFound, InvalidRequest.
        """
        ...

    async def keep(self, accepted: Accepted, answer: bytes) -> None:
        """Store the complete answer of a call and its input."""
        ...

    async def discard(self, accepted: Accepted) -> None:
        """Undo `keep` for a call whose outcome could not be recorded."""
        ...

    async def queue(self, redacted: Redacted) -> bytes:
        """Store a call for later, and return the answer that says so. Raises PolicyDenied, LimitReached."""
        ...


def is_queued(request: Parsed) -> bool:
    """Return whether the call is to be answered later. False for the worker's call that then answers it."""
    translation, line = request.call.translation, request.client.batch
    storage = None if translation is None else translation.storage
    return storage is not None and storage.background and (line is None or line.response is None)


def storage_of(request: Parsed, days: int, refusal: str = NOTHING_KEPT) -> tuple[Translation | None, bool]:
    """Return how the call is answered and whether the answer is stored, if content is retained for `days`.

    Raises PolicyDenied with the message `refusal` if the client requests storage that is not possible.
    """
    translation, line = request.call.translation, request.client.batch
    storage = None if translation is None else translation.storage
    if translation is None or storage is None:
        return translation, False
    if not days and (storage.wanted or (storage.earlier is not None and refusal is NOTHING_KEPT)):
        raise PolicyDenied([Reason("retention.content", None, refusal, "GDPR 5(1)(e)")])
    if line is not None and line.response is not None:  # the worker stores it when it has finished
        return translation.kept(), False
    # The answer to a batch line is already in the batch's file.
    if not days or not (line is None if storage.wanted is None else storage.wanted):
        return translation, False
    return translation.kept(), True


def queued_headers(body: bytes, more: Sequence[Header]) -> list[Header]:
    """Return the headers of the answer to a queued call."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
