"""A watch on a record in PostgreSQL (`audit.storage.watched`): its tables are the same, and every tree still begins as
it did.

A size alone does not show it: a tree that was put back grows again with the next records, whose numbers are then those
of records that are lost. So the hash of the last leaf seen is compared, which is random for every record.
"""

import threading

import psycopg

from audit.errors import StoreError
from audit.storage.postgres_server import SCHEMA, Rows, connect
from audit.storage.watched import FolderStates, StoreReplaced

Last = tuple[int, bytes]
"""The size of a tree, at least 1, and the hash of its last leaf."""


class RecordWatch:
    """On a connection of its own. A server that is away is no fault here: appends fail by themselves."""

    def __init__(self, url: str) -> None:
        """Raises StoreError."""
        self._url = url
        self._lock = threading.Lock()
        self._db: Rows | None = None
        self._last: dict[str, Last] = {}
        try:
            self._table = self._identity(self._connected())
        except (psycopg.Error, OSError) as error:
            raise StoreError(
                f"the audit database cannot be watched: {type(error).__name__}"
                "; check database.record_url and the server"
            ) from error

    def look(self, seen: FolderStates | None = None) -> None:
        """No check of microseconds finds it: the closer look does."""

    def look_closely(self) -> None:
        with self._lock:
            try:
                db = self._connected()
                if self._identity(db) != self._table:
                    raise StoreReplaced(
                        "the audit database was dropped or replaced while this gateway uses it; stop the gateway"
                        " before a database is restored, then start it again"
                    )
                with db.transaction():
                    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    self._compare(db)
            except (psycopg.Error, OSError):
                self._disconnect()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _compare(self, db: Rows) -> None:
        sizes: dict[str, int] = dict(db.execute("SELECT tenant, size FROM tree").fetchall())
        last = {tenant: (size, leaf) for tenant, size, leaf in db.execute(_LAST_LEAVES).fetchall()}
        known = self._known(db)
        for tenant, (size, leaf) in self._last.items():
            if sizes.get(tenant, 0) < size:
                raise _put_back(tenant, f"it holds {sizes.get(tenant, 0)} records and held {size}")
            if known.get(tenant) != leaf:
                raise _put_back(tenant, f"record {size - 1} is another one than it was")
        self._last = last

    def _known(self, db: Rows) -> dict[str, bytes]:
        """The hashes that now are where the last leaves were."""
        if not self._last:
            return {}
        columns = [*self._last], [size - 1 for size, _ in self._last.values()]
        return dict(db.execute(_LEAVES_AT, columns).fetchall())

    def _identity(self, db: Rows) -> tuple[object, ...] | None:
        """Identity of the database and of the table of trees: another one has another object id."""
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


class TreeSizes:
    """Size of every tree, asked again and again on a connection that stays open. Any thread may call it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._db: Rows | None = None

    def read(self) -> dict[str, int]:
        """Raises StoreError; the next call connects again then."""
        with self._lock:
            try:
                if self._db is None or self._db.closed:
                    self._db = connect(self._url)
                return dict(self._db.execute("SELECT tenant, size FROM tree").fetchall())
            except (psycopg.Error, OSError) as error:
                self._disconnect()
                raise StoreError(
                    f"the audit database does not answer: {type(error).__name__}"
                    "; check database.record_url and the server"
                ) from error

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


_LAST_LEAVES = "SELECT tenant, size, hash FROM tree JOIN leaf ON leaf.tree = tree.id AND leaf.seq = tree.size - 1"
_LEAVES_AT = (
    "SELECT tenant, hash FROM unnest(%s::text[], %s::bigint[]) AS asked (tenant, seq)"
    " JOIN tree USING (tenant) JOIN leaf ON leaf.tree = tree.id AND leaf.seq = asked.seq"
)


def _put_back(tenant: str, found: str) -> StoreReplaced:
    return StoreReplaced(
        f"the audit database was put back to an older state while this gateway uses it: of {tenant} {found}; stop the"
        " gateway before a database is restored, then start it again"
    )
