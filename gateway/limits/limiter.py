"""Limits that hold under parallel calls: reserve what a call may use, settle what it did use.

A call stands under three levels at once: its key, its project and its tenant. It takes from every quota of all three
in one atomic step of the store, or from none and is refused. Where the store cannot be asked, no call is admitted
(fail closed): a limit that cannot be checked is never taken for no limit.

A reservation is a lease: the living renew theirs, what a dead process held is free again when it runs out.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from types import TracebackType
from typing import Protocol, Self

from gateway.errors import LimitsUnavailable
from gateway.limits.bucket import RETRY_CONCURRENT_S, Bucket, Budget, Quota
from gateway.limits.limit_kinds import BY_NAME, KINDS, LimitKind, Measure

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""What is held and not renewed for so long belongs to a process that died."""
RENEW_EVERY_S = 20.0
RETRY_EVERY_S = 1.0
CLOSE_TIMEOUT_S = 5.0
MAX_GIVEN_BACK = 4096
"""So many calls that were refused while the store was away are given back at once; leases see to the others."""
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key, project or tenant may use, by kind; a kind that is absent has no bound."""

    quotas: Mapping[LimitKind, Quota] = field(default_factory=dict)

    @classmethod
    def of(cls, **amounts: float | None) -> "Limits":
        """`amounts` by the names of kinds, as ``rpm=600``; None sets no bound.

        Raises ValueError for what is negative, infinite or no number, KeyError for a name that no kind has.
        """
        set_ = ((BY_NAME[name], amount) for name, amount in amounts.items() if amount is not None)
        return cls({kind: kind.quota(amount) for kind, amount in set_})

    def lower(self, other: "Limits") -> "Limits":
        """Of each quota the smaller one."""
        quotas = dict(self.quotas)
        for kind, quota in other.quotas.items():
            known = quotas.get(kind)
            quotas[kind] = quota if known is None or quota.capacity < known.capacity else known
        return Limits(quotas)


@dataclass(frozen=True, slots=True)
class Counter:
    """One quota of one level. `bucket` names it in every store; `scope` names the level for people."""

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
    """Every quota that binds, of all levels."""
    found: list[Counter] = []
    for level in levels:
        for kind in KINDS:
            quota = level.limits.quotas.get(kind)
            if quota is not None:
                found.append(Counter(f"{level.place}:{kind.bucket}", kind, quota, level.scope))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of prompt and answer together; euros."""

    tokens: float = 0.0
    money: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.tokens < math.inf and 0 <= self.money < math.inf):
            raise ValueError(f"a cost is a number of at least 0: {self}")

    def asked(self) -> dict[Measure, float]:
        """What a call of this cost takes."""
        return {"requests": 1.0, "running": 1.0, "tokens": self.tokens, "money": self.money}

    def consumed(self) -> dict[Measure, float]:
        """What it leaves in the buckets when it is settled; its one request was consumed at once, whatever comes."""
        return {"requests": 0.0, "running": 0.0, "tokens": self.tokens, "money": self.money}


NOTHING = Cost()


@dataclass(slots=True, eq=False)
class Reservation:
    """To be settled once, whatever became of the call; settling again does nothing. `id` is its own alone.

    Set by the store that took it: `used`, what is consumed and held of each counter, this call included; `deadline`,
    until when the lease runs, by the store's clock.
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
    """`counter` is used up. `retry_after`: seconds until the call may fit, None if it never will: `asked` is more than
    the whole. `used`: what is consumed and held of each of the reservation's counters. `held`: it would fit but for
    what running calls have reserved and may give back."""

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
    """Where buckets live, by a clock of its own. Each method is one atomic step, for all processes that share it.

    All raise LimitsUnavailable where the store cannot be reached; whether the step was made is then not known.
    """

    async def take(self, reservation: Reservation) -> None:
        """Take from all counters and set `used` and `deadline`; or raise LimitExceeded and take nothing.

        It names the one that never fits, else the one to wait longest for.
        """
        ...

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Release what was held and put what was consumed into the buckets, beyond their capacity if need be.

        May be repeated: it counts once. After the lease ran out it counts still.
        """
        ...

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Let their leases run LEASE_S from now."""
        ...

    async def close(self) -> None: ...


def admit(reservation: Reservation, buckets: Sequence[Bucket], now: float) -> None:
    """Take from the buckets of all counters, drained up to `now`; or raise LimitExceeded and take nothing.

    The one place that says what fits, for the stores that count in Python.
    """
    asked = reservation.cost.asked()
    refused: tuple[float, Counter, bool] | None = None
    for counter, bucket in zip(reservation.counters, buckets, strict=True):
        quota, amount = counter.quota, asked[counter.kind.measure]
        if amount > quota.capacity:
            raise LimitExceeded(counter, None, amount, [each.used for each in buckets])
        if excess := bucket.excess(quota, amount):
            held = counter.kind.is_settled and not bucket.consumed_excess(quota, amount)
            # A budget opens again with its next day; what running calls reserved of it, when one of them ends.
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
    """Use as ``async with Limiter(store) as limiter``, so that leases are renewed and what the store could not take is
    settled once it can. Leaving tries a last time for a few seconds."""

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
            log.error("the use of %d calls could not be counted", len(self._owed))

    @property
    def owed(self) -> int:
        """Calls whose use is still to be counted."""
        return len(self._owed)

    async def reserve(self, counters: Sequence[Counter], cost: Cost) -> Reservation:
        """Admit one request that may cost up to `cost`, or raise LimitExceeded and take nothing.

        Raises LimitsUnavailable when it cannot be known: what cannot be counted is not let through.
        """
        if not counters:
            return Reservation("", counters, cost)
        reservation = Reservation(token_hex(8), counters, cost)
        try:
            await self._store.take(reservation)
        except LimitExceeded:
            raise
        except BaseException:  # it may have been taken all the same: give it back
            if reservation.holds and len(self._owed) < MAX_GIVEN_BACK:
                self._owed[reservation.id] = reservation, NOTHING
            raise
        if reservation.holds:
            self._running[reservation.id] = reservation
        return reservation

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Replace what was reserved by what was used. More than reserved is owed: later calls wait for it.

        Does not raise: the call was answered. What the store cannot take now it is told again.
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
            log.error("the use of a call is to be counted later: %s", error.message)
        except BaseException:  # this very call may be cancelled
            self._owed[reservation.id] = reservation, actual
            raise

    async def renew(self) -> None:
        """Let the leases of all running calls run on. Raises LimitsUnavailable."""
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
                log.warning("limits cannot be kept: %s", error.message)
            except Exception as error:  # a defect must not end the renewals
                log.exception("limits cannot be kept: %s", type(error).__name__)

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
