"""Calls added up over minutes, ten minutes and hours: what the console draws as curves.

Of the events that the ledger reads, in the transaction that moves its cursor, so each counts once.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.tables.usage import BackendCurveRow, CallCurveRow
from gateway.records.curves import PERIODS, class_of, steps_of

UNKNOWN = -1
"""The class of calls whose time is not known."""

_CURVE: Any = CallCurveRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_OF_BACKENDS: Any = BackendCurveRow.__table__  # type: ignore[attr-defined]
_PLACE = tuple(column.name for column in _CURVE.primary_key)
_ADDED = tuple(column.name for column in _CURVE.c if not column.primary_key)

Sums = dict[tuple[str, int, int, int], dict[str, int]]


def note(sums: Sums, tenant: str, event: Mapping[str, Any], outcome: str, now: float) -> None:
    """Add an event that ends a call to `sums`. `outcome`: completed, denied, refused or aborted."""
    took = event.get("latency_ms")
    row = {outcome: 1, "tokens_out": event.get("tokens_out") or 0}
    if (first := event.get("ttft_ms")) is not None:
        row |= {"first_tokens": 1, "first_token_ms": first}
    number = UNKNOWN if took is None or outcome != "completed" else class_of(took)
    for step_s, begin in steps_of(datetime.fromisoformat(event["ts"]).timestamp(), now):
        known = sums.setdefault((tenant, step_s, begin, number), dict.fromkeys(_ADDED, 0))
        for name, more in row.items():
            known[name] += more


def add(connection: Connection, sums: Sums) -> None:
    """Add `sums` to what there is."""
    add_rows(connection, _CURVE, [dict(zip(_PLACE, place, strict=True)) | row for place, row in sorted(sums.items())])


def add_rows(connection: Connection, table: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert rows, each added column by column to the one that has its key. The caller sorts them: two writers then
    block, and do not lock each other up."""
    if not (rows := list(rows)):
        return
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    then = {column.name: column + insert.excluded[column.name] for column in table.c if not column.primary_key}
    connection.execute(insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=then), rows)


def expire(connection: Connection, now: float) -> None:
    """Delete the rows of calls and of backends whose time is over at `now`, seconds since 1970."""
    for table in (_CURVE, _OF_BACKENDS):
        for period in PERIODS.values():
            over = now - period.kept_s - period.step_s
            connection.execute(delete(table).where(table.c.step_s == period.step_s, table.c.begin < over))
