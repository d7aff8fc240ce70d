"""The value store and the wrapped keys above it in a PostgreSQL database, so that gateways on several hosts share them.

Its schema is its own, and may be in another database than the record: then its backups can be kept shorter. Deletions
exclude every other transaction by an advisory lock of the database, as SQLite's write lock does; transactions that only
add values share it (postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS). Use a direct connection, not one
that a pooler shares among transactions.

A deleted row leaves the files with the server's vacuum (`scrub` runs one), and its write-ahead log as that is recycled.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import psycopg

from audit.errors import KeyProviderError, StoreError, wrong_format
from audit.private.value_database import FORMAT_VERSION, USES, Row, Rows
from audit.private.value_store import ValueStore
from audit.storage.dsn import database_of
from audit.storage.postgres_server import connect, first_line, has_schema, has_table, require_durability, store_errors

SCHEMA = "domicile_values"
WHAT = "the value store"
LOCK_SECONDS = 30
"""How long a writer waits for a deletion, which may hold the lock while it reads the record."""
HUNG_SECONDS = 120
"""How long a writer may idle inside a transaction before the server ends it."""

_VALUES_LOCK = 0x444F4D56
_KEYS_LOCK = 0x444F4D4B
_SETUP_LOCK = 0x444F4D53

_DDL = """
CREATE SCHEMA domicile_values;
CREATE TABLE format (version integer NOT NULL);
CREATE TABLE pepper (tenant text PRIMARY KEY, wrapped bytea NOT NULL);
CREATE TABLE data_key (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    subject bytea,
    wrapped bytea NOT NULL,
    restricted integer NOT NULL DEFAULT 0,
    UNIQUE (tenant, subject)
);
CREATE TABLE value (
    tenant text NOT NULL,
    seq bigint NOT NULL,
    event_id text NOT NULL,
    field text COLLATE "C" NOT NULL,
    commitment text NOT NULL,
    key_id text NOT NULL,
    nonce bytea NOT NULL,
    ciphertext bytea NOT NULL,
    class text NOT NULL,
    expires bigint,
    PRIMARY KEY (tenant, seq, event_id, field)
);
CREATE INDEX value_of_key ON value (key_id);
CREATE INDEX value_by_expiry ON value (expires) WHERE expires IS NOT NULL;
CREATE TABLE hold (
    id text COLLATE "C" PRIMARY KEY,
    tenant text NOT NULL,
    key_id text,
    first bigint,
    last bigint,
    reason text NOT NULL,
    placed bigint NOT NULL
);
CREATE TABLE deletion (id text COLLATE "C" PRIMARY KEY, tenant text NOT NULL, body text NOT NULL, certificate text);
CREATE TABLE identity (cell text NOT NULL, log text NOT NULL, key text NOT NULL);
CREATE TABLE key_use (tenant text NOT NULL, holder text NOT NULL, key_id text NOT NULL, PRIMARY KEY (holder, key_id));
CREATE INDEX use_of_key ON key_use (key_id);
CREATE TABLE owner_key (owner text COLLATE "C" PRIMARY KEY, content bytea NOT NULL);
CREATE TABLE watch_mark (gateway text PRIMARY KEY, mark text NOT NULL, written_at timestamptz NOT NULL DEFAULT now());
INSERT INTO format VALUES (1)
"""
_SCRUBBED = ("value", "data_key", "pepper")


def connect_values(url: str, *, create: bool = True) -> psycopg.Connection[Row]:
    """A connection whose tables are there. Raises StoreError: the server is away, would not keep what it commits, has
    something else under our name, or, unless it is to be made, has no value store."""
    with store_errors(WHAT):
        db = connect(url)
        try:
            require_durability(db)
            for name, value in (
                ("search_path", SCHEMA),
                ("lock_timeout", f"{LOCK_SECONDS * 1000}ms"),
                ("idle_in_transaction_session_timeout", f"{HUNG_SECONDS * 1000}ms"),
            ):
                db.execute("SELECT set_config(%s, %s, false)", (name, value))
            if _format_of(db) is None:
                if not create:
                    raise StoreError(
                        f"{database_of(url, 'the URL')} holds no value store; start the gateway, which makes it"
                    )
                _make(db)
        except BaseException:
            db.close()
            raise
    return db


def _make(db: psycopg.Connection[Row]) -> None:
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
        if _format_of(db) is None:  # no other process was first
            for statement in _DDL.split(";"):
                db.execute(statement)


def _format_of(db: psycopg.Connection[Row]) -> int | None:
    """None if there is no value store yet. Raises StoreError for a schema that is not ours, or newer."""
    if not has_schema(db, SCHEMA):
        return None
    if not has_table(db, "format", SCHEMA):
        raise StoreError(f"the schema {SCHEMA} of the database is not a value store; name another database")
    row = db.execute("SELECT version FROM format").fetchone()
    if row != (FORMAT_VERSION,):
        raise wrong_format("the value store", "none" if row is None else row[0], FORMAT_VERSION)
    return FORMAT_VERSION


class PostgresValues:
    """`audit.private.value_database.ValueDatabase` on a connection of its own."""

    def __init__(self, db: psycopg.Connection[Row]) -> None:
        self._db = db

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> "PostgresValues":
        """Raises StoreError."""
        return cls(connect_values(url, create=create))

    @property
    def in_transaction(self) -> bool:
        return self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def execute(self, query: str, parameters: Sequence[object] = ()) -> Rows:
        with store_errors(WHAT):
            return self._db.execute(_placed(query), parameters)

    def executemany(self, query: str, parameters: Iterable[Sequence[object]]) -> int:
        with store_errors(WHAT), self._db.cursor() as cursor:
            cursor.executemany(_placed(query), parameters)
            return max(cursor.rowcount, 0)

    @contextmanager
    def transaction(self, *, adds_only: bool) -> Iterator[None]:
        kind = "_shared" if adds_only else ""
        with store_errors(WHAT), self._db.transaction():
            self._db.execute(f"SELECT pg_advisory_xact_lock{kind}(%s)", (_VALUES_LOCK,))
            yield

    def has_table(self, name: str) -> bool:
        with store_errors(WHAT):
            return has_table(self._db, name, SCHEMA)

    def scrub(self) -> None:
        """A transaction elsewhere that is older than the deletion keeps its rows until a later vacuum."""
        with store_errors(WHAT):
            self._db.execute(f"VACUUM {', '.join(_SCRUBBED)}")

    def close(self) -> None:
        self._db.close()


def _placed(query: str) -> str:
    """With the driver's sign for a parameter."""
    return query.replace("%", "%%").replace("?", "%s")


