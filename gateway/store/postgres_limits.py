"""Buckets in PostgreSQL, for limits that hold across gateways without a Redis.

A round is a transaction. It locks the rows of its buckets in the order of their names, so that no two wait for each
other, and reckons in Python, as in memory. The clock is the database's, one for all gateways.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from gateway.limits import LEASE_S, LimitExceeded, Reservation, admit
from gateway.quotas import Bucket
from gateway.rounds import RoundLimitStore, Step, unavailable
from gateway.store.database import Database
from gateway.store.errors import StoreError

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 1.0
SWEEP_AT_ONCE = 500

_MAKE = "INSERT INTO limit_bucket (name, level, held, at) SELECT unnest(%s::text[]), 0, 0, 0 ON CONFLICT DO NOTHING"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_LOCK = (
    "SELECT name, level, held, at, extract(epoch FROM clock_timestamp())::float8"
    " FROM limit_bucket WHERE name = ANY(%s) ORDER BY name FOR UPDATE"
)
_UPDATE = (
    "UPDATE limit_bucket AS b SET level = n.level, held = n.held, at = n.at"
    " FROM unnest(%s::text[], %s::float8[], %s::float8[], %s::float8[]) AS n (name, level, held, at)"
    " WHERE b.name = n.name"
)
_HOLD = (  # in front of _UPDATE, for one way there and back
    "WITH held AS (INSERT INTO limit_hold (reservation, deadline, amounts)"
    " SELECT r, %s, a::json FROM unnest(%s::text[], %s::text[]) AS n (r, a)) "
)
_END = "DELETE FROM limit_hold WHERE reservation = ANY(%s) RETURNING reservation"
_RENEW = "UPDATE limit_hold SET deadline = %s WHERE reservation = ANY(%s) RETURNING reservation"
_DEAD = "SELECT reservation, amounts FROM limit_hold WHERE deadline < %s ORDER BY deadline LIMIT %s"
_END_DEAD = "DELETE FROM limit_hold WHERE reservation = ANY(%s) AND deadline < %s RETURNING reservation"


class PostgresLimitStore(RoundLimitStore):
    """Close it when done; the database stays open. `now`: in place of the database's clock."""

    def __init__(self, database: Database, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._database = database
        self._now = now
        self._known: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="limits")
        self._swept_at = float("-inf")

    async def apply(self, steps: Sequence[Step]) -> Sequence[Exception | None]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._apply, steps)
        except StoreError as error:
            raise unavailable(error) from None

    async def close(self) -> None:
        await super().close()
        self._thread.shutdown()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _apply(self, steps: Sequence[Step]) -> list[Exception | None]:
        """One transaction for all; the outcome of each."""
        self._sweep()
        names = {counter.bucket for step in steps for counter in step.reservation.counters if step.kind != "renew"}
        self._make(names - self._known)
        with self._database.write() as session:
            connection = session.connection()
            buckets, now = self._lock(connection, names)
            held: dict[str, str] = {}
            outcomes = self._reckon(connection, steps, buckets, now, held)
            _update(connection, buckets, now + LEASE_S, held)
        return outcomes

    def _reckon(
        self,
        connection: Connection,
        steps: Sequence[Step],
        buckets: dict[str, Bucket],
        now: float,
        held: dict[str, str],
    ) -> list[Exception | None]:
        """`held`: gets what each call that is let in holds, as JSON."""
        settled = [step.reservation.id for step in steps if step.kind == "settle"]
        ended = _ids(connection, _END, settled) if settled else set()
        outcomes: list[Exception | None] = []
        for step in steps:
            outcome: Exception | None = None
            if step.kind == "take" and not step.is_void:
                try:
                    self._take(step.reservation, buckets, now, held)
                except LimitExceeded as refused:
                    outcome = refused
            elif step.kind == "settle":
                _settle(step, buckets, now, step.reservation.id in ended)
                ended.discard(step.reservation.id)  # were it told twice in one transaction
            outcomes.append(outcome)
        renewing = {step.reservation.id: step.reservation for step in steps if step.kind == "renew"}
        if renewing:
            for renewed in _ids(connection, _RENEW, list(renewing), now + LEASE_S):
                renewing[renewed].deadline = now + LEASE_S
        return outcomes

    def _take(self, reservation: Reservation, buckets: dict[str, Bucket], now: float, held: dict[str, str]) -> None:
        own = [buckets[counter.bucket] for counter in reservation.counters]
        for counter, bucket in zip(reservation.counters, own, strict=True):
            bucket.drain(counter.quota, now)
        admit(reservation, own, now)
        if reservation.holds:
            asked = reservation.cost.asked()
            amounts = {c.bucket: asked[c.kind] for c in reservation.counters if c.kind != "requests"}
            held[reservation.id] = json.dumps(amounts)

    def _make(self, names: Iterable[str]) -> None:
        """In a transaction of its own, so that it is over before any row is locked."""
        missing = sorted(names)
        if missing:
            with self._database.write() as session:
                session.connection().exec_driver_sql(_MAKE, (missing,))
            self._known.update(missing)

    def _sweep(self) -> None:
        """Give back what was held by the dead, whose leases ran out."""
        if self._now is None and monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = monotonic()
        with self._database.write() as session:
            connection = session.connection()
            now = self._clock(connection)
            found = connection.exec_driver_sql(_DEAD, (now, SWEEP_AT_ONCE))
            dead: dict[str, dict[str, float]] = {reservation: amounts for reservation, amounts in found}
            if not dead:
                return
            buckets, _ = self._lock(connection, {name for amounts in dead.values() for name in amounts})
            for ended in _ids(connection, _END_DEAD, list(dead), now):
                for name, amount in dead[ended].items():
                    if name in buckets:
                        buckets[name].release(amount)
            _update(connection, buckets)
        log.warning("%d leases of limits ran out", len(dead))

    def _lock(self, connection: Connection, names: Iterable[str]) -> tuple[dict[str, Bucket], float]:
        """The buckets, in the order of their names, and now."""
        rows = connection.exec_driver_sql(_LOCK, (sorted(names),)).all()
        buckets = {name: Bucket(level, held, at) for name, level, held, at, _ in rows}
        if self._now is not None or not rows:
            return buckets, self._clock(connection)
        return buckets, max(row[4] for row in rows)

    def _clock(self, connection: Connection) -> float:
        return self._now() if self._now is not None else float(connection.exec_driver_sql(_CLOCK).scalar_one())


