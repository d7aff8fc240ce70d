"""Fingerprints of the answer that a client received, if the policy requires that it can be found by its text
(``transparency.marking: [record]``, `audit.log.answer_prints`).
"""

import asyncio
from typing import Final

from audit.events.event import AnswerPrints
from audit.log.answer_prints import SCHEME, prints_of, written
from gateway.content.said_text import SaidText
from gateway.errors import InternalError
from gateway.request.answer import manifests
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Routed, Salt

AT_ONCE: Final = 8 << 10
"""Most characters fingerprinted in the event loop, which takes less than a millisecond; longer texts use a thread."""
DEMANDED: Final = "demanded"
"""Header value of a stream, whose headers are sent before the text is complete."""


def are_demanded(routed: Routed) -> bool:
    return "record" in routed.redacted.allowed.marking and routed.request.call.endpoint.writes


def said_text(routed: Routed, received: ReceivedAnswer) -> SaidText | None:
    """Return the collector of the text for the client, or None if neither fingerprints nor a manifest are required."""
    if routed.salt is None and not manifests.is_demanded(routed):
        return None
    received.said = SaidText()
    return received.said


async def fingerprint(routed: Routed, received: ReceivedAnswer) -> None:
    """Add the fingerprints of the text that the client has received or is about to receive to `received`."""
    salt, said = routed.salt, received.said
    if salt is None or received.prints is not None:
        return
    if said is None or said.characters <= AT_ONCE:
        received.prints = _prints(salt, said)
    else:
        received.prints = await asyncio.to_thread(_prints, salt, said)
    received.said = None


def confirm(routed: Routed, received: ReceivedAnswer) -> None:
    """Raise InternalError if fingerprints are required and missing: no answer may end without them."""
    if are_demanded(routed) and received.prints is None:
        raise InternalError("The answer has no fingerprints, which policy demands; report it")


def announced(routed: Routed) -> str | None:
    """Return the header value for the start of an answer, or None if no fingerprints are required."""
    return DEMANDED if are_demanded(routed) else None


def outcome(received: ReceivedAnswer) -> str | None:
    return None if received.prints is None else received.prints.state


def _prints(salt: Salt, said: SaidText | None) -> AnswerPrints:
    prints, letters = prints_of(salt.key, said.texts() if said is not None else ())
    if prints:
        return AnswerPrints(scheme=SCHEME, period=salt.period, state="stored", letters=letters, prints=written(prints))
    return AnswerPrints(scheme=SCHEME, period=salt.period, state="short" if letters else "no_text", letters=letters)
