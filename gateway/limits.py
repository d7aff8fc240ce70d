"""Limits that hold under parallel calls: reserve what a call may cost, settle what it did cost.

A quota is a leaky bucket read as a meter (GCRA, ITU-T I.371): consumption fills it, time drains it at the quota's rate.
What is reserved but not settled is held beside the bucket and does not drain, since nobody knows yet how much of it
will be consumed. A call is admitted if it, what is held and what is in the bucket fit together. So in any span of time
no more than ``burst + rate x time`` is consumed or held, and a refund can never be used twice.

Money is a budget of a calendar month (UTC): its bucket does not leak, it empties when the month ends.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import Protocol


class LimitExceeded(Exception):
    """`quota` is used up. `retry_after`: seconds until it may fit, or None if it never will (it exceeds the whole)."""

    def __init__(self, quota: str, retry_after: float | None) -> None:
        self.quota = quota
        self.retry_after = retry_after
        wait = "it exceeds the whole limit" if retry_after is None else f"try again in {math.ceil(retry_after)} s"
        super().__init__(f"the limit on {quota} is reached; {wait}")


@dataclass(frozen=True, slots=True)
class Rate:
    """`amount` every `period` seconds, at most `burst` (by default `amount`) at once."""

    amount: float
    period: float = 60.0
    burst: float | None = None

    def __post_init__(self) -> None:
        if not (self.amount > 0 and self.period > 0 and self.capacity > 0):
            raise ValueError(f"a rate must be positive: {self}")

    @property
    def capacity(self) -> float:
        return self.amount if self.burst is None else self.burst

    def drained(self, level: float, since: float, now: float) -> float:
        return max(0.0, level - (now - since) * self.amount / self.period)

    def wait(self, excess: float, now: float) -> float:
        return excess * self.period / self.amount


@dataclass(frozen=True, slots=True)
class MonthlyBudget:
    """`amount` every calendar month."""

    amount: float

    def __post_init__(self) -> None:
        if not self.amount > 0:
            raise ValueError(f"a budget must be positive: {self}")

    @property
    def capacity(self) -> float:
        return self.amount

    def drained(self, level: float, since: float, now: float) -> float:
        return level if _month(since) == _month(now) else 0.0

    def wait(self, excess: float, now: float) -> float:
        year, month = _month(now)
        return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() - now


Quota = Rate | MonthlyBudget


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key, project or tenant may use; None sets no bound."""

    requests: Rate | None = None
    tokens: Rate | None = None
    money: MonthlyBudget | None = None

    @classmethod
    def of(cls, *, rpm: float | None = None, tpm: float | None = None, eur_per_month: float | None = None) -> "Limits":
        """From a policy's figures."""
        return cls(
            None if rpm is None else Rate(rpm),
            None if tpm is None else Rate(tpm),
            None if eur_per_month is None else MonthlyBudget(eur_per_month),
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of prompt and answer together; euros."""

    tokens: float = 0.0
    money: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.tokens < math.inf and 0 <= self.money < math.inf):
            raise ValueError(f"a cost is a number of at least 0: {self}")


@dataclass(frozen=True, slots=True)
class Charge:
    """`hold` is kept beside the bucket until settled; `spend` goes in at once: a request is one, whatever comes."""

    quota: Quota
    hold: float = 0.0
    spend: float = 0.0


@dataclass(slots=True, eq=False)
class Reservation:
    """To be settled once, whatever became of the call; settling again does nothing. `id` is its own alone."""

    id: str
    key: str
    charges: Mapping[str, Charge]
    open: bool = field(default=True)


class LimitStore(Protocol):
    """Where buckets live. Each method is one atomic step, for all processes that share the store."""

    async def take(self, key: str, reservation: str, charges: Mapping[str, Charge], now: float) -> None:
        """Apply all charges, or none and raise LimitExceeded for the one to wait longest for."""
        ...

    async def settle(
        self, key: str, reservation: str, charges: Mapping[str, Charge], actual: Mapping[str, float], now: float
    ) -> None:
        """Release what was held and put what was consumed into the buckets, beyond their capacity if need be."""
        ...


class Limiter:
    """`now`: seconds since the epoch."""

    def __init__(self, store: LimitStore, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def reserve(self, key: str, limits: Limits, cost: Cost) -> Reservation:
        """Admit one request that may cost up to `cost`, or raise LimitExceeded and take nothing."""
        charges: dict[str, Charge] = {}
        if limits.requests is not None:
            charges["requests"] = Charge(limits.requests, spend=1.0)
        if limits.tokens is not None:
            charges["tokens"] = Charge(limits.tokens, hold=cost.tokens)
        if limits.money is not None:
            charges["money"] = Charge(limits.money, hold=cost.money)
        reservation = Reservation(token_hex(8), key, charges)
        if charges:
            await self._store.take(key, reservation.id, charges, self._now())
        return reservation

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Replace what was reserved by what was used. More than reserved is owed: later calls wait for it."""
        if not reservation.open:
            return
        reservation.open = False
        if reservation.charges:
            used = {"tokens": actual.tokens, "money": actual.money}
            await self._store.settle(reservation.key, reservation.id, reservation.charges, used, self._now())


@dataclass(slots=True)
class _Bucket:
    level: float = 0.0
    held: float = 0.0
    at: float = 0.0

    def drain(self, quota: Quota, now: float) -> None:
        if now > self.at:  # a clock set back neither fills nor drains
            self.level = quota.drained(self.level, self.at, now)
            self.at = now


class MemoryLimitStore:
    """Buckets of this process alone; they are forgotten with it, and when they are empty."""

    SWEEP_EVERY = 4096

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], tuple[Quota, _Bucket]] = {}
        self._until_sweep = self.SWEEP_EVERY

    def __len__(self) -> int:
        return len(self._buckets)

    async def take(self, key: str, reservation: str, charges: Mapping[str, Charge], now: float) -> None:
        self._sweep_sometimes(now)
        buckets = {name: self._bucket(key, name, charge.quota, now) for name, charge in charges.items()}
        refusals = []
        for name, charge in charges.items():
            bucket, capacity, asked = buckets[name], charge.quota.capacity, charge.hold + charge.spend
            excess = bucket.level + bucket.held + asked - capacity
            if asked > capacity:
                raise LimitExceeded(name, None)
            if excess > capacity * 1e-9:  # so that rounding refuses nobody
                refusals.append((charge.quota.wait(excess, now), name))
        if refusals:
            wait, name = max(refusals)
            raise LimitExceeded(name, wait)
        for name, charge in charges.items():
            buckets[name].held += charge.hold
            buckets[name].level += charge.spend

    async def settle(
        self, key: str, reservation: str, charges: Mapping[str, Charge], actual: Mapping[str, float], now: float
    ) -> None:
        for name, charge in charges.items():
            if charge.hold or actual.get(name):
                bucket = self._bucket(key, name, charge.quota, now)
                bucket.held = max(0.0, bucket.held - charge.hold)
                bucket.level += actual.get(name, 0.0)

    def _bucket(self, key: str, name: str, quota: Quota, now: float) -> _Bucket:
        known = self._buckets.get((key, name))
        bucket = known[1] if known else _Bucket(at=now)
        bucket.drain(known[0] if known else quota, now)
        if known is None or known[0] is not quota:
            self._buckets[key, name] = quota, bucket
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


def _month(at: float) -> tuple[int, int]:
    moment = datetime.fromtimestamp(at, UTC)
    return moment.year, moment.month
