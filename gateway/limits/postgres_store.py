"""Buckets in PostgreSQL, for limits that hold across gateways without Redis.

A batch is a transaction. It locks the rows of its buckets in the order of their names, so that no two deadlock, and
computes in Python, as in memory. The clock is the database's, the same for all gateways.

A batch takes two round trips, and is committed to disk before any call is admitted: so limits are exact also after a
crash of the database (docs/adr/0015).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from gateway.database.database import Database
from gateway.database.errors import StoreError
from gateway.database.persistent_connection import PersistentConnection, Statement
from gateway.limits.batching import BatchedOperation, BatchingLimitStore, unavailable
from gateway.limits.bucket import Bucket
from gateway.limits.limiter import LEASE_S, LimitExceeded, Reservation, admit

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 1.0
SWEEP_AT_ONCE = 500

_MAKE = "INSERT INTO limit_bucket (name, level, held, at) SELECT unnest(%s::text[]), 0, 0, 0 ON CONFLICT DO NOTHING"
_LOCK = (
    "SELECT name, level, held, at, extract(epoch FROM clock_timestamp())::float8"
    " FROM limit_bucket WHERE name = ANY(%s) ORDER BY name FOR UPDATE"
)
_UPDATE = (
    "UPDATE limit_bucket AS b SET level = n.level, held = n.held, at = n.at"
    " FROM unnest(%s::text[], %s::float8[], %s::float8[], %s::float8[]) AS n (name, level, held, at)"
    " WHERE b.name = n.name"
)
_HOLD = (
    "INSERT INTO limit_hold (reservation, deadline, amounts)"
    " SELECT r, %s, a::json FROM unnest(%s::text[], %s::text[]) AS n (r, a)"
)
_END = "DELETE FROM limit_hold WHERE reservation = ANY(%s) RETURNING reservation"
_RENEW = (
    "UPDATE limit_hold SET deadline = coalesce(%s, extract(epoch FROM clock_timestamp())::float8) + %s"
    " WHERE reservation = ANY(%s) RETURNING reservation, deadline"
)
_DEAD = (
    "SELECT reservation, amounts FROM limit_hold"
    " WHERE deadline < coalesce(%s, extract(epoch FROM clock_timestamp())::float8) ORDER BY deadline LIMIT %s"
)
_END_DEAD = (
    "DELETE FROM limit_hold WHERE reservation = ANY(%s)"
    " AND deadline < coalesce(%s, extract(epoch FROM clock_timestamp())::float8) RETURNING reservation"
)


class PostgresLimitStore(BatchingLimitStore):
    """Close it when done; the database stays open. `now`: in place of the database's clock."""

    def __init__(self, database: Database, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._connection = PersistentConnection(database)
        self._now = now
        self._known: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="limits")
        self._swept_at = float("-inf")

    async def apply(self, steps: Sequence[BatchedOperation]) -> Sequence[Exception | None]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._apply, steps)
        except StoreError as error:
            raise unavailable(error) from None

    async def close(self) -> None:
        await super().close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _apply(self, steps: Sequence[BatchedOperation]) -> list[Exception | None]:
        """One transaction for all; the outcome of each."""
        self._sweep()
        names = {counter.bucket for step in steps for counter in step.reservation.counters if step.kind != "renew"}
        self._make(names - self._known)
        renewing = {step.reservation.id: step.reservation for step in steps if step.kind == "renew"}
        settled = [step.reservation.id for step in steps if step.kind == "settle"]
        with self._connection.transaction(
            (_LOCK, (sorted(names),)),
            (_END, (settled,)),
            (_RENEW, (self._time(), LEASE_S, list(renewing))),
        ) as step:
            rows, ended, renewed = step.read
            for reservation, deadline in renewed:
                renewing[reservation].deadline = deadline
            buckets = _buckets(rows)
            now = self._now() if self._now is not None else max((row[4] for row in rows), default=0.0)
            held: dict[str, str] = {}
            outcomes = _reckon(steps, buckets, now, {row[0] for row in ended}, held)
            if held:
                step.write.append((_HOLD, (now + LEASE_S, list(held), list(held.values()))))
            step.write.append(_update(buckets))
        return outcomes

    def _make(self, names: Iterable[str]) -> None:
        """In a transaction of its own, which ends before any row is locked."""
        missing = sorted(names)
        if missing:
            self._connection.ask((_MAKE, (missing,)))
            self._known.update(missing)

    def _sweep(self) -> None:
        """Release what processes that died held: reservations whose leases ran out."""
        if self._now is None and monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = monotonic()
        (found,) = self._connection.ask((_DEAD, (self._time(), SWEEP_AT_ONCE)))
        dead: dict[str, dict[str, float]] = dict(found)
        if not dead:
            return
        names = sorted({name for amounts in dead.values() for name in amounts})
        with self._connection.transaction((_LOCK, (names,)), (_END_DEAD, (list(dead), self._time()))) as step:
            rows, ended = step.read
            buckets = _buckets(rows)
            for (reservation,) in ended:
                for name, amount in dead[reservation].items():
                    if name in buckets:
                        buckets[name].release(amount)
            step.write.append(_update(buckets))
        log.warning("%d leases of limits ran out; it needs no action, if a gateway was ended", len(dead))

    def _time(self) -> float | None:
        """The injected time; None to use the database's clock."""
        return self._now() if self._now is not None else None


