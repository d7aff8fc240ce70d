"""Marks of answers: the keys of a call, requests for watermarks to backends, and the reported outcome.

Our engine receives the tenant's key of the month in the request token, and reports for each choice whether the detector
recognises it. Other servers have keys of their own: they are asked for the mark and do not report the outcome. Where
policy demands a mark, fields of the caller that control a server's watermark are removed.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from audit.errors import AuditError
from gateway.database.errors import ControlError, StoreError
from gateway.errors import BackendFailed, BackendUnavailable
from gateway.request.answer.fingerprints import are_demanded
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Mark, Routed, Salt
from gateway.store.marks import AnswerSalts, MarkKeys, PeriodKey, period_at

SCHEME: Final = "gumbel-chacha20/1"
MOST_KNOWN: Final = 10_000
KNOWN_S: Final = 30
"""After a tenant's key was destroyed or revoked, no answer is marked for longer than this."""
MARKED: Final = "marked"
REQUESTED: Final = "requested"
"""Another server was asked for a mark. It does not report the outcome."""
DEMANDED: Final = "demanded"
"""In the headers of a stream, which are sent before the outcome is known."""
GREEDY: Final = "greedy"
GREEDY_BELOW: Final = 1e-5
"""Temperatures at which our engine, vLLM and SGLang take the likeliest token."""
CUT: Final = "cut"
"""The answer broke off before our engine reported the mark of each choice. What was sent may carry one."""
WORDS: Final = frozenset({MARKED, GREEDY, "short", "form", "low_entropy"})
"""Values of our engine (`backend.answer.mark_report`)."""


def is_demanded(routed: Routed) -> bool:
    return "watermark" in routed.redacted.allowed.marking and routed.request.call.endpoint.writes


class Marker:
    """Adds the watermark key and the salt of fingerprints to a call. Caches each for KNOWN_S seconds."""

    def __init__(
        self,
        keys: MarkKeys | None,
        salts: AnswerSalts | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """keys, salts: None if no policy can demand a mark, as in tests of other parts."""
        self._keys = keys
        self._salts = salts
        self._now = now
        self._known: dict[tuple[str, ...], tuple[datetime, PeriodKey]] = {}

    async def told(self, routed: Routed) -> Routed:
        """Return `routed` with the key, if policy demands a watermark and the backend is our engine, and with the salt,
        if it demands fingerprints.

        Raises BackendUnavailable if one cannot be loaded: no answer is given without its mark.
        """
        tenant, model = routed.request.principal.tenant, routed.request.call.model[:256]
        if is_demanded(routed) and routed.route.backend.kind == "domicile":
            found = await self._found(self._watermark_key, tenant, model)
            routed = replace(routed, mark=Mark(found.period, found.key))
        if are_demanded(routed):
            found = await self._found(self._salt, tenant)
            routed = replace(routed, salt=Salt(found.period, found.key))
        return routed

    async def _found(self, load: Callable[..., PeriodKey], tenant: str, *of: str) -> PeriodKey:
        now = self._now()
        place = load.__name__, tenant, period_at(now), *of
        until, known = self._known.get(place, (now, None))
        if known is None or now >= until:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            try:
                known = await asyncio.to_thread(load, *place[1:])
            except (StoreError, AuditError) as error:
                raise BackendUnavailable(
                    "The key for marking the answer is unavailable; try again later", retry_after_s=5
                ) from error
            self._known[place] = now + timedelta(seconds=KNOWN_S), known
        return known

    def _watermark_key(self, tenant: str, period: str, model: str) -> PeriodKey:
        if self._keys is None:
            raise ControlError("this gateway has no keys for marks; open it with its control database")
        return self._keys.used(tenant, period, model, SCHEME)

    def _salt(self, tenant: str, period: str) -> PeriodKey:
        if self._salts is None:
            raise ControlError("this gateway has no salts for fingerprints; open it with its control database")
        return self._salts.made(tenant, period)

    def confirm(self, routed: Routed, received: ReceivedAnswer) -> None:
        """Raise BackendFailed if our engine was asked to mark and did not report the outcome: it is an older version,
        or does not check request tokens."""
        if routed.mark is not None and not received.watermarks:
            raise BackendFailed("The backend did not say whether it watermarked its answer, which policy demands")


def announced(routed: Routed) -> str | None:
    """Return the state of the mark before the answer, or None if no mark is demanded."""
    if not is_demanded(routed):
        return None
    if _is_greedy(routed.request.call.body):
        return GREEDY
    return DEMANDED if routed.route.backend.kind == "domicile" else REQUESTED


def _is_greedy(body: Mapping[str, Any]) -> bool:
    temperature = body.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return (temperature is not None and is_number and temperature < GREEDY_BELOW) or body.get("top_k") == 1


def outcome(routed: Routed, received: ReceivedAnswer) -> str | None:
    """Return the outcome, None if no mark is demanded or nothing was said. Of several choices it is the first one that
    is not ``marked``."""
    if routed.mark is None:
        return announced(routed)
    said = [received.watermarks[choice] for choice in sorted(received.watermarks)]
    if len(said) < _choices(routed.request.call.body):
        return CUT if said or received.characters_out else None
    return next((word for word in said if word != MARKED), MARKED)


def _choices(body: Mapping[str, Any]) -> int:
    """Return the number of choices that a call asks for."""
    each, prompt = body.get("n"), body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not all(isinstance(one, int) for one in prompt) else 1
    return prompts * (each if isinstance(each, int) else 1)
