"""Buckets in memory, for an installation of one gateway. Budgets begin with the figures of the ledger."""

import time
from collections.abc import Callable, Mapping, Sequence

from gateway.limits.bucket import Bucket, Quota
from gateway.limits.limiter import Cost, Counter, Reservation, admit


class MemoryLimitStore:
    """Buckets are lost with the process, and dropped when they are empty.

    `now`: seconds since the epoch. `spent`: what was used of budgets up to now, by bucket (``acme/main:month``).
    """

    SWEEP_EVERY = 4096

    def __init__(self, now: Callable[[], float] = time.time, spent: Mapping[str, float] | None = None) -> None:
        self._now = now
        self._buckets: dict[str, tuple[Quota, Bucket]] = {}
        self._open: set[str] = set()
        self._spent = dict(spent or {})
        self._seeded_at = now()
        self._until_sweep = self.SWEEP_EVERY

    def __len__(self) -> int:
        return len(self._buckets)

    async def take(self, reservation: Reservation) -> None:
        now = self._now()
        self._sweep_sometimes(now)
        admit(reservation, [self._bucket(counter, now) for counter in reservation.counters], now)
        if reservation.holds:
            self._open.add(reservation.id)

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        if reservation.id not in self._open:
            return
        self._open.remove(reservation.id)
        now, held, consumed = self._now(), reservation.cost.asked(), actual.consumed()
        for counter in reservation.counters:
            if counter.kind.is_held:
                measure = counter.kind.measure
                self._bucket(counter, now).release(held[measure], consumed[measure])

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Does nothing: reservations live as long as this process."""

    async def close(self) -> None:
        pass

    def _bucket(self, counter: Counter, now: float) -> Bucket:
        known = self._buckets.get(counter.bucket)
        if known is None:
            bucket = Bucket(self._spent.pop(counter.bucket, 0.0), 0.0, self._seeded_at)
            bucket.drain(counter.quota, now)
            self._buckets[counter.bucket] = counter.quota, bucket
            return bucket
        quota, bucket = known
        bucket.drain(quota, now)
        if quota is not counter.quota:
            self._buckets[counter.bucket] = counter.quota, bucket
        return bucket

    def _sweep_sometimes(self, now: float) -> None:
        self._until_sweep -= 1
        if self._until_sweep > 0:
            return
        self._until_sweep = max(self.SWEEP_EVERY, len(self._buckets))
        for place, (quota, bucket) in list(self._buckets.items()):
            bucket.drain(quota, now)
            if bucket.level <= 0.0 and bucket.held <= 0.0:
                del self._buckets[place]
