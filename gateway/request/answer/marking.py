"""Watermarks of answers: who is told to mark, by which key, and what is said of it.

Our engine gets the key of the tenant's month inside the request token, and says of each choice whether its tenant's
detector would recognise it. Servers that are not ours have keys of their own; they are asked for the mark and do not
say what came of it. What a caller sends by the names that servers know is not passed on where policy demands a mark.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from audit.errors import AuditError
from gateway.database.errors import ControlError, StoreError
from gateway.errors import BackendFailed, BackendUnavailable
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Mark, Routed
from gateway.store.marks import MarkKeys, period_at

SCHEME: Final = "gumbel-chacha20/1"
MOST_KNOWN: Final = 10_000
MARKED: Final = "marked"
REQUESTED: Final = "requested"
"""Of a server that is not ours: it was asked for a mark and does not say what came of it."""
DEMANDED: Final = "demanded"
"""In the headers of a stream, which are sent before it is known."""
GREEDY: Final = "greedy"
WORDS: Final = frozenset({MARKED, GREEDY, "short", "form", "low_entropy"})
"""Of our engine (`backend.answer.mark_report`)."""


def is_demanded(routed: Routed) -> bool:
    return "watermark" in routed.redacted.allowed.marking and routed.request.call.endpoint.writes


class Marker:
    """Holds the keys that were used last."""

    def __init__(self, keys: MarkKeys | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """keys: None where no policy can demand a mark, as in tests of other parts."""
        self._keys = keys
        self._now = now
        self._known: dict[tuple[str, str, str], Mark] = {}

    async def told(self, routed: Routed) -> Routed:
        """`routed`, with the key for a backend of our own where policy demands a mark.

        Raises BackendUnavailable where the key cannot be had: nothing is answered without its mark.
        """
        if not is_demanded(routed) or routed.route.backend.kind != "domicile":
            return routed
        tenant, model = routed.request.principal.tenant, routed.request.call.model
        place = tenant, model, period_at(self._now())
        mark = self._known.get(place)
        if mark is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            mark = self._known[place] = await self._found(*place)
        return replace(routed, mark=mark)

    async def _found(self, tenant: str, model: str, period: str) -> Mark:
        try:
            if self._keys is None:
                raise ControlError("this gateway has no keys for marks; open it with its control database")
            found = await asyncio.to_thread(self._keys.used, tenant, period, model[:256], SCHEME)
        except (StoreError, AuditError) as error:
            raise BackendUnavailable(
                "The key that the answer is to be watermarked with cannot be had; try again later", retry_after_s=5
            ) from error
        return Mark(period, found.key)

    def confirm(self, routed: Routed, received: ReceivedAnswer) -> None:
        """Raises BackendFailed where our own engine was told to mark and does not say what came of it: it is older, or
        does not look at request tokens."""
        if routed.mark is not None and not received.watermarks:
            raise BackendFailed("The backend did not say whether it watermarked its answer, which policy demands")


def announced(routed: Routed) -> str | None:
    """What is known of the mark before the answer; None where none is demanded."""
    if not is_demanded(routed):
        return None
    if routed.request.call.body.get("temperature") == 0:
        return GREEDY
    return DEMANDED if routed.route.backend.kind == "domicile" else REQUESTED


def outcome(routed: Routed, received: ReceivedAnswer) -> str | None:
    """What came of it: of several choices, the first word that is not ``marked``."""
    if routed.mark is None:
        return announced(routed)
    said = [received.watermarks[choice] for choice in sorted(received.watermarks)]
    return next((word for word in said if word != MARKED), MARKED) if said else None