_COPIED = {
    "pepper": "tenant, wrapped",
    "data_key": "id, tenant, subject, wrapped, restricted",
    "value": "tenant, seq, event_id, field, commitment, key_id, nonce, ciphertext, class, expires",
    "hold": "id, tenant, key_id, first, last, reason, placed",
    "deletion": "id, tenant, body, certificate",
    "identity": "cell, log, key",
    USES: "tenant, holder, key_id",
}


_MANIFEST = "SELECT id, tenant FROM data_key UNION ALL SELECT id, tenant FROM deletion"


def copy_into(url: str, source: ValueStore, keys: Sequence[tuple[str, bytes]]) -> tuple[int, int]:
    """Fill an empty value store in one transaction; how many values and how many wrapped keys. Raises StoreError."""
    with store_errors(WHAT), closing(connect_values(url)) as db, db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_VALUES_LOCK,))
        if there := {row for row in db.execute(_MANIFEST)}:
            if there == set(source.all_rows(_MANIFEST)):
                return 0, 0  # this command was cut off after the copy
            raise StoreError(
                f"{database_of(url, 'the URL')} holds another value store already; name an empty database, or drop its"
                f" schema {SCHEMA} first"
            )
        values = 0
        for table, columns in _COPIED.items():
            if not source.has_table(table):
                continue  # a value store from before there was one
            with db.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in source.all_rows(f"SELECT {columns} FROM {table}"):  # noqa: S608
                    copy.write_row(row)
                    values += table == "value"
        for owner, content in keys:
            db.execute("INSERT INTO owner_key VALUES (%s, %b)", (owner, content))
    return values, len(keys)