def _update(
    connection: Connection, buckets: dict[str, Bucket], deadline: float = 0.0, held: Mapping[str, str] | None = None
) -> None:
    if not buckets:
        return
    levels, helds, ats = zip(*((b.level, b.held, b.at) for b in buckets.values()), strict=True)
    written: tuple[Any, ...] = (list(buckets), list(levels), list(helds), list(ats))
    if held:
        written = (deadline, list(held), list(held.values()), *written)
    connection.exec_driver_sql(_HOLD + _UPDATE if held else _UPDATE, written)


def _settle(step: Step, buckets: dict[str, Bucket], now: float, was_held: bool) -> None:
    """What is not held any more was settled before, or its lease ran out: then what was consumed counts still."""
    if not was_held and now <= step.reservation.deadline:
        return
    held, consumed = step.reservation.cost.asked(), step.actual.consumed()
    for counter in step.reservation.counters:
        if counter.kind != "requests":
            bucket = buckets[counter.bucket]
            bucket.drain(counter.quota, now)
            bucket.release(held[counter.kind] if was_held else 0.0, consumed[counter.kind])


def _ids(connection: Connection, statement: str, ids: list[str], *more: Any) -> set[str]:
    parameters = (*more, ids) if statement == _RENEW else (ids, *more)
    return {row[0] for row in connection.exec_driver_sql(statement, parameters)}
