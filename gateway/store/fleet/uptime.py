"""The time that replicas are up, on their tenants' bill: each of its milliseconds once.

A replica's row holds the time up to which it is billed. What came since is added to its day and that mark moved in one
transaction, for the mark that was read: of two that meter, one finds it moved. What no gateway saw is not billed, nor
are the hours by which a database's clock is put forward: the metering gateway bounds the time that can have passed by
its own.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.tables.fleet import ReplicaRow, UptimeRow

DAY_S = 86400

_REPLICA: Any = ReplicaRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_UPTIME: Any = UptimeRow.__table__  # type: ignore[attr-defined]


def meter(connection: Connection, cell: str, busy: Mapping[str, bool], at: float, within_s: float | None = None) -> int:
    """Bill the replicas named in `busy` (by id; whether one was at work) up to `at`, but no more than the `within_s`
    seconds before that; how many milliseconds that is."""
    earliest = float("-inf") if within_s is None else at - within_s
    rows = connection.execute(select(_REPLICA).where(_REPLICA.c.cell == cell, _REPLICA.c.ended_at.is_(None))).mappings()
    marks, bills = [], []
    for row in rows:
        if row["id"] not in busy or row["metered_until"] >= at:
            continue
        marks.append({"replica": row["id"], "seen": row["metered_until"], "at": at})
        for day, ms in _by_day(max(row["metered_until"], earliest), at):
            bills.append(
                {name: row[name] for name in ("tenant", "deployment", "model", "region", "gpu", "micro_eur_per_hour")}
                | {"replica": row["id"], "day": day, "up_ms": ms, "busy_ms": ms if busy[row["id"]] else 0}
            )
    if not marks:
        return 0
    moved = connection.execute(
        update(_REPLICA)
        .where(_REPLICA.c.id == bindparam("replica"), _REPLICA.c.metered_until == bindparam("seen"))
        .values(metered_until=bindparam("at")),
        marks,
    ).rowcount
    if moved != len(marks):
        raise RuntimeError("replicas were metered by another in the same moment; it needs no action")
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_UPTIME)
    more = {name: _UPTIME.c[name] + insert.excluded[name] for name in ("up_ms", "busy_ms")}
    connection.execute(insert.on_conflict_do_update(index_elements=["replica", "day"], set_=more), bills)
    return sum(bill["up_ms"] for bill in bills)


def _by_day(begin: float, end: float) -> Iterator[tuple[str, int]]:
    """The days (UTC) between two instants, with the milliseconds of each. Both instants are rounded alike, so that
    spans that follow each other add up."""
    start, stop = round(begin * 1000), round(end * 1000)
    while start < stop:
        midnight = (start // (DAY_S * 1000) + 1) * DAY_S * 1000
        upto = min(stop, midnight)
        yield datetime.fromtimestamp(start / 1000, UTC).date().isoformat(), upto - start
        start = upto
