"""Arithmetic of quotas: how buckets drain and how long to wait. Pure functions; `gateway.limits.limiter` applies them.

A rate is a leaky bucket as a meter (GCRA, ITU-T I.371): consumption fills it, time drains it at the quota's rate. The
bucket of a budget does not leak; it is emptied when its day or month (UTC) ends. Concurrency is held, never consumed.

What is reserved but not settled is held in addition to the level of the bucket and does not drain, since how much of it
will be consumed is not known yet. A call is admitted if its amount, the held amount and the level fit together. So in
any span of time no more than ``burst + rate x time`` is consumed or held, and a refund can never be used twice.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

RETRY_CONCURRENT_S = 1.0
"""Retry-After for a concurrency limit, in seconds: when a running call ends is not known."""

TOLERANCE = 1e-9
"""Fraction of a capacity that rounding errors may exceed it by."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`amount` every `period` seconds, at most `burst` (by default `amount`) at once. An amount of 0 admits nothing.

    Raises ValueError for negative and infinite numbers, as do the other quotas.
    """

    amount: float
    period: float = 60.0
    burst: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.amount < math.inf and 0 < self.period < math.inf and 0 <= self.capacity < math.inf):
            raise ValueError(f"the rate {self} is negative or not a number; give a number of at least 0")

    @property
    def name(self) -> str:
        return "rate"

    @property
    def capacity(self) -> float:
        return self.amount if self.burst is None else self.burst

    def drained(self, level: float, since: float, now: float) -> float:
        return max(0.0, level - (now - since) * self.amount / self.period)

    def wait(self, excess: float, now: float) -> float:
        """Seconds until `excess` has drained; infinite for a rate of 0."""
        return excess * self.period / self.amount if self.amount else math.inf


@dataclass(frozen=True, slots=True)
class Budget:
    """`amount` every calendar day or month, in UTC."""

    amount: float
    span: Literal["day", "month"] = "month"

    def __post_init__(self) -> None:
        if not 0 <= self.amount < math.inf:
            raise ValueError(f"the budget {self} is negative or not a number; give a number of at least 0")

    @property
    def name(self) -> str:
        return self.span

    @property
    def capacity(self) -> float:
        return self.amount

    def drained(self, level: float, since: float, now: float) -> float:
        return level if since >= self.begin(now) else 0.0

    def wait(self, excess: float, now: float) -> float:
        """Seconds until the day or month ends."""
        begin = datetime.fromtimestamp(self.begin(now), UTC)
        later = begin + timedelta(days=1 if self.span == "day" else 32)
        return self.begin(later.timestamp()) - now

    def begin(self, now: float) -> float:
        """The beginning of the day or month of `now`, in seconds since 1970."""
        if self.span == "day":
            return now - now % 86400
        return datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `amount` at the same time."""

    amount: float

    def __post_init__(self) -> None:
        if not 0 <= self.amount < math.inf:
            raise ValueError(f"the concurrency {self} is negative or not a number; give a number of at least 0")

    @property
    def name(self) -> str:
        return "concurrency"

    @property
    def capacity(self) -> float:
        return self.amount

    def drained(self, level: float, since: float, now: float) -> float:
        return 0.0

    def wait(self, excess: float, now: float) -> float:
        return RETRY_CONCURRENT_S


Quota = Rate | Budget | Concurrency


@dataclass(slots=True)
class Bucket:
    """The consumed (`level`) and held amount of one quota at time `at`, in seconds since 1970."""

    level: float = 0.0
    held: float = 0.0
    at: float = 0.0

    @property
    def used(self) -> float:
        return self.level + self.held

    def drain(self, quota: Quota, now: float) -> None:
        if now > self.at:  # a clock set back neither fills nor drains
            if self.level:
                self.level = quota.drained(self.level, self.at, now)
            self.at = now

    def excess(self, quota: Quota, asked: float) -> float:
        """The part of `asked` that does not fit now; 0 if all of it fits."""
        over = self.level + self.held + asked - quota.capacity
        return over if over > quota.capacity * TOLERANCE else 0.0

    def consumed_excess(self, quota: Quota, asked: float) -> float:
        """As `excess`, without what is held."""
        over = self.level + asked - quota.capacity
        return over if over > quota.capacity * TOLERANCE else 0.0

    def release(self, held: float, consumed: float = 0.0) -> None:
        self.held = max(0.0, self.held - held)
        self.level += consumed
