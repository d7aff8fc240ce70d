"""A watch on a value store in PostgreSQL (`audit.storage.watched`): the same tables, and no state that it had before.

Each gateway has a row with a random mark, which it replaces every minute: an older state of the database holds an older
mark, or none.
"""

import threading
import time
from contextlib import suppress
from secrets import token_hex

import psycopg

from audit.errors import StoreError
from audit.private.postgres_values import SCHEMA, WHAT, connect_values
from audit.private.value_database import Row
from audit.storage.postgres_server import first_line
from audit.storage.watched import FolderStates, StoreReplaced

MARK_EVERY_S = 60.0
FORGOTTEN_AFTER = "7 days"
"""Rows of gateways that have not written for so long are deleted: they ended without doing it themselves."""

_IDENTITY = "SELECT (SELECT oid FROM pg_database WHERE datname = current_database()), to_regclass(%s)::oid"


class ValuesWatch:
    """On a connection of its own. A server that is away is no fault here: calls with values fail by themselves."""

    def __init__(self, url: str) -> None:
        """Raises StoreError."""
        self._url = url
        self._lock = threading.Lock()
        self._id = token_hex(16)
        self._db: psycopg.Connection[Row] | None = None
        self._marks = {token_hex(16)}  # two while it is unknown whether the last one was written
        self._marked_at = time.monotonic()
        try:
            db = self._connected()
            self._put(db, *self._marks)
            self._tables = self._identity(db)
        except (psycopg.Error, OSError) as error:
            raise StoreError(
                f"{WHAT} cannot be watched: {first_line(error)}; check database.values_url and the server"
            ) from error

    def look(self, seen: FolderStates | None = None) -> None:
        """No check within microseconds can show it: the closer look does."""

    def look_closely(self) -> None:
        with self._lock:
            try:
                db = self._connected()
                self._compare(db)
                if time.monotonic() - self._marked_at >= MARK_EVERY_S:
                    self._replace_mark(db)
            except (psycopg.Error, OSError):
                self._disconnect()

    def close(self) -> None:
        """Takes the mark away."""
        with self._lock:
            with suppress(psycopg.Error, OSError, StoreError):  # else it is deleted when it is old
                self._connected().execute("DELETE FROM watch_mark WHERE gateway = %s", (self._id,))
            self._disconnect()

    def _compare(self, db: psycopg.Connection[Row]) -> None:
        if self._identity(db) != self._tables:
            raise StoreReplaced(
                "the value store's database was dropped or replaced while this gateway uses it; stop the gateway before"
                " a database is restored, then start it again"
            )
        row = db.execute("SELECT mark FROM watch_mark WHERE gateway = %s", (self._id,)).fetchone()
        if row is None or row[0] not in self._marks:
            raise StoreReplaced(
                "the value store's database was put back to an older state while this gateway uses it: this gateway's"
                " mark is not the last one; stop the gateway before a database is restored, then start it again"
            )
        self._marks = {row[0]}

    def _replace_mark(self, db: psycopg.Connection[Row]) -> None:
        """If the connection breaks, either mark may be there: the next look shows which."""
        fresh = token_hex(16)
        self._marks.add(fresh)
        self._put(db, fresh)
        self._marks, self._marked_at = {fresh}, time.monotonic()

    def _put(self, db: psycopg.Connection[Row], mark: str) -> None:
        with db.transaction():
            db.execute("DELETE FROM watch_mark WHERE written_at < now() - %s::interval", (FORGOTTEN_AFTER,))
            db.execute(
                "INSERT INTO watch_mark (gateway, mark) VALUES (%s, %s)"
                " ON CONFLICT (gateway) DO UPDATE SET mark = EXCLUDED.mark, written_at = now()",
                (self._id, mark),
            )

    def _identity(self, db: psycopg.Connection[Row]) -> Row | None:
        """Identity of the database and of the table of values: another one has another object id."""
        return db.execute(_IDENTITY, (f"{SCHEMA}.value",)).fetchone()

    def _connected(self) -> psycopg.Connection[Row]:
        if self._db is None or self._db.closed:
            try:
                self._db = connect_values(self._url, create=self._db is None)
            except StoreError as error:
                if isinstance(error.__cause__, (psycopg.Error, OSError)):
                    raise error.__cause__ from error  # away
                raise
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
