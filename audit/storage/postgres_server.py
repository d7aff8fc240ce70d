"""A connection to the PostgreSQL server that keeps the record: what it must promise, and the tables it must have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from audit.errors import ProofError, StoreError, StoreFull, wrong_format

FORMAT_VERSION = 1
SCHEMA = "domicile_audit"
CONNECT_SECONDS = 5

Rows = psycopg.Connection[tuple[Any, ...]]

_SETUP_LOCK = 0x444F4D42

_DDL = """
CREATE SCHEMA domicile_audit;
CREATE TABLE format (version integer NOT NULL);
CREATE TABLE tree (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL UNIQUE,
    size bigint NOT NULL,
    frontier bytea NOT NULL
);
CREATE TABLE leaf (
    tree bigint NOT NULL REFERENCES tree,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (tree, seq)
);
CREATE TABLE checkpoint (
    tree bigint NOT NULL REFERENCES tree,
    size bigint NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (tree, size)
);
CREATE TABLE open_intent (
    tree bigint NOT NULL REFERENCES tree,
    request_id text NOT NULL,
    seq bigint NOT NULL,
    node text NOT NULL,
    boot text NOT NULL,
    PRIMARY KEY (tree, request_id)
);
CREATE TABLE identity (cell text NOT NULL, log text NOT NULL, key text NOT NULL);
CREATE TABLE succession (note text PRIMARY KEY);
INSERT INTO format VALUES (1)
"""


@contextmanager
def store_errors(what: str = "the audit database") -> Iterator[None]:
    """Errors of the server as StoreError, StoreFull where its disk is full; `what` names the database in sentences."""
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise StoreFull(f"{what} cannot be used: {first_line(error)}; free space on the server's disk") from error
    except (psycopg.Error, OSError, ProofError) as error:
        raise StoreError(
            f"{what} cannot be used: {first_line(error)}; check database.record_url and the server"
        ) from error


def first_line(error: Exception) -> str:
    """First line of the message of an error: other lines may quote values."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def connect(url: str) -> Rows:
    """A peer that vanished is noticed: TCP keepalives, and no wait for acknowledgement beyond half a minute."""
    db = psycopg.connect(
        url,
        autocommit=True,
        row_factory=tuple_row,
        connect_timeout=CONNECT_SECONDS,
        application_name="domicile audit",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=30_000,
    )
    try:
        db.execute("SELECT set_config('search_path', %s, false)", (SCHEMA,))
    except BaseException:
        db.close()
        raise
    return db


def require_durability(db: Rows) -> None:
    """Raises StoreError for a server whose commits a crash could take back; asks for a synchronous commit."""
    for name in ("fsync", "full_page_writes"):
        row = db.execute("SELECT current_setting(%s)", (name,)).fetchone()
        if row != ("on",):
            raise StoreError(
                f"the server runs with {name} off, so nothing that it commits is durable; set {name} = on in "
                "postgresql.conf"
            )
    row = db.execute("SELECT current_setting('synchronous_commit')").fetchone()
    if row in (("off",), ("local",), ("remote_write",)):
        db.execute("SET synchronous_commit = on")


@contextmanager
def setup(db: Rows) -> Iterator[None]:
    """A transaction that one process at a time is in: of several at once, one creates the tables."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
        yield


def has_schema(db: Rows, schema: str) -> bool:
    """By the catalogue itself: `to_regnamespace` answers from a cache, which a transaction that waited for another's
    setup still has from before it."""
    row = db.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (schema,)).fetchone()
    return row == (True,)


def has_table(db: Rows, name: str, schema: str = SCHEMA) -> bool:
    query = (
        "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s)"
    )
    return db.execute(query, (schema, name)).fetchone() == (True,)


def prepare(db: Rows, *, create: bool = True) -> None:
    """Create the schema if there is none and `create`. Raises StoreError for one that is missing, or is not ours."""
    with setup(db):
        if format_of(db) is None:
            if not create:
                raise StoreError(
                    f"the database has no schema {SCHEMA}, where the record of this data folder was; restore the "
                    "database from a backup, or name the right one"
                )
            for statement in _DDL.split(";"):
                db.execute(statement)


def format_of(db: Rows) -> int | None:
    """The format version of the log, None if there is none. Raises StoreError for a schema that is not ours."""
    if not has_schema(db, SCHEMA):
        return None
    if not has_table(db, "format"):
        raise StoreError(f"the schema {SCHEMA} of the database is not an audit log; name a separate database")
    row = db.execute("SELECT version FROM format").fetchone()
    if row != (FORMAT_VERSION,):
        raise wrong_format("the audit log", "none" if row is None else row[0], FORMAT_VERSION)
    return FORMAT_VERSION
