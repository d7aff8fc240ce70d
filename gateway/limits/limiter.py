"""Limits that hold under parallel calls: reserve what a call may use, settle what it used.

Three levels apply to a call: its key, its project and its tenant. It takes from every quota of all three in one atomic
step of the store, or it is refused and takes nothing. If the store cannot be reached, no call is admitted (fail
closed).

A reservation is a lease. Running processes renew theirs; what a process that died held is released when its lease ends.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from audit.random_pieces import RandomPieces
from gateway.errors import LimitsUnavailable
from gateway.limits.bucket import RETRY_CONCURRENT_S, Bucket, Budget, Quota
from gateway.limits.limit_kinds import BY_NAME, KINDS, LimitKind, Measure

log = logging.getLogger(__name__)

_random_id = RandomPieces(8)

LEASE_S = 60.0
"""A reservation that was not renewed for so long belongs to a process that died."""
RENEW_EVERY_S = 20.0
RETRY_EVERY_S = 1.0
CLOSE_TIMEOUT_S = 5.0
MAX_GIVEN_BACK = 4096
"""At most so many refused calls are given back when the store is reachable again; the leases of others run out."""
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key, project or tenant may use, by kind; a kind that is absent is not limited."""

    quotas: Mapping[LimitKind, Quota] = field(default_factory=dict)

    @classmethod
    def of(cls, **amounts: float | None) -> "Limits":
        """`amounts` by the names of kinds, as ``rpm=600``; None sets no bound.

        Raises ValueError for what is negative, infinite or no number, KeyError for a name that no kind has.
        """
        set_ = ((BY_NAME[name], amount) for name, amount in amounts.items() if amount is not None)
        return cls({kind: kind.quota(amount) for kind, amount in set_})

    def lower(self, other: "Limits") -> "Limits":
        """Return the smaller one of each quota."""
        quotas = dict(self.quotas)
        for kind, quota in other.quotas.items():
            known = quotas.get(kind)
            quotas[kind] = quota if known is None or quota.capacity < known.capacity else known
        return Limits(quotas)


@dataclass(frozen=True, slots=True)
class Counter:
    """One quota of one level. `bucket`: its name in every store; `scope`: the level, for people."""

    bucket: str
    kind: LimitKind
    quota: Quota
    scope: str


@dataclass(frozen=True, slots=True)
class Level:
    """A tenant (`place` reads ``acme``), a project (``acme/main``) or a key (``acme/main/7GA3GXAA``)."""

    place: str
    scope: str
    limits: Limits


