"""Counts of refused requests without another record: per interval, tenant, status, reason, key and endpoint.

A request that is refused before a decision (wrong key, unknown URL, malformed body, limit reached) has no record of its
own, because a flood of them must not fill the log. Such requests are counted. After a quiet period the counts are
recorded about a second after the first refusal, then once per interval while refusals continue. Accepted, denied and
refused requests therefore add up to what clients sent. Caller addresses are private values: the record commits to them,
and they are deleted after some days.

Counts that are not recorded yet are lost if the process is killed: at most those of one interval.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from audit.events.base import SYSTEM_TENANT, Event
from audit.events.event import AuthFailed, RequestRefused
from audit.events.private_value import Private
from audit.events.stamp import rfc3339
from gateway.directory.directory import Address
from gateway.errors import GatewayError, InternalError

logger = logging.getLogger("domicile.gateway")

INTERVAL_S = 60.0
FIRST_S = 1.0
MAX_KINDS = 64
"""Maximum number of kinds per tenant and interval; further refusals are grouped by status only."""
MAX_ADDRESSES = 64
"""Maximum number of addresses per kind and interval; calls from other addresses are counted together."""
CLIENT_GONE = 499
"""Status as in nginx: the client left before it was answered."""
OTHER = "other"

_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """The key by which refusals are grouped.

    `endpoint`: a path of the API. `tenant`: of an authenticated caller.
    """

    status: int
    reason: str
    endpoint: str | None = None
    tenant: str = SYSTEM_TENANT
    key_id: str | None = None
    project: str | None = None


def refusal_of(error: GatewayError, endpoint: str | None = None) -> Refusal:
    """Return the key of an error for an unauthenticated caller.

    If the key was real, the refusal belongs to the log of its tenant.
    """
    reason = getattr(error, "reason", None) or error.code or "invalid_request"
    tenant, key_id = getattr(error, "tenant", None), getattr(error, "key_id", None)
    known = reason if _CODE.fullmatch(reason) else OTHER
    return Refusal(error.http_status, known, endpoint, tenant or SYSTEM_TENANT, key_id)


@dataclass(slots=True)
class _Tally:
    """Counts of one kind. Times are in milliseconds since the epoch."""

    since: int
    until: int
    count: int = 0
    addresses: dict[str, int] = field(default_factory=dict)
    others: int = 0

    def add(self, address: str | None, count: int = 1) -> None:
        """Count requests of an address, or of others if it is unknown or the maximum number is reached."""
        if address is not None and (address in self.addresses or len(self.addresses) < MAX_ADDRESSES):
            self.addresses[address] = self.addresses.get(address, 0) + count
        else:
            self.others += count

    def absorb(self, other: "_Tally") -> None:
        """Merge the counts of another tally."""
        self.since, self.until = min(self.since, other.since), max(self.until, other.until)
        self.count += other.count
        for address, count in other.addresses.items():
            self.add(address, count)
        self.others += other.others


Record = Callable[[Event, Private | None], Awaitable[object]]


class Refusals:
    """Counters of refused requests, for one event loop.

    `record` makes an event durable or raises GatewayError. `address_days`: days for which addresses are retained; 0 for
    none.
    """

    def __init__(self, record: Record, address_days: int = 30, clock: Callable[[], float] = time.time) -> None:
        self._record = record
        self._address_days = address_days
        self._clock = clock
        self._tallies: dict[Refusal, _Tally] = {}
        self._kinds: dict[str, int] = {}
        self._recorded_at = float("-inf")
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def count(self, refusal: Refusal, address: Address | None) -> None:
        """Count one refusal and schedule its recording."""
        now = int(self._clock() * 1000)
        tally = self._tally(refusal, now)
        tally.count += 1
        tally.until = now
        tally.add(None if address is None else str(address))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def _tally(self, refusal: Refusal, now: int) -> _Tally:
        if (known := self._tallies.get(refusal)) is not None:
            return known
        if self._kinds.get(refusal.tenant, 0) >= MAX_KINDS:
            refusal = replace(refusal, reason=OTHER, endpoint=None, key_id=None, project=None)
            return self._tallies.setdefault(refusal, _Tally(now, now))
        self._kinds[refusal.tenant] = self._kinds.get(refusal.tenant, 0) + 1
        return self._tallies.setdefault(refusal, _Tally(now, now))

    async def _run(self) -> None:
        while self._tallies and not self._closing.is_set():
            delay = max(FIRST_S, self._recorded_at + INTERVAL_S - time.monotonic())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), delay)
            await self.flush()

    async def flush(self) -> None:
        """Record the counts. Counts that cannot be recorded now are kept."""
        tallies, self._tallies, self._kinds = self._tallies, {}, {}
        self._recorded_at = time.monotonic()
        for refusal, tally in tallies.items():
            try:
                await self._put(refusal, tally)
            except GatewayError:
                logger.error(
                    "%d refused requests could not be recorded yet; check the audit log, it is tried again", tally.count
                )
                self._tally(refusal, tally.since).absorb(tally)

    async def _put(self, refusal: Refusal, tally: _Tally) -> None:
        event = _event(refusal, tally)
        private = self._private(tally)
        try:
            await self._record(event, private)
        except InternalError:
            if private is None:
                raise
            # Nothing can be stored for this tenant, for example because its key was destroyed
            await self._record(event, None)

    def _private(self, tally: _Tally) -> Private | None:
        if not self._address_days or not tally.addresses:
            return None
        return Private(
            {"client_ip": {"addresses": dict(tally.addresses), "others": tally.others}},
            retention_class=f"addresses_{self._address_days}d",
            expires=int(self._clock() * 1000) + self._address_days * _DAY_MS,
        )

    async def close(self) -> None:
        """Record the remaining counts."""
        self._closing.set()
        if self._task is not None:
            await self._task
        await self.flush()


def _event(refusal: Refusal, tally: _Tally) -> Event:
    fields = {
        "tenant": refusal.tenant,
        "reason": refusal.reason,
        "endpoint": refusal.endpoint,
        "key_id": refusal.key_id,
        "count": tally.count,
        "since": rfc3339(tally.since),
        "until": rfc3339(tally.until),
    }
    if refusal.status == 401:
        return AuthFailed.model_validate(fields)
    return RequestRefused.model_validate(fields | {"status": refusal.status, "project": refusal.project})
