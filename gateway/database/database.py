"""Open the control database: SQLite by default, PostgreSQL by its URL; migrate it; hand out transactions.

Synchronous on purpose: administrators' commands and the directory's reloads use it, requests never do. The directory
calls it from a thread.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import ConnectionPoolEntry
from sqlmodel import Session

from audit.files.database_file import connect_existing, create_database_file
from audit.files.reasons import describe_sqlite_error
from audit.files.wal import switch_to_wal
from gateway.database.errors import DatabaseUnavailable, Invalid

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_TIMEOUT_MS = 5000
POOL_SIZE = 10
"""Connections a process holds to PostgreSQL at most, the one that listens included."""
POOL_TIMEOUT_S = 10
CONNECT_TIMEOUT_S = 3
_NOT_WRITABLE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}  # primary codes
_MIGRATION_LOCK = 0x646F6D69
_MIGRATING = Lock()  # Alembic keeps what it works on in a module: one thread of a process at a time
_REVISION = {name: re.compile(rf'^{name} = "([^"]+)"$', re.M) for name in ("revision", "down_revision")}


class Database:
    """Transactions on one control database. Create with `open`."""

    def __init__(self, url: str, pool_size: int = POOL_SIZE) -> None:
        if url.startswith("sqlite"):
            self._engine = _sqlite_engine(url)
            _tune_sqlite(self._engine)
            self._reader = self._engine
        else:
            with _translated_errors():
                self._engine = create_engine(
                    _with_driver(url),
                    pool_pre_ping=True,  # after a restart of the database the next use finds a fresh connection
                    pool_size=pool_size - 1,
                    max_overflow=0,
                    pool_timeout=POOL_TIMEOUT_S,
                    connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
                )
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")  # one view for a block
        self._writer = self._engine.execution_options(begin="IMMEDIATE")
        self._closed = False
        event.listen(self._engine, "checkin", self._close_late)

    @classmethod
    def open(
        cls,
        data: Path,
        *,
        url: str | None = None,
        pool_size: int = POOL_SIZE,
        check: "Callable[[Database], None]" = lambda database: None,
    ) -> "Database":
        """``control.db`` in the folder `data`, or the database at `url`; created if absent, migrated to this version.

        `url` reads ``postgresql://user:password@host/name``. `check` sees the database before it is migrated, and stops
        that by raising. Raises DatabaseUnavailable, also for a database newer than this program.
        """
        if url is None:
            url = f"sqlite:///{data / 'control.db'}"
        database = cls(url, pool_size)
        try:
            check(database)
            database.migrate()
        except BaseException:
            database.close()
            raise
        return database

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def file(self) -> Path | None:
        """The SQLite file, None for a database on a server."""
        return Path(self._engine.url.database or "") if self._engine.dialect.name == "sqlite" else None

    @property
    def notifies_changes(self) -> bool:
        """Whether the database can notify listeners of changes (PostgreSQL)."""
        return self._engine.dialect.name == "postgresql"

    @property
    def is_shared(self) -> bool:
        """Whether gateways on several machines may share it."""
        return self._engine.dialect.name == "postgresql"

    @property
    def driver_error(self) -> type[Exception]:
        """Base of what the driver raises."""
        error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return error

    def migrate(self, revision: str = "head") -> None:
        """Upgrade to `revision`. Of several processes at once one does it and the others find it done.

        Raises DatabaseUnavailable, before anything is written, for a database that a newer program migrated.
        """
        present, known = self._revisions(), _known_revisions()
        if revision == "head" and present == _heads():
            return
        if unknown := present - known:
            raise DatabaseUnavailable(
                f"the control database has revision {min(unknown)}, which a newer version of Domicile made; this"
                f" version knows revisions up to {max(known)}: start the newer version, or restore a backup that"
                " this version made"
            )
        from alembic import command  # a fifth of a second, for a database that is not of this version yet
        from alembic.config import Config
        from alembic.util.exc import CommandError

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with _translated_errors(), _MIGRATING, self._writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, revision)
            except CommandError as error:
                raise DatabaseUnavailable(
                    f"the control database cannot be migrated: {error}"
                    "; start the version that made it, or restore a backup"
                ) from error

    def _revisions(self) -> set[str]:
        """Revisions of the schema in the database; empty for a database without one."""
        with _translated_errors(), self._engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return set()
            return set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())

    def connect(self) -> Connection:
        """One of the pool's connections, for who keeps it. Raises DatabaseUnavailable."""
        with _translated_errors():
            return self._engine.connect()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One consistent view; nothing is written."""
        with _translated_errors(), Session(self._reader) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        with _translated_errors(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """What is in use, in a thread whose caller was cancelled, say, is closed when it is given back."""
        self._closed = True
        self._engine.dispose()

    def _close_late(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        """The pool that it goes back to is one that nobody asks or closes any more."""
        if self._closed:
            record.close()


def _heads() -> set[str]:
    """The newest revisions of this program: those that no other follows."""
    revisions = _read_revisions()
    return revisions["revision"] - revisions["down_revision"]


def _known_revisions() -> set[str]:
    return _read_revisions()["revision"]


@cache
def _read_revisions() -> dict[str, set[str]]:
    """What the scripts declare, read as text: to import alembic takes a fifth of a second."""
    scripts = [path.read_text() for path in (MIGRATIONS / "versions").glob("*.py")]
    return {name: {found[1] for text in scripts if (found := each.search(text))} for name, each in _REVISION.items()}


def _with_driver(url: str) -> str:
    """psycopg 3, unless the URL names another."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in {"postgres", "postgresql"} else url


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError:
        raise  # the caller knows what it means
    except exc.DataError as error:
        raise Invalid(
            "a value is one that the database cannot hold"
            "; send shorter text without NUL characters, or a smaller number"
        ) from error
    except (exc.ArgumentError, ValueError):  # which may quote the password
        raise DatabaseUnavailable(
            "DOMICILE_DATABASE_URL is no URL of a database; it reads postgresql://user:password@host/name"
        ) from None
    except (exc.DBAPIError, exc.TimeoutError, ImportError, OSError) as error:
        reason: object = error.orig if isinstance(error, exc.DBAPIError) else error
        if isinstance(reason, sqlite3.Error):
            reason = describe_sqlite_error(reason)
        raise DatabaseUnavailable(
            f"the control database failed: {reason}; check the database of database.url and its disk"
        ) from error


def _sqlite_engine(url: str) -> Engine:
    """A connection never creates the file: one that was removed under a running gateway stays missing, and is seen."""
    path = Path(make_url(url).database or "")
    with _translated_errors():
        create_database_file(path)
    timeout = BUSY_TIMEOUT_MS / 1000
    return create_engine(url, creator=lambda: connect_existing(path, timeout=timeout, check_same_thread=False))


def _tune_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for a consistent read
        try:
            switch_to_wal(connection, BUSY_TIMEOUT_MS / 1000)
        except sqlite3.OperationalError as error:
            # A database with a write-ahead log needs a shared-memory file next to it; on a read-only mount SQLite
            # reports "unable to open database file" of that one.
            folder = Path(engine.url.database or "").absolute().parent
            if error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE or os.access(folder, os.W_OK):
                raise
            raise sqlite3.OperationalError(
                f"{folder} is read-only for this user ({error}); make it writable, or work on a copy of the folder"
            ) from error
        for pragma in ("synchronous=FULL", f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes its lock at once: upgrading a read to a write fails when another wrote in between.
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")