def _buckets(rows: Iterable[Any]) -> dict[str, Bucket]:
    """Buckets by name, in the order of the rows."""
    return {name: Bucket(level, held, at) for name, level, held, at, _ in rows}


def _update(buckets: dict[str, Bucket]) -> Statement:
    """The statement that updates all buckets; one statement, also for no buckets."""
    values = buckets.values()
    return _UPDATE, (list(buckets), [b.level for b in values], [b.held for b in values], [b.at for b in values])


def _reckon(
    steps: Sequence[BatchedOperation], buckets: dict[str, Bucket], now: float, ended: set[str], held: dict[str, str]
) -> list[Exception | None]:
    """The outcome of each step. `ended`: reservations that were held until now. `held`: receives what each admitted
    call holds from now on, as JSON."""
    outcomes: list[Exception | None] = []
    for step in steps:
        outcome: Exception | None = None
        if step.kind == "take" and not step.is_void:
            try:
                _take(step.reservation, buckets, now, held)
            except LimitExceeded as refused:
                outcome = refused
        elif step.kind == "settle":
            _settle(step, buckets, now, step.reservation.id in ended)
            ended.discard(step.reservation.id)  # if it comes twice in one batch
        outcomes.append(outcome)
    return outcomes


def _take(reservation: Reservation, buckets: dict[str, Bucket], now: float, held: dict[str, str]) -> None:
    own = [buckets[counter.bucket] for counter in reservation.counters]
    for counter, bucket in zip(reservation.counters, own, strict=True):
        bucket.drain(counter.quota, now)
    admit(reservation, own, now)
    if reservation.holds:
        asked = reservation.cost.asked()
        amounts = {c.bucket: asked[c.kind.measure] for c in reservation.counters if c.kind.is_held}
        held[reservation.id] = json.dumps(amounts)


def _settle(step: BatchedOperation, buckets: dict[str, Bucket], now: float, was_held: bool) -> None:
    """A reservation that is no longer held was settled before, or its lease ran out: then its consumption still
    counts."""
    if not was_held and now <= step.reservation.deadline:
        return
    held, consumed = step.reservation.cost.asked(), step.actual.consumed()
    for counter in step.reservation.counters:
        if counter.kind.is_held:
            bucket = buckets[counter.bucket]
            bucket.drain(counter.quota, now)
            measure = counter.kind.measure
            bucket.release(held[measure] if was_held else 0.0, consumed[measure])
