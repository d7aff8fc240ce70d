"""Answers that the gateway keeps, so that clients ask for them again or go on with them: which those are.

What keeps them is `gateway.responses`, above this package.
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
    """All raise ContentUnavailable, AuditUnavailable where the stores or the record do not answer."""

    async def expanded(self, principal: Principal, raw: bytes) -> tuple[bytes, Earlier]:
        """The body `raw`, which names items that are kept, with these in place of their names. Raises ObjectNotFound,
        InvalidRequest."""
        ...

    async def keep(self, accepted: Accepted, answer: bytes) -> None:
        """Keep the whole answer of a call and what it was asked."""
        ...

    async def discard(self, accepted: Accepted) -> None:
        """Undo `keep`, for a call whose outcome could not be recorded."""
        ...

    async def queue(self, redacted: Redacted) -> bytes:
        """Keep a call for later, and answer what says so. Raises PolicyDenied, LimitReached."""
        ...


def is_queued(request: Parsed) -> bool:
    """Whether the call is to be answered later. False for the worker's call that answers it then."""
    translation, line = request.call.translation, request.client.batch
    storage = None if translation is None else translation.storage
    return storage is not None and storage.background and (line is None or line.response is None)


def storage_of(request: Parsed, days: int, refusal: str = NOTHING_KEPT) -> tuple[Translation | None, bool]:
    """How the call is answered, and whether the answer is to be kept, where content is kept for `days`.

    Raises PolicyDenied with the words of `refusal` where the client asks for what is not kept.
    """
    translation, line = request.call.translation, request.client.batch
    storage = None if translation is None else translation.storage
    if translation is None or storage is None:
        return translation, False
    if not days and (storage.wanted or (storage.earlier is not None and refusal is NOTHING_KEPT)):
        raise PolicyDenied([Reason("retention.content", None, refusal, "GDPR 5(1)(e)")])
    if line is not None and line.response is not None:  # the worker keeps it with the end of the work
        return translation.kept(), False
    # The answer to a line of a batch is in the batch's file already.
    if not days or not (line is None if storage.wanted is None else storage.wanted):
        return translation, False
    return translation.kept(), True


def queued_headers(body: bytes, more: Sequence[Header]) -> list[Header]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