def counters(levels: Iterable[Level]) -> tuple[Counter, ...]:
    """A counter for every quota of all levels."""
    found: list[Counter] = []
    for level in levels:
        for kind in KINDS:
            quota = level.limits.quotas.get(kind)
            if quota is not None:
                found.append(Counter(f"{level.place}:{kind.bucket}", kind, quota, level.scope))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call uses: tokens of prompt and answer together, and euros. Raises ValueError for negative numbers."""

    tokens: float = 0.0
    money: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.tokens < math.inf and 0 <= self.money < math.inf):
            raise ValueError(f"a cost is a number of at least 0: {self}")

    def asked(self) -> dict[Measure, float]:
        """What a call of this cost takes."""
        return {"requests": 1.0, "running": 1.0, "tokens": self.tokens, "money": self.money}

    def consumed(self) -> dict[Measure, float]:
        """What it leaves in the buckets when it is settled; its one request was consumed at admission."""
        return {"requests": 0.0, "running": 0.0, "tokens": self.tokens, "money": self.money}


NOTHING = Cost()


@dataclass(slots=True, eq=False)
class Reservation:
    """What one call holds. Settled once, however the call ends; settling again does nothing. `id` is unique.

    Set by the store: `used`, the amount consumed and held of each counter, this call included; `deadline`, the end of
    the lease by the store's clock.
    """

    id: str
    counters: Sequence[Counter]
    cost: Cost
    used: Sequence[float] = ()
    deadline: float = 0.0
    open: bool = field(default=True)

    @property
    def holds(self) -> bool:
        """Whether anything is left to settle."""
        return any(counter.kind.is_held for counter in self.counters)


class LimitExceeded(Exception):
    """`counter` is used up.

    `retry_after`: seconds until the call may fit; None if it never will, since `asked` is more than the whole limit.
    `used`: the amount consumed and held of each of the reservation's counters. `held`: the call would fit without what
    running calls have reserved, which they may give back.
    """

    def __init__(
        self,
        counter: Counter,
        retry_after: float | None,
        asked: float,
        used: Sequence[float] = (),
        *,
        held: bool = False,
    ) -> None:
        self.counter = counter
        self.retry_after = None if retry_after is None or math.isinf(retry_after) else retry_after
        self.asked = asked
        self.used = used
        self.held = held
        limit = f"the limit of {counter.quota.capacity:.12g} {counter.kind.unit} of {counter.scope}"
        if retry_after is None:
            super().__init__(f"this request may use {asked:.12g}, more than {limit} as a whole")
            return
        reached = f"{limit} is {'reserved by calls that are running' if held else 'reached'}"
        if self.retry_after is None:
            super().__init__(reached)
        elif held:
            super().__init__(f"{reached}; try again when one has ended, or in {math.ceil(self.retry_after)} s")
        else:
            super().__init__(f"{reached}; try again in {math.ceil(self.retry_after)} s")


class LimitStore(Protocol):
    """Stores buckets, and has its own clock. Each method is one atomic step, for all processes that share the store.

    All raise LimitsUnavailable if the store cannot be reached; whether the step was made is then unknown.
    """

    async def take(self, reservation: Reservation) -> None:
        """Take from all counters and set `used` and `deadline`; or raise LimitExceeded and take nothing.

        LimitExceeded names the counter that never fits, else the one with the longest waiting time.
        """
        ...

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Release what was held and add what was consumed to the buckets, beyond their capacity if needed.

        Can be repeated and counts once, also after the lease ran out.
        """
        ...

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend the leases to LEASE_S from now."""
        ...

    async def close(self) -> None: ...


def admit(reservation: Reservation, buckets: Sequence[Bucket], now: float) -> None:
    """Take from the buckets of all counters, drained up to `now`; or raise LimitExceeded and take nothing.

    All stores that count in Python use this function.
    """
    asked = reservation.cost.asked()
    refused: tuple[float, Counter, bool] | None = None
    for counter, bucket in zip(reservation.counters, buckets, strict=True):
        quota, amount = counter.quota, asked[counter.kind.measure]
        if amount > quota.capacity:
            raise LimitExceeded(counter, None, amount, [each.used for each in buckets])
        if excess := bucket.excess(quota, amount):
            held = counter.kind.is_settled and not bucket.consumed_excess(quota, amount)
            # A budget opens again on its next day or month; what running calls reserved, when one of them ends.
            wait = RETRY_CONCURRENT_S if held and isinstance(quota, Budget) else quota.wait(excess, now)
            if refused is None or wait > refused[0]:
                refused = wait, counter, held
    if refused is not None:
        wait, counter, held = refused
        raise LimitExceeded(counter, wait, asked[counter.kind.measure], [each.used for each in buckets], held=held)
    for counter, bucket in zip(reservation.counters, buckets, strict=True):
        if counter.kind.is_held:
            bucket.held += asked[counter.kind.measure]
        else:
            bucket.level += asked[counter.kind.measure]
    reservation.used = [bucket.used for bucket in buckets]
    reservation.deadline = now + LEASE_S


class Limiter:
    """Use as ``async with Limiter(store) as limiter``: then leases are renewed, and settlements that failed are
    repeated. Leaving tries a last time for a few seconds."""

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._running: dict[str, Reservation] = {}
        self._owed: dict[str, tuple[Reservation, Cost]] = {}
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep(), name="limiter")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        with suppress(TimeoutError, LimitsUnavailable):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._settle_owed()
        if self._owed:
            log.error("the use of %d calls could not be counted; check the database of the limits", len(self._owed))

    @property
    def owed(self) -> int:
        """How many calls are not settled in the store yet."""
        return len(self._owed)

    async def reserve(self, counters: Sequence[Counter], cost: Cost) -> Reservation:
        """Admit one request that may cost up to `cost`, or raise LimitExceeded and take nothing.

        Raises LimitsUnavailable if the store cannot be reached: no call is admitted without being counted.
        """
        if not counters:
            return Reservation("", counters, cost)
        reservation = Reservation(_random_id().hex(), counters, cost)
        try:
            await self._store.take(reservation)
        except LimitExceeded:
            raise
        except BaseException:  # the store may have taken it anyway: give it back
            if reservation.holds and len(self._owed) < MAX_GIVEN_BACK:
                self._owed[reservation.id] = reservation, NOTHING
            raise
        if reservation.holds:
            self._running[reservation.id] = reservation
        return reservation

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Replace what was reserved by what was used. An excess over the reservation counts against later calls.

        Does not raise if the store fails, since the call was answered: the settlement is repeated later.
        """
        if not reservation.open:
            return
        reservation.open = False
        if self._running.pop(reservation.id, None) is None:
            return
        try:
            await self._store.settle(reservation, actual)
        except LimitsUnavailable as error:
            self._owed[reservation.id] = reservation, actual
            log.error(
                "the use of a call is to be counted later: %s; check the database of the limits, it is tried again",
                error.message,
            )
        except BaseException:  # this very call may be cancelled
            self._owed[reservation.id] = reservation, actual
            raise

    async def renew(self) -> None:
        """Renew the leases of all running calls. Raises LimitsUnavailable."""
        await self._store.renew([running for running in self._running.values() if running.open])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(RETRY_EVERY_S)
            try:
                await self._settle_owed()
                if loop.time() - renewed >= RENEW_EVERY_S:
                    await self.renew()
                    renewed = loop.time()
            except LimitsUnavailable as error:
                log.warning(
                    "limits cannot be kept: %s; check the database of the limits, it is tried again", error.message
                )
            except Exception as error:  # a defect must not end the renewals
                log.exception(
                    "limits cannot be kept: %s; check the database of the limits, it is tried again",
                    type(error).__name__,
                )

    async def _settle_owed(self) -> None:
        while self._owed:
            batch = list(self._owed.values())[:_AT_ONCE]
            outcomes = await asyncio.gather(*(self._store.settle(*owed) for owed in batch), return_exceptions=True)
            for (reservation, _), outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    self._owed.pop(reservation.id, None)
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome
