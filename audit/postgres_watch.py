"""A watch on a record in PostgreSQL (`audit.watched`): its tables are the same, and no tree is shorter than it was."""

import threading

import psycopg

from audit.errors import StoreError
from audit.postgres_server import SCHEMA, Rows, connect
from audit.watched import StoreReplaced


class RecordWatch:
    """On a connection of its own. A server that is away is no fault here: appends fail by themselves."""

    def __init__(self, url: str) -> None:
        """Raises StoreError."""
        self._url = url
        self._lock = threading.Lock()
        self._db: Rows | None = None
        self._sizes: dict[str, int] = {}
        try:
            self._table = self._identity(self._connected())
        except (psycopg.Error, OSError) as error:
            raise StoreError(f"the audit database cannot be watched: {type(error).__name__}") from error

    def look(self) -> None:
        """Nothing that takes microseconds tells: the closer look does."""

    def look_closely(self) -> None:
        with self._lock:
            try:
                db = self._connected()
                if self._identity(db) != self._table:
                    raise StoreReplaced(
                        "the audit database was dropped or replaced while this gateway uses it; stop the gateway"
                        " before a database is restored, then start it again"
                    )
                self._compare(dict(db.execute("SELECT tenant, size FROM tree").fetchall()))
            except (psycopg.Error, OSError):
                self._disconnect()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _compare(self, sizes: dict[str, int]) -> None:
        for tenant, size in self._sizes.items():
            if sizes.get(tenant, 0) < size:
                raise StoreReplaced(
                    f"the audit database was put back to an older state while this gateway uses it: of {tenant} it"
                    f" holds {sizes.get(tenant, 0)} records and held {size}; stop the gateway before a database is"
                    " restored, then start it again"
                )
        self._sizes = sizes

    def _identity(self, db: Rows) -> tuple[object, ...] | None:
        """Of the database and of the table of trees: another one has another object id."""
        return db.execute(
            "SELECT (SELECT oid FROM pg_database WHERE datname = current_database()), to_regclass(%s)::oid",
            (f"{SCHEMA}.tree",),
        ).fetchone()

    def _connected(self) -> Rows:
        if self._db is None or self._db.closed:
            self._db = connect(self._url)
        return self._db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()
