"""Daily sums of the ledger, so that the time of a report does not grow with the number of calls.

A row is added when it is over, in the transaction that writes it; it never changes again. So sums and rows agree at any
moment, until rows are deleted: sums name no call, and may be kept longer.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.tables.usage import REST, DailySumRow, LedgerRow

FLOOR_DAYS = 62
"""Rows and sums are kept for this long at the least: budgets of a month are counted from them, and a month's bill."""

DEFAULT_DAYS = 365
"""The retention of rows that were written before each had its own period."""

DAY_S = 86_400

_SUM: Any = DailySumRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_LEDGER: Any = LedgerRow.__table__  # type: ignore[attr-defined]
_PLACE = tuple(column.name for column in _SUM.primary_key)
_ADDED = tuple(column.name for column in _SUM.c if not column.primary_key and column.name != "keep_days")


def add(connection: Connection, over: Iterable[Mapping[str, Any]]) -> None:
    """Add these rows of the ledger, each of which is over and was not added before."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in over:
        place = tuple(row[name] for name in _PLACE)
        known = sums.setdefault(place, {**dict(zip(_PLACE, place, strict=True)), **dict.fromkeys(_ADDED, 0)})
        for name, more in _figures(row).items():
            known[name] += more
        known["keep_days"] = max(
            known.get("keep_days", 0), DEFAULT_DAYS if row["keep_days"] is None else row["keep_days"]
        )
    if not sums:
        return
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_SUM)
    new = insert.excluded
    then = {name: _SUM.c[name] + new[name] for name in _ADDED}
    then["keep_days"] = case((new.keep_days > _SUM.c.keep_days, new.keep_days), else_=_SUM.c.keep_days)
    statement = insert.on_conflict_do_update(index_elements=list(_SUM.primary_key.columns), set_=then)
    connection.execute(
        statement, [sums[place] for place in sorted(sums)]
    )  # in one order: two writers block, not lock up


def take_rest(connection: Connection, most: int) -> list[dict[str, Any]]:
    """Rows that are over and in no sum, since a gateway of an earlier version wrote them: marked as added, which the
    caller does in the same transaction. No two callers get the same."""
    found = connection.execute(select(_LEDGER).where(text(REST)).limit(most).with_for_update(skip_locked=True))
    rows = [dict(row) for row in found.mappings()]
    if rows:
        same = (_LEDGER.c.tenant == bindparam("of_tenant")) & (_LEDGER.c.request_id == bindparam("of_request"))
        places = [{"of_tenant": row["tenant"], "of_request": row["request_id"]} for row in rows]
        connection.execute(update(_LEDGER).where(same).values(summed=True), places)
    return rows


def expire(connection: Connection, now: float, days: int | None, sum_days: int | None) -> None:
    """Delete the sums of days that ended longer ago, at `now`, than the last of their rows is kept (`days` in place of
    the rows' own periods), than `sum_days`, and than FLOOR_DAYS."""
    for (own,) in connection.execute(select(_SUM.c.keep_days).distinct()).all():
        kept = max(own if days is None else days, sum_days or 0, FLOOR_DAYS)
        first = datetime.fromtimestamp(now - kept * DAY_S, UTC).date().isoformat()
        connection.execute(delete(_SUM).where(and_(_SUM.c.keep_days == own, _SUM.c.day < first)))


def _figures(row: Mapping[str, Any]) -> dict[str, int]:
    tokens = row["tokens_in"] + row["tokens_out"]
    priced, measured = row["nano_eur"] is not None, row["energy_mj"] is not None
    return {
        "requests": 1,
        "completed": int(row["outcome"] == "completed"),
        "aborted": int(row["outcome"] == "aborted"),
        "refused": int(row["outcome"] == "refused"),
        "estimated": int(row["estimated"]),
        "unpriced": int(not priced),
        "tokens_in": row["tokens_in"],
        "tokens_cached": row["tokens_cached"],
        "tokens_out": row["tokens_out"],
        "backend_ms": row["backend_ms"],
        "nano_eur": row["nano_eur"] or 0,
        "priced_tokens": tokens if priced else 0,
        "measured": int(measured),
        "energy_mj": row["energy_mj"] or 0,
        "measured_tokens": tokens if measured else 0,
    }
