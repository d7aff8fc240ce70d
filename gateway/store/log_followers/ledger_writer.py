"""The ledger: one row for each accepted call, derived from the audit log.

A row is made of the intent and completed by the outcome. How far each tree of the log was read is written in the same
transaction as the rows, so that every event counts exactly once, also after a crash in between; and what the ledger
sums up to is what the record holds, since it has no other source. The sums of days and of minutes are of that
transaction too.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic_core import from_json
from sqlalchemy import Connection, bindparam, delete, func, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import Database
from gateway.database.tables.usage import LedgerCursorRow, LedgerRow
from gateway.records.prices import PriceBook
from gateway.store.log_followers import call_curves, daily_sums
from gateway.store.log_followers.daily_sums import DAY_S, DEFAULT_DAYS, FLOOR_DAYS

log = logging.getLogger(__name__)

AT_ONCE = 5000
"""Events a transaction reads, and rows that one deletes."""
PAUSE_S = 0.12
"""Between two transactions: longer than SQLite sleeps between two tries of a lock (100 ms), so that others get it."""

LOOKED_UP = 256
"""Lines of batches in one statement."""

_CURSOR: Any = LedgerCursorRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_LEDGER: Any = LedgerRow.__table__  # type: ignore[attr-defined]
_TURN = ""
Row = dict[str, Any]


class Leaf(Protocol):
    @property
    def seq(self) -> int: ...

    @property
    def payload(self) -> bytes: ...


class LogReader(Protocol):
    """A snapshot of the audit log, as far as it is needed here."""

    def sizes(self) -> dict[str, int]: ...

    def leaves(self, tenant: str, start: int = 0) -> Iterator[Leaf]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Chunk:
    """The content of one span of a tree: calls that begin in it, and outcomes of calls that began before; and what it
    adds to the curves."""

    rows: dict[str, dict[str, Any]]
    outcomes: dict[str, dict[str, Any]]
    curves: call_curves.Sums


class LedgerWriter:
    """Reads the log that is called `log` (any name that stays) into the ledger.

    `days_of`: how many days the record of an intent is kept, which is how long its row is. `sizes`: of the log's trees
    now, where that costs less than opening the log. `now`: seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        log: str,
        days_of: Callable[[dict[str, Any]], int] = lambda intent: DEFAULT_DAYS,
        *,
        sizes: Callable[[], dict[str, int]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sizes = sizes
        self._now = now
        self._database = database
        self._log = log[:16]
        self._days_of = days_of
        self._read: dict[str, int] = {}  # at least so far, to see without a transaction that nothing is new

    def catch_up(self, open_reader: Callable[[], LogReader], prices: PriceBook) -> int:
        """Read what is there; how many events. 0 also where another process is at it. What comes meanwhile is for the
        next time: under load there is always more.

        Raises DatabaseUnavailable, or what the reader raises; then what was read stays read and the rest comes next
        time.
        """
        if not self._has_news(open_reader):
            return 0
        read = 0
        while True:
            taken, more = self._take(open_reader, prices)
            read += taken
            if not more:
                return read
            time.sleep(PAUSE_S)

    def expire(self, now: float, days: int | None = None, sum_days: int | None = None) -> int:
        """Delete the rows whose time is over at `now` (seconds since 1970); how many. `days`: of all rows, in place of
        their own periods. FLOOR_DAYS holds in either case. Several gateways may do it at once.

        The sums of a day go when the last of its rows may, or `sum_days` after the day if that is later.

        Raises DatabaseUnavailable.
        """
        kept = days if days is not None else func.coalesce(_LEDGER.c.keep_days, DEFAULT_DAYS)
        over = [_LEDGER.c.accepted_at <= now - FLOOR_DAYS * DAY_S, _LEDGER.c.accepted_at <= now - kept * DAY_S]
        keys = _LEDGER.c.tenant, _LEDGER.c.request_id
        deleted = 0
        while True:
            with self._database.write() as session:
                connection = session.connection()
                found = connection.execute(select(*keys).where(*over).limit(AT_ONCE)).all()
                if found:
                    connection.execute(delete(_LEDGER).where(tuple_(*keys).in_([tuple(row) for row in found])))
            deleted += len(found)
            if len(found) < AT_ONCE:
                break
        with self._database.write() as session:
            daily_sums.expire(session.connection(), now, days, sum_days)
            call_curves.expire(session.connection(), now)
        return deleted

    def _has_news(self, open_reader: Callable[[], LogReader]) -> bool:
        if self._sizes is not None:
            return bool(self._news(self._sizes()))
        with closing(open_reader()) as reader:
            return bool(self._news(reader.sizes()))

    def _news(self, sizes: dict[str, int]) -> list[str]:
        return [tenant for tenant, size in sizes.items() if size > self._read.get(tenant, 0)]

    def _take(self, open_reader: Callable[[], LogReader], prices: PriceBook) -> tuple[int, bool]:
        """How many events were read in one transaction, and whether it had to end before all that the log had. Only
        once it is committed is it known here what was read.

        The log is opened once the turn is ours: of one opened before, another process may have read more already.
        """
        taken, read = 0, {}
        with ExitStack() as opened, self._database.write() as session:
            connection = session.connection()
            if not self._take_turn(connection):
                return 0, False
            reader = opened.enter_context(closing(open_reader()))
            sizes = reader.sizes()
            news = self._news(sizes)
            cursors = select(_CURSOR.c.tenant, _CURSOR.c.next_seq).where(_CURSOR.c.log == self._log)
            known: dict[str, int] = {tenant: seq for tenant, seq in connection.execute(cursors)}
            over: list[Row] = []
            curves: call_curves.Sums = {}
            for tenant in news:
                start = known.get(tenant, 0)
                end = min(sizes[tenant], start + AT_ONCE - taken)
                if end > start:
                    chunk = _parsed(tenant, reader, start, end, self._days_of, self._now())
                    over += _write(connection, tenant, chunk, prices)
                    curves |= chunk.curves
                    self._move(connection, tenant, end)
                    taken += end - start
                elif start > sizes[tenant]:
                    log.error(
                        "the ledger read more of %s than the log has; an older log was restored, put the newest back",
                        tenant,
                    )
                read[tenant] = max(end, start)
                if taken >= AT_ONCE:
                    break
            rest = daily_sums.take_rest(connection, AT_ONCE)
            daily_sums.add(connection, over + rest)
            call_curves.add(connection, curves)
        self._read |= read
        return taken, taken >= AT_ONCE or len(rest) >= AT_ONCE

    def _take_turn(self, connection: Connection) -> bool:
        connection.execute(_insert(connection, _CURSOR), {"log": self._log, "tenant": _TURN, "next_seq": 0})
        turn = select(_CURSOR.c.log).where(_CURSOR.c.log == self._log, _CURSOR.c.tenant == _TURN)
        return connection.execute(turn.with_for_update(skip_locked=True)).first() is not None

    def _move(self, connection: Connection, tenant: str, end: int) -> None:
        insert = _insert(connection, _CURSOR, then={"next_seq": end})
        connection.execute(insert, {"log": self._log, "tenant": tenant, "next_seq": end})


def _insert(connection: Connection, table: Any, then: dict[str, Any] | None = None) -> Any:
    """Where the row is there already: nothing, or `then`."""
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    if then is None:
        return insert.on_conflict_do_nothing()
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=then)


