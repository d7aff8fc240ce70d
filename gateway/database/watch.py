"""A watch on a control database in PostgreSQL (`audit.storage.watched`): the same tables, and no state that it had
before.

An epoch below the one that was seen shows a database that was put back. One that was put back while this gateway could
not reach it, and has grown since, is shown by the gateway's mark: a random text in a row of its own, which the gateway
replaces whenever the epoch grew, and once an hour. An older state holds an older mark, or none.

In SQLite the control database is a file, which `audit.storage.file_watch` watches.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from secrets import token_hex

from sqlalchemy import text
from sqlmodel import Session, col, delete, select

from audit.storage.watched import FolderStates, StoreReplaced
from gateway.database.database import Database
from gateway.database.epoch import read_epoch
from gateway.database.errors import DatabaseUnavailable
from gateway.database.tables.control import GatewayMarkRow

MARK_EVERY_S = 3600.0
FORGOTTEN_AFTER = timedelta(days=7)
"""Rows of gateways that have not written for so long are deleted: they ended without doing it themselves."""

_IDENTITY = text(
    "SELECT (SELECT oid FROM pg_database WHERE datname = current_database()), to_regclass('config_epoch')::oid"
)


class ControlWatch:
    """A database that is away is no fault here: the directory notices it (`gateway.directory.directory`)."""

    def __init__(self, database: Database, cell: str) -> None:
        """Raises DatabaseUnavailable."""
        self._database = database
        self._cell = cell
        self._lock = threading.Lock()
        self._id = token_hex(16)
        self._marks = {self._put(token_hex(16))}  # two while it is unknown whether the last one was written
        self._marked_at = time.monotonic()
        self._identity, self._epoch, _ = self._read()

    def look(self, seen: FolderStates | None = None) -> None:
        """No check within microseconds can show it: the closer look does."""

    def look_closely(self) -> None:
        with self._lock:
            try:
                identity, epoch, mark = self._read()
            except DatabaseUnavailable:
                return
            if identity != self._identity:
                raise StoreReplaced(
                    "the control database was dropped or replaced while this gateway uses it; stop the gateway before"
                    " a database is restored, then start it again"
                )
            if epoch < self._epoch:
                raise StoreReplaced(
                    f"the control database was put back to an older state while this gateway uses it: it is at epoch"
                    f" {epoch} and was at {self._epoch}; stop the gateway before a database is restored, then start"
                    " it again"
                )
            if mark not in self._marks:
                raise StoreReplaced(
                    "the control database was put back to an older state while this gateway could not reach it: this"
                    " gateway's mark is not the last one; stop the gateway before a database is restored, then start"
                    " it again"
                )
            self._marks = {mark}
            if epoch > self._epoch or time.monotonic() - self._marked_at >= MARK_EVERY_S:
                self._replace_mark(epoch)

    def _replace_mark(self, epoch: int) -> None:
        """If the connection breaks, either mark may be there: the next look shows which. Until then the epoch is the
        old one, so that it is tried again."""
        fresh = token_hex(16)
        self._marks.add(fresh)
        try:
            self._put(fresh)
        except DatabaseUnavailable:
            return
        self._marks = {fresh}
        self._epoch, self._marked_at = epoch, time.monotonic()

    def close(self) -> None:
        """Takes the mark away; the connections are the database's."""
        try:
            with self._database.write() as session:
                session.exec(delete(GatewayMarkRow).where(col(GatewayMarkRow.gateway) == self._id))
        except DatabaseUnavailable:
            pass  # it is deleted when it is old

    def _put(self, mark: str) -> str:
        now = datetime.now(UTC)
        with self._database.write() as session:
            session.exec(delete(GatewayMarkRow).where(col(GatewayMarkRow.written_at) < now - FORGOTTEN_AFTER))
            session.merge(GatewayMarkRow(gateway=self._id, mark=mark, written_at=now))
        return mark

    def _mark(self, session: Session) -> str:
        mine = select(GatewayMarkRow.mark).where(GatewayMarkRow.gateway == self._id)
        return session.exec(mine).one_or_none() or ""

    def _read(self) -> tuple[tuple[object, ...], int, str]:
        with self._database.read() as session:
            identity = tuple(session.connection().execute(_IDENTITY).one())
            if identity[1] is None:
                return identity, 0, ""
            return identity, read_epoch(session, self._cell), self._mark(session)
