"""Database leases: a right that one gateway at a time holds for some seconds.

By the database's clock, so that gateways whose own differ agree (Gray & Cheriton 1989). Each holder has a term, and
shows it again inside every transaction (a fencing token, Kleppmann 2016): one that was suspended and wakes up after
another took over can change nothing.

A holder renews its lease many times before it ends. One that another has watched unchanged for twice its length is over
too, whatever the clock shows (as in Kubernetes' leader election): it may have been put back meanwhile.
"""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, select, text, update

from gateway.database.database import Database
from gateway.database.tables.fleet import LeaseRow

_LEASE: Any = LeaseRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass

# Understood by SQLite (from 3.35) and PostgreSQL alike. The condition reads the row as it is once it is locked.
_TAKE = text(
    "INSERT INTO lease (name, holder, term, until) VALUES (:name, :holder, 1, :until) "
    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until, "
    "term = lease.term + CASE WHEN lease.holder = excluded.holder AND lease.until >= :now THEN 0 ELSE 1 END "
    "WHERE lease.holder = excluded.holder OR lease.until < :now "
    "OR (lease.term = :seen_term AND lease.until = :seen_until) RETURNING term"
)


class LeaseLost(Exception):
    """We do not hold the lease."""


class Lease:
    """`holder`: of this process alone, and unlike any before."""

    def __init__(
        self,
        database: Database,
        name: str,
        holder: str,
        *,
        ttl_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._name = name
        self._holder = holder
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._watched: tuple[tuple[int, float], float] | None = None  # another's term and end, and since when

    def take(self) -> int | None:
        """The term, if it is ours for `ttl_s` seconds from now; None where another holds it."""
        with self._database.write() as session:
            connection = session.connection()
            now = database_time(connection)
            seen_term, seen_until = self._over()
            named = {
                "name": self._name,
                "holder": self._holder,
                "now": now,
                "until": now + self._ttl_s,
                "seen_term": seen_term,
                "seen_until": seen_until,
            }
            term = connection.execute(_TAKE, named).scalar_one_or_none()
            if term is None:
                self._watch(connection)
        return None if term is None else int(term)

    def _watch(self, connection: Connection) -> None:
        row = connection.execute(select(_LEASE.c.term, _LEASE.c.until).where(_LEASE.c.name == self._name)).one()
        seen = row.term, row.until
        if self._watched is None or self._watched[0] != seen:
            self._watched = seen, self._monotonic()

    def _over(self) -> tuple[int, float]:
        """Term and end of a lease that was not renewed for so long that it has expired; zeros where there is none."""
        if self._watched is None or self._monotonic() - self._watched[1] < 2 * self._ttl_s:
            return -1, 0.0
        return self._watched[0]

    def check(self, connection: Connection, term: int) -> float:
        """The database's time, if `term` is still ours; until the transaction ends no other gateway can take the lease.

        Raises LeaseLost.
        """
        row = select(_LEASE.c.until).where(
            _LEASE.c.name == self._name, _LEASE.c.holder == self._holder, _LEASE.c.term == term
        )
        until = connection.execute(row.with_for_update()).scalar_one_or_none()
        now = database_time(connection)
        if until is None or until < now:
            raise LeaseLost(f"the lease {self._name} was taken by another gateway; it needs no action")
        return now

    def release(self) -> None:
        """Let others take it at once."""
        with self._database.write() as session:
            own = (_LEASE.c.name == self._name, _LEASE.c.holder == self._holder)
            session.connection().execute(update(_LEASE).where(*own).values(until=0.0))


def database_time(connection: Connection) -> float:
    """Seconds since 1970 by the database's clock."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    return float(connection.execute(text("SELECT (julianday('now') - 2440587.5) * 86400.0")).scalar_one())