def _parsed(
    tenant: str, reader: LogReader, start: int, end: int, days_of: Callable[[dict[str, Any]], int], now: float
) -> _Chunk:
    chunk = _Chunk({}, {}, {})
    for leaf in reader.leaves(tenant, start):
        if leaf.seq >= end:
            break
        if not leaf.payload:
            continue  # its content has expired, and so would its row have
        event = from_json(leaf.payload)
        request = event.get("request_id")
        match event["type"]:
            case "inference.accepted":
                chunk.rows[request] = _accepted(tenant, event) | {"keep_days": days_of(event)}
            case "inference.completed" | "inference.aborted":
                chunk.outcomes[request] = event
                call_curves.note(chunk.curves, tenant, event, _outcome_of(event), now)
            case "inference.denied":
                call_curves.note(chunk.curves, tenant, event, "denied", now)
    return chunk


def _accepted(tenant: str, event: dict[str, Any]) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "request_id": event["request_id"],
        "project": event["project"],
        "key_id": event["key_id"],
        "model": event.get("model_served") or event["model_requested"],
        "region": event["region"],
        "backend": event["backend_id"],
        "accepted_at": datetime.fromisoformat(event["ts"]).timestamp(),
        "outcome": None,
        "day": None,
        "tokens_in": 0,
        "tokens_cached": 0,
        "tokens_out": 0,
        "estimated": False,
        "backend_ms": 0,
        "price": None,
        "nano_eur": None,
        "energy_mj": None,
        "batch": event.get("batch_id"),
        "line": event.get("batch_line"),
        "summed": None,
    }


