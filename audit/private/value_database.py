"""What the value store needs of a database, and that of one SQLite file.

Statements are written once, in the SQL that SQLite and PostgreSQL share, with ``?`` for each parameter; what differs
(locks, tables that exist, how deleted content leaves the disk) is a method.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from audit.errors import StoreError, wrong_format
from audit.files.database_file import connect_existing, create_database_file
from audit.files.wal import switch_to_wal
from audit.storage.sqlite import read_only_uri

APPLICATION_ID = 0x444F4D53  # "DOMS"
FORMAT_VERSION = 1
BUSY_SECONDS = 5.0
USES = "key_use"
"""The table of what uses a data key besides values (`audit.private.content_keys`); absent in older value stores."""

Row = tuple[Any, ...]

SQLITE_SCHEMA = """
CREATE TABLE pepper (tenant TEXT PRIMARY KEY, wrapped BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE data_key (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    subject BLOB,
    wrapped BLOB NOT NULL,
    restricted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, subject)
) WITHOUT ROWID;
CREATE TABLE value (
    tenant TEXT NOT NULL,
    seq INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    field TEXT NOT NULL,
    commitment TEXT NOT NULL,
    key_id TEXT NOT NULL REFERENCES data_key,
    nonce BLOB NOT NULL,
    ciphertext BLOB NOT NULL,
    class TEXT NOT NULL,
    expires INTEGER,
    PRIMARY KEY (tenant, seq, event_id, field)
);
CREATE INDEX value_of_key ON value (key_id);
CREATE INDEX value_by_expiry ON value (expires) WHERE expires IS NOT NULL;
CREATE TABLE hold (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    key_id TEXT,
    first INTEGER,
    last INTEGER,
    reason TEXT NOT NULL,
    placed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE deletion (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, body TEXT NOT NULL, certificate TEXT) WITHOUT ROWID;
CREATE TABLE identity (cell TEXT NOT NULL, log TEXT NOT NULL, key TEXT NOT NULL);
CREATE TABLE key_use (tenant TEXT NOT NULL, holder TEXT NOT NULL, key_id TEXT NOT NULL, PRIMARY KEY (holder, key_id));
CREATE INDEX use_of_key ON key_use (key_id);
"""


class Rows(Protocol):
    """What a statement found: iterated once, or fetched."""

    @property
    def rowcount(self) -> int: ...

    def __iter__(self) -> Iterator[Row]: ...

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...


class ValueDatabase(Protocol):
    """One thread's connection. Every method may raise StoreError, or sqlite3.Error and OSError for a file."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, query: str, parameters: Sequence[object] = ()) -> Rows: ...

    def executemany(self, query: str, parameters: Iterable[Sequence[object]]) -> int:
        """How many rows were changed."""

    def transaction(self, *, adds_only: bool) -> AbstractContextManager[None]:
        """Committed and durable at the end, undone on an error. One at a time; those that only add values, keys and
        peppers may run beside one another where the database can do that."""

    def has_table(self, name: str) -> bool: ...

    def scrub(self) -> None:
        """Take deleted rows out of the database's files, as far as it does that. Raises StoreError where readers
        prevent it."""

    def close(self) -> None: ...


class SqliteValues:
    """Deleted content is overwritten (`secure_delete`), and the write-ahead log emptied by `scrub`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @classmethod
    def open(cls, path: Path, *, create: bool) -> "SqliteValues":
        """The file at `path`, or a new one, mode 0600. Raises sqlite3.Error, OSError, StoreError."""
        if create:
            create_database_file(path)
        db = connect_existing(path, timeout=BUSY_SECONDS)
        try:
            switch_to_wal(db, BUSY_SECONDS)
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")
            opened = cls(db)
            with opened.transaction(adds_only=False):
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                    for statement in filter(str.strip, SQLITE_SCHEMA.split(";")):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
                _check_format(db)
        except BaseException:
            db.close()
            raise
        return opened

    @classmethod
    def open_read_only(cls, path: Path) -> "SqliteValues":
        """Raises sqlite3.Error, also if there is no file; StoreError."""
        db = sqlite3.connect(read_only_uri(path), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _check_format(db)
        except BaseException:
            db.close()
            raise
        return cls(db)

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def execute(self, query: str, parameters: Sequence[object] = ()) -> Rows:
        return self._db.execute(query, parameters)

    def executemany(self, query: str, parameters: Iterable[Sequence[object]]) -> int:
        return self._db.executemany(query, parameters).rowcount

    @contextmanager
    def transaction(self, *, adds_only: bool) -> Iterator[None]:
        """A file has one writer at a time."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def has_table(self, name: str) -> bool:
        found = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
        return found is not None

    def scrub(self) -> None:
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                "the value store is being read: deleted pages are still in its write-ahead log"
                "; end the readers and run it again"
            )

    def close(self) -> None:
        self._db.close()


def _check_format(db: sqlite3.Connection) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise StoreError("the file is not a value store; put side.db back from a backup with: domicile backup restore")
    if version != FORMAT_VERSION:
        raise wrong_format("the value store", version, FORMAT_VERSION)