class KeyTable:
    """`audit.keys.key_files.WrappedKeys` in the value store's database, for any thread.

    On two connections, so that no reader waits for one that changes keys, which may ask a far away master meanwhile.
    """

    is_shared = True

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Connects when it is first asked. Raises StoreError for what is no URL of a database."""
        self.place = str(database_of(url, "the URL of the value store"))
        self._reading = _Connection(url, create)
        self._writing = _Connection(url, create)
        self._inside = threading.local()  # .yes: this thread is in `changing`

    def name_of(self, owner: str) -> str:
        return f"{owner} in {self.place}"

    def owners(self) -> list[str]:
        return [owner for (owner,) in self._asked("SELECT owner FROM owner_key ORDER BY owner")]

    def read(self, owner: str) -> bytes | None:
        rows = self._asked("SELECT content FROM owner_key WHERE owner = %s", owner)
        return bytes(rows[0][0]) if rows else None

    def create(self, owner: str, content: bytes) -> bytes:
        with self.changing():
            self._asked("INSERT INTO owner_key VALUES (%s, %b) ON CONFLICT DO NOTHING RETURNING 1", owner, content)
            kept = self.read(owner)
        if kept is None:
            raise KeyProviderError(
                f"the key of {owner} is not in {self.place} after it was written there"
                "; check what else changes this database"
            )
        return kept

    def replace(self, owner: str, content: bytes) -> None:
        with self.changing():
            if not self._asked("UPDATE owner_key SET content = %b WHERE owner = %s RETURNING 1", content, owner):
                raise KeyProviderError(f"{owner} has no key in {self.place}; restore it from a backup")
            self._inside.replaced = True

    @contextmanager
    def changing(self) -> Iterator[None]:
        """In one transaction: what is changed is committed at the end, or not at all."""
        if getattr(self._inside, "yes", False):
            yield
            return
        with self._writing.lock, self._errors():
            db = self._writing.tried()
            self._inside.yes, self._inside.replaced = True, False
            try:
                with db.transaction():
                    db.execute("SELECT pg_advisory_xact_lock(%s)", (_KEYS_LOCK,))
                    yield
            finally:
                self._inside.yes = False
            if self._inside.replaced:
                with suppress(psycopg.Error):  # the old content is dead already; the server's own vacuum takes it
                    db.execute("VACUUM owner_key")

    def _asked(self, query: str, *parameters: object) -> list[Row]:
        inside = getattr(self._inside, "yes", False)
        used = self._writing if inside else self._reading
        with used.lock, self._errors():
            try:
                return used.connected().execute(query, parameters).fetchall()
            except psycopg.OperationalError:
                if inside:
                    raise
                used.drop()  # the server restarted since the last one, or ended the connection
            return used.connected().execute(query, parameters).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, OSError, StoreError) as error:
            raise KeyProviderError(
                f"the keys in {self.place} cannot be used: {first_line(error)}"
                "; check database.values_url and the server"
            ) from error


class _Connection:
    """Opened when first used. A key ring is never closed, so deleting this object closes the connection."""

    def __init__(self, url: str, create: bool) -> None:
        self.lock = threading.RLock()
        self._url = url
        self._create = create  # until it was there once: tables that are gone are not made again
        self._db: psycopg.Connection[Row] | None = None

    def tried(self) -> psycopg.Connection[Row]:
        """One that answered a moment ago."""
        try:
            self.connected().execute("SELECT 1")
        except psycopg.OperationalError:
            self.drop()
        return self.connected()

    def drop(self) -> None:
        if self._db is not None:
            self._db.close()

    def connected(self) -> psycopg.Connection[Row]:
        if self._db is None or self._db.closed:
            self._db = connect_values(self._url, create=self._create)
            self._create = False
            weakref.finalize(self, self._db.close)
        return self._db