def _write(connection: Connection, tenant: str, chunk: _Chunk, prices: PriceBook) -> list[Row]:
    """Returns the rows that are over now and were not before, each once, also with other writers."""
    for request, event in chunk.outcomes.items():
        if request in chunk.rows:
            _close(chunk.rows[request], event, prices)
    _charge_lines_once(connection, tenant, list(chunk.rows.values()))
    over = []
    if chunk.rows:
        insert = _insert(connection, _LEDGER).returning(_LEDGER.c.request_id)
        written = connection.execute(insert, list(chunk.rows.values())).scalars().all()
        over = [row for request in written if (row := chunk.rows[request])["day"] is not None]
    before = {request: event for request, event in chunk.outcomes.items() if request not in chunk.rows}
    return over + _close_earlier(connection, tenant, before, prices) if before else over


def _close_earlier(
    connection: Connection, tenant: str, outcomes: dict[str, dict[str, Any]], prices: PriceBook
) -> list[Row]:
    """Close rows of calls that began in an earlier span and still run; returns those rows."""
    found = connection.execute(
        select(_LEDGER)
        .where(_LEDGER.c.tenant == tenant, _LEDGER.c.request_id.in_(outcomes), _LEDGER.c.outcome.is_(None))
        .with_for_update()
    ).mappings()
    closed = [_close(dict(row), outcomes[row["request_id"]], prices) for row in found]
    _charge_lines_once(connection, tenant, closed)
    if closed:
        names = [column.name for column in _LEDGER.c if not column.primary_key]
        statement = (
            update(_LEDGER)
            .where(_LEDGER.c.tenant == bindparam("of_tenant"), _LEDGER.c.request_id == bindparam("of_request"))
            .values({name: bindparam(name) for name in names})
        )
        places = [{"of_tenant": row["tenant"], "of_request": row["request_id"]} for row in closed]
        values = [{name: row[name] for name in names} for row in closed]
        connection.execute(statement, [{**place, **row} for place, row in zip(places, values, strict=True)])
    return closed


def _charge_lines_once(connection: Connection, tenant: str, rows: Sequence[dict[str, Any]]) -> None:
    """Of the calls of a line of a batch, charge the one that completed first, and no other. A line is called again
    where its answer was lost, since the gateway died before it could keep it, and where its call was cut."""
    lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["batch"] is None:
            continue
        if row["outcome"] == "completed":
            lines.setdefault((row["batch"], row["line"]), []).append(row)
        elif row["nano_eur"] is not None:
            row["nano_eur"] = 0
    for start in range(0, len(lines), LOOKED_UP):
        some = list(lines)[start : start + LOOKED_UP]
        place = tuple_(_LEDGER.c.batch, _LEDGER.c.line)
        query = select(_LEDGER.c.batch, _LEDGER.c.line).where(
            _LEDGER.c.tenant == tenant, _LEDGER.c.outcome == "completed", place.in_(some)
        )
        charged = {tuple(found) for found in connection.execute(query)}
        for line in some:
            for again in lines[line][line not in charged :]:
                again["nano_eur"] = None if again["nano_eur"] is None else 0


def _close(row: dict[str, Any], event: dict[str, Any], prices: PriceBook) -> dict[str, Any]:
    """The outcome's figures; the price is that of the moment of admission, by which its budget was counted."""
    row["model"] = event.get("model_served") or row["model"]
    price = prices.at(row["model"], row["accepted_at"])
    if price is not None and row["batch"] is not None:
        price = price.in_batch()
    tokens_in, tokens_out = event.get("tokens_in", 0), event.get("tokens_out", 0)
    cached = min(event.get("tokens_cached", 0), tokens_in)
    row.update(
        outcome=_outcome_of(event),
        day=event["ts"][:10],
        region=event.get("region", row["region"]),
        backend=event.get("backend_id", row["backend"]),
        tokens_in=tokens_in,
        tokens_cached=cached,
        tokens_out=tokens_out,
        estimated=event.get("tokens_estimated", False),
        backend_ms=event.get("backend_ms", 0),
        price=None if price is None else price.number,
        nano_eur=None if price is None else price.cost(tokens_in, tokens_out, cached),
        energy_mj=event.get("energy_mj"),
        summed=True,
    )
    return row


def _outcome_of(event: dict[str, Any]) -> str:
    """``completed``, ``aborted``, or ``refused``: by a backend or a policy, for what the client had asked (4xx)."""
    if event["type"] == "inference.aborted" and 400 <= (event.get("status") or 0) < 500:
        return "refused"
    return str(event["type"].removeprefix("inference."))
