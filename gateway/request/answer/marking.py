"""Watermarks of answers: requests to backends, the key of a call, and the reported outcome.

Our engine receives the tenant's key of the month in the request token, and reports for each choice whether the detector
recognises it. Other servers have keys of their own: they are asked for the mark and do not report the outcome. Where
policy demands a mark, fields of the caller that control a server's watermark are removed.
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
"""Another server was asked for a mark. It does not report the outcome."""
DEMANDED: Final = "demanded"
"""In the headers of a stream, which are sent before the outcome is known."""
GREEDY: Final = "greedy"
WORDS: Final = frozenset({MARKED, GREEDY, "short", "form", "low_entropy"})
"""Of our engine (`backend.answer.mark_report`)."""


def is_demanded(routed: Routed) -> bool:
    return "watermark" in routed.redacted.allowed.marking and routed.request.call.endpoint.writes


class Marker:
    """Adds the watermark key to a call. Caches recently used keys."""

    def __init__(self, keys: MarkKeys | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """keys: None if no policy can demand a mark, as in tests of other parts."""
        self._keys = keys
        self._now = now
        self._known: dict[tuple[str, str, str], Mark] = {}

    async def told(self, routed: Routed) -> Routed:
        """Return `routed` with the key, if policy demands a mark and the backend is our engine.

        Raises BackendUnavailable if the key cannot be loaded: no answer is given without its mark.
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
        """Raise BackendFailed if our engine was told to mark and did not report the outcome: it is an older version, or
        does not check request tokens."""
        if routed.mark is not None and not received.watermarks:
            raise BackendFailed("The backend did not say whether it watermarked its answer, which policy demands")


def announced(routed: Routed) -> str | None:
    """Return the state of the mark before the answer, or None if no mark is demanded."""
    if not is_demanded(routed):
        return None
    if routed.request.call.body.get("temperature") == 0:
        return GREEDY
    return DEMANDED if routed.route.backend.kind == "domicile" else REQUESTED


def outcome(routed: Routed, received: ReceivedAnswer) -> str | None:
    """Return the outcome. Of several choices it is the first one that is not ``marked``."""
    if routed.mark is None:
        return announced(routed)
    said = [received.watermarks[choice] for choice in sorted(received.watermarks)]
    return next((word for word in said if word != MARKED), MARKED) if said else None
