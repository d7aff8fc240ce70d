"""Messages of webhooks, made of the record: each once, and kept until it was delivered or given up.

How far the record was read for a webhook is written in the transaction that writes its messages, as in the ledger, so
that none is lost or made twice. A webhook begins at what is on record when it is first configured.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import Database
from gateway.database.tables.webhooks import WebhookCursorRow, WebhookMessageRow
from gateway.store.log_followers.ledger_writer import LogReader

AT_ONCE = 2000
"""Leaves that a transaction reads."""
KEPT_S = 62 * 86400.0
"""That a message is over for before its row goes: longer than the month for which a budget's is made once."""
_BEGUN = ""

_CURSOR: Any = WebhookCursorRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_MESSAGE: Any = WebhookMessageRow.__table__  # type: ignore[attr-defined]


class Message(NamedTuple):
    """`body`: JSON. `attempts`: that were made already."""

    hook: str
    id: str
    body: str
    attempts: int = 0


Wanted = Callable[[str, str], bool]
"""(tenant, type of event) -> whether a webhook is of it."""


class WebhookMessages:
    """`log`: the name of the log that is read, as in the ledger's cursors."""

    def __init__(self, database: Database, log: str) -> None:
        self._database = database
        self._log = log[:16]

    def follow(self, hook: str, wanted: Wanted, open_reader: Callable[[], LogReader], now: float) -> bool:
        """Make messages of what is new on record; whether there is more. Raises DatabaseUnavailable, or what the reader
        raises; then the same is read the next time."""
        with closing(open_reader()) as reader, self._database.write() as session:
            connection, sizes = session.connection(), reader.sizes()
            cursors = select(_CURSOR.c.tenant, _CURSOR.c.next_seq).where(
                _CURSOR.c.hook == hook, _CURSOR.c.log == self._log
            )
            known: dict[str, int] = {tenant: seq for tenant, seq in connection.execute(cursors)}
            if _BEGUN not in known:
                for tenant, size in {**sizes, _BEGUN: 0}.items():
                    self._move(connection, hook, tenant, size)
                return False
            read = 0
            for tenant, size in sizes.items():
                start = known.get(tenant, 0)
                end = min(size, start + AT_ONCE - read)
                if end > start:
                    self._add(connection, _messages(hook, tenant, reader, start, end, wanted), now)
                    self._move(connection, hook, tenant, end)
                    read += end - start
            return read >= AT_ONCE

    def add(self, messages: Iterable[Message], now: float) -> None:
        """Those that were not made before."""
        with self._database.write() as session:
            self._add(session.connection(), messages, now)

    def due(self, hooks: Sequence[str], now: float, most: int) -> list[Message]:
        """Waiting messages of these webhooks whose time has come, the oldest first."""
        query = (
            select(_MESSAGE.c.hook, _MESSAGE.c.id, _MESSAGE.c.body, _MESSAGE.c.attempts)
            .where(_MESSAGE.c.state == "waiting", _MESSAGE.c.due_at <= now, _MESSAGE.c.hook.in_(hooks))
            .order_by(_MESSAGE.c.due_at)
            .limit(most)
        )
        with self._database.read() as session:
            return [Message(*row) for row in session.connection().execute(query)]

    def ended(self, message: Message, state: str) -> None:
        """`state`: delivered or given_up."""
        self._set(message, state=state, attempts=message.attempts + 1)

    def failed(self, message: Message, due_at: float) -> None:
        """It is tried again at `due_at`."""
        self._set(message, due_at=due_at, attempts=message.attempts + 1)

    def expire(self, now: float) -> None:
        """Delete the rows of messages that are over."""
        with self._database.write() as session:
            over = delete(_MESSAGE).where(_MESSAGE.c.state != "waiting", _MESSAGE.c.made_at <= now - KEPT_S)
            session.connection().execute(over)

    def waiting(self) -> dict[str, int]:
        """How many messages wait, by webhook."""
        query = select(_MESSAGE.c.hook, func.count()).where(_MESSAGE.c.state == "waiting").group_by(_MESSAGE.c.hook)
        with self._database.read() as session:
            return {hook: count for hook, count in session.connection().execute(query)}

    def _set(self, message: Message, **values: Any) -> None:
        with self._database.write() as session:
            here = (_MESSAGE.c.hook == message.hook) & (_MESSAGE.c.id == message.id)
            session.connection().execute(update(_MESSAGE).where(here).values(**values))

    @staticmethod
    def _add(connection: Connection, messages: Iterable[Message], now: float) -> None:
        begun = {"state": "waiting", "attempts": 0, "made_at": now, "due_at": now}
        rows = [{"hook": each.hook, "id": each.id, "body": each.body, **begun} for each in messages]
        if rows:
            connection.execute(_insert(connection, _MESSAGE).on_conflict_do_nothing(), rows)

    def _move(self, connection: Connection, hook: str, tenant: str, end: int) -> None:
        insert = _insert(connection, _CURSOR).on_conflict_do_update(
            index_elements=list(_CURSOR.primary_key.columns), set_={"next_seq": end}
        )
        connection.execute(insert, {"hook": hook, "log": self._log, "tenant": tenant, "next_seq": end})


def _insert(connection: Connection, table: Any) -> Any:
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def _messages(hook: str, tenant: str, reader: LogReader, start: int, end: int, wanted: Wanted) -> list[Message]:
    found = []
    for leaf in reader.leaves(tenant, start):
        if leaf.seq >= end:
            break
        if not leaf.payload:
            continue  # its time on record is over
        event = from_json(leaf.payload)
        if wanted(tenant, event["type"]):
            body = {"type": event["type"], "timestamp": event["ts"], "data": {"seq": leaf.seq, **event}}
            found.append(Message(hook, f"{tenant}:{leaf.seq}", to_json(body).decode()))
    return found
