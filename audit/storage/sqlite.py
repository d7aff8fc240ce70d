"""The store in one SQLite file: write-ahead log, `synchronous=FULL`, one writer at a time.

Plain `sqlite3`: the path of a batch costs half of what it does through SQLAlchemy (docs/adr/0002-audit-store.md).
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from audit.errors import NoLog, ProofError, StoreError, StoreFull, wrong_format
from audit.events.base import Step
from audit.files.database_file import connect_existing, create_database_file
from audit.files.reasons import describe_os_error, describe_sqlite_error
from audit.files.wal import switch_to_wal
from audit.storage.attested_files import AttestedFile
from audit.storage.installation_identity import Identity, check_founder, check_identity, identity_of
from audit.storage.store import (
    MAX_SIZE,
    Appended,
    Keep,
    LogEntry,
    OpenIntent,
    Placed,
    Refused,
    SignedCheckpoint,
    StoredLeaf,
    Written,
    already_open,
    keeps_no_values,
    not_open,
)
from audit.tree.merkle import Frontier
from audit.tree.note import VerifierKey

FORMAT_VERSION = 1
BUSY_SECONDS = 5.0
PRUNE_STEP = 2000
WHAT = "the record"
APPLICATION_ID = 0x444F4D41  # "DOMA", so that file(1) and we can tell the file from another database

_SCHEMA = """
CREATE TABLE tree (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    frontier BLOB NOT NULL
);
CREATE TABLE leaf (
    tree INTEGER NOT NULL REFERENCES tree,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    payload BLOB NOT NULL
);
CREATE UNIQUE INDEX leaf_of_tree ON leaf (tree, seq);
CREATE TABLE checkpoint (
    tree INTEGER NOT NULL REFERENCES tree,
    size INTEGER NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (tree, size)
) WITHOUT ROWID;
CREATE TABLE open_intent (
    tree INTEGER NOT NULL REFERENCES tree,
    request_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    node TEXT NOT NULL,
    boot TEXT NOT NULL,
    PRIMARY KEY (tree, request_id)
) WITHOUT ROWID;
CREATE TABLE identity (cell TEXT NOT NULL, log TEXT NOT NULL, key TEXT NOT NULL);
CREATE TABLE succession (note TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_LATER_TABLES = (
    "CREATE TABLE IF NOT EXISTS identity (cell TEXT NOT NULL, log TEXT NOT NULL, key TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS succession (note TEXT PRIMARY KEY) WITHOUT ROWID",
)
"""Tables that files of an earlier version lack: it reads and writes them as before."""


class _StoreErrors:
    """A block whose database errors become StoreError, or StoreFull for want of space. A class, since a generator for
    each commit would cost more than the check."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, sqlite3.Error):
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            because = describe_sqlite_error(error)
            raise (StoreFull if full else StoreError)(
                f"the audit file cannot be used: {because}; check the audit file and its disk"
            ) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"the audit file cannot be used: {describe_os_error(error)}; check the audit file and its disk"
            ) from error
        if isinstance(error, ProofError):
            raise StoreError(f"the audit file cannot be used: {error}; run `domicile audit verify`") from error


_store_errors = _StoreErrors()


class SqliteStore:
    """The writing side, for one thread. `node` and `boot` are written beside each intent it opens."""

    def __init__(self, db: sqlite3.Connection, node: str, boot: str) -> None:
        self._db = db
        self._node = node
        self._boot = boot
        self._written = Written()

    @classmethod
    def open(cls, path: Path, node: str, boot: str, *, create: bool = True) -> "SqliteStore":
        """Open or create the file. Raises StoreError if it is not an audit file of a format known here."""
        with _store_errors:
            if create:
                create_database_file(path)
            db = connect_existing(path, timeout=BUSY_SECONDS)
            try:
                switch_to_wal(db, BUSY_SECONDS)
                db.execute("PRAGMA synchronous=FULL")
                db.execute("PRAGMA journal_size_limit=67108864")
                db.execute("PRAGMA secure_delete=FAST")  # a closed intent leaves no trace of its request
                _prepare(db)
            except BaseException:
                db.close()
                raise
        return cls(db, node, boot)

    def append(
        self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = (), keep: Keep | None = None
    ) -> Appended:
        with _store_errors:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                appended = self._append(entries, checkpoints, keep)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back on some errors
                    self._db.execute("ROLLBACK")
                raise
        self._written.add(appended)
        return appended

    def _append(
        self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint], keep: Keep | None
    ) -> Appended:
        trees: dict[str, tuple[int, Frontier]] = {}
        leaves: list[tuple[int, int, bytes, bytes]] = []
        placed: list[int | Refused] = []
        private: list[Placed] = []
        for entry in entries:
            if entry.tenant not in trees:
                trees[entry.tenant] = self._tree(entry.tenant)
            tree, frontier = trees[entry.tenant]
            if entry.private and keep is None:
                refused: Refused | None = keeps_no_values()
            else:
                refused = self._take_step(entry, tree, frontier.size)
            if refused is not None:
                placed.append(refused)
                continue
            placed.append(frontier.size)
            leaves.append((tree, frontier.size, entry.leaf_hash, entry.payload))
            if entry.private:
                private.append((frontier.size, entry))
            frontier.append(entry.leaf_hash)
        self._db.executemany("INSERT INTO leaf (tree, seq, hash, payload) VALUES (?, ?, ?, ?)", leaves)
        self._db.executemany(
            "UPDATE tree SET size = ?, frontier = ? WHERE id = ?",
            [(frontier.size, bytes(frontier), tree) for tree, frontier in trees.values()],
        )
        if checkpoints:
            self._db.executemany(
                "INSERT INTO checkpoint (tree, size, note) SELECT id, ?, ? FROM tree WHERE tenant = ?"
                " ON CONFLICT DO NOTHING",  # another process signed the same head
                [(size, note, tenant) for tenant, size, note in checkpoints],
            )
        if keep is not None and private:
            keep(private)
        grown = {tree for tree, *_ in leaves}
        return Appended(placed, {tenant: frontier for tenant, (tree, frontier) in trees.items() if tree in grown})

    def _tree(self, tenant: str) -> tuple[int, Frontier]:
        row = self._db.execute("SELECT id, size, frontier FROM tree WHERE tenant = ?", (tenant,)).fetchone()
        if row is None:
            self._db.execute("INSERT INTO tree (tenant, size, frontier) VALUES (?, 0, x'')", (tenant,))
            return self._tree(tenant)
        tree, size, frontier = row
        self._written.check(tenant, size)
        return tree, Frontier.from_bytes(size, frontier)

    def _take_step(self, entry: LogEntry, tree: int, seq: int) -> Refused | None:
        request = entry.request_id
        if entry.step is Step.NONE:
            return None
        if entry.step is Step.OPENS:
            opened = self._db.execute(
                "INSERT INTO open_intent (tree, request_id, seq, node, boot) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (tree, request, seq, self._node, self._boot),
            )
            return None if opened.rowcount else already_open(request)
        if entry.step is Step.CLOSES:
            closed = self._db.execute("DELETE FROM open_intent WHERE tree = ? AND request_id = ?", (tree, request))
            found = closed.rowcount > 0
        else:
            query = "SELECT 1 FROM open_intent WHERE tree = ? AND request_id = ?"
            found = self._db.execute(query, (tree, request)).fetchone() is not None
        return None if found else not_open(request)

    def claim(self, key: VerifierKey) -> Identity:
        """Check that the file is of the log of `key`, and write that into it if it does not say so yet.

        Raises ForeignDatabaseError, with nothing written.
        """
        with _store_errors:
            if (found := _identity(self._db)) is None:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    if (found := _identity(self._db)) is None:
                        check_founder(_first_note(self._db), key, WHAT)
                        found = self._write_identity(identity_of(key))
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
        check_identity(found, key, WHAT)
        return found

    def _write_identity(self, identity: Identity) -> Identity:
        for statement in _LATER_TABLES:
            self._db.execute(statement)
        self._db.execute("INSERT INTO identity VALUES (?, ?, ?)", (identity.cell, identity.log, identity.key))
        return identity

    def successions(self) -> list[str]:
        with _store_errors:
            return _successions(self._db)

    def add_successions(self, notes: Sequence[str]) -> None:
        with _store_errors:
            self._db.executemany(
                "INSERT INTO succession VALUES (?) ON CONFLICT DO NOTHING", [(note,) for note in notes]
            )

    def publish_succession(self, note: str, check: Callable[[Sequence[str]], None]) -> None:
        with _store_errors:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                check(_successions(self._db))
                self._db.execute("INSERT INTO succession VALUES (?) ON CONFLICT DO NOTHING", (note,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def attested_files(self) -> list[AttestedFile]:
        """None: they are in the folder of the one host that has this file."""
        return []

    def add_attested_files(self, files: Sequence[AttestedFile]) -> None:
        """Keeps nothing: one host uses a file, so there is no other to exchange them with."""

    def newest(self) -> list[bytes]:
        with _store_errors:
            return [payload for (payload,) in self._db.execute(_NEWEST)]

    def intents(self, node: str) -> list[OpenIntent]:
        with _store_errors:
            return [
                OpenIntent(*row) for row in self._db.execute(_INTENTS + "WHERE node = ? ORDER BY tree, seq", (node,))
            ]

    def unsigned(self) -> dict[str, Frontier]:
        query = (
            "SELECT tenant, size, frontier FROM tree"
            " WHERE size > coalesce((SELECT max(size) FROM checkpoint WHERE tree = tree.id), 0)"
        )
        with _store_errors:
            return {tenant: Frontier.from_bytes(size, data) for tenant, size, data in self._db.execute(query)}

    def consolidate(self) -> bool:
        """After a failed fsync the kernel may hold pages of the write-ahead log that it will never write again, and a
        commit behind them would be lost with them. Moving the log into the main file rewrites every page."""
        with _store_errors:
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def close(self) -> None:
        with _store_errors:
            self._db.close()


_OF_TENANT = "tree = (SELECT id FROM tree WHERE tenant = ?)"
_INTENTS = "SELECT tenant, request_id, seq, node, boot FROM open_intent JOIN tree ON tree.id = open_intent.tree "
_NEWEST = "SELECT payload FROM tree JOIN leaf ON leaf.tree = tree.id AND leaf.seq = tree.size - 1 WHERE payload != x''"
_FIRST_NOTE = (
    "SELECT note FROM checkpoint JOIN tree ON tree.id = checkpoint.tree"
    " ORDER BY tenant != '_system', tenant, checkpoint.size LIMIT 1"
)


def _identity(db: sqlite3.Connection) -> Identity | None:
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'identity'").fetchone() is None:
        return None
    row = db.execute("SELECT cell, log, key FROM identity").fetchone()
    return None if row is None else Identity(*row)


def _successions(db: sqlite3.Connection) -> list[str]:
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'succession'").fetchone() is None:
        return []
    return [note for (note,) in db.execute("SELECT note FROM succession ORDER BY note")]


def _first_note(db: sqlite3.Connection) -> str | None:
    row = db.execute(_FIRST_NOTE).fetchone()
    return None if row is None else row[0]


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")  # of several processes that start at once, one creates the tables
    try:
        if _format(db) is None:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _format(db: sqlite3.Connection) -> int | None:
    """The format version of the file, None if it is empty. Raises StoreError for a file that is not ours."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        return None
    if application != APPLICATION_ID:
        raise StoreError("the file is not an audit log; put log.db back from a backup with: domicile backup restore")
    if version != FORMAT_VERSION:
        raise wrong_format("the audit log", version, FORMAT_VERSION)
    return FORMAT_VERSION


class SqlitePruner:
    """Overwrites what it deletes (`secure_delete`)."""

    def __init__(self, path: Path) -> None:
        with _store_errors:
            self._db = connect_existing(path, timeout=BUSY_SECONDS)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA secure_delete=ON")

    def prune(self, tenant: str, first: int, last: int) -> None:
        query = f"UPDATE leaf SET payload = x'' WHERE {_OF_TENANT} AND seq BETWEEN ? AND ? AND payload != x''"  # noqa: S608
        for start in range(first, last + 1, PRUNE_STEP):  # appends wait for no more than one step
            with _store_errors:
                self._db.execute(query, (tenant, start, min(last, start + PRUNE_STEP - 1)))

    def close(self) -> None:
        with _store_errors:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._db.close()


def no_log_at(path: Path) -> str:
    """What is said where there is none; where there was one, its value store is beside it."""
    if path.with_name("side.db").exists():
        return f"{path}, the record, is missing; put it back from a backup with: domicile backup restore"
    return f"there is no audit log at {path}; name the data folder by --data, or make one with: domicile init"


class SqliteReader:
    """The reading side: a snapshot of the file, which another process may be writing."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path

    @classmethod
    def open(cls, path: Path) -> "SqliteReader":
        """Raises StoreError if there is no file, or it is not an audit log."""
        if not path.is_file():
            raise NoLog(no_log_at(path))
        with _store_errors:
            db = sqlite3.connect(read_only_uri(path), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                db.execute("BEGIN")
                if _format(db) is None:
                    raise NoLog("the file is empty; name the data folder of an installation")
            except BaseException:
                db.close()
                raise
        return cls(db, path)

    def pruner(self) -> SqlitePruner:
        return SqlitePruner(self._path)

    def identity(self) -> Identity | None:
        """Which installation the file says it is of; None if it was never claimed."""
        with _store_errors:
            return _identity(self._db)

    def successions(self) -> list[str]:
        with _store_errors:
            return _successions(self._db)

    def attested_files(self) -> list[AttestedFile]:
        return []

    def tenants(self) -> list[str]:
        with _store_errors:
            return [tenant for (tenant,) in self._db.execute("SELECT tenant FROM tree ORDER BY tenant")]

    def sizes(self) -> dict[str, int]:
        """Size of every tree."""
        with _store_errors:
            return dict(self._db.execute("SELECT tenant, size FROM tree").fetchall())

    def head(self, tenant: str) -> tuple[int, bytes]:
        with _store_errors:
            row = self._db.execute("SELECT size, frontier FROM tree WHERE tenant = ?", (tenant,)).fetchone()
        if row is None:
            raise StoreError(f"the log has no tenant {tenant!r}; check the name of the tenant")
        return row[0], row[1]

    def leaves(self, tenant: str, start: int = 0, end: int | None = None) -> Iterator[StoredLeaf]:
        columns = "CAST(seq AS INTEGER), CAST(hash AS BLOB), CAST(payload AS BLOB)"  # a forger's types may be any
        before = "" if end is None else "AND seq < ?"
        query = f"SELECT {columns} FROM leaf WHERE {_OF_TENANT} AND seq >= ? {before} ORDER BY seq"  # noqa: S608
        given = (tenant, start) if end is None else (tenant, start, end)
        with _store_errors:
            yield from map(StoredLeaf._make, self._db.execute(query, given))

    def leaf_hashes(self, tenant: str, start: int, end: int) -> Iterator[bytes]:
        query = f"SELECT CAST(hash AS BLOB) FROM leaf WHERE {_OF_TENANT} AND seq >= ? AND seq < ? ORDER BY seq"  # noqa: S608
        with _store_errors:
            for (leaf_hash,) in self._db.execute(query, (tenant, start, end)):
                yield leaf_hash

    def checkpoints(self, tenant: str) -> Iterator[SignedCheckpoint]:
        query = (
            "SELECT tenant, checkpoint.size, note FROM checkpoint JOIN tree ON tree.id = checkpoint.tree"
            " WHERE tenant = ? ORDER BY checkpoint.size"
        )
        with _store_errors:
            yield from map(SignedCheckpoint._make, self._db.execute(query, (tenant,)))

    def newest_checkpoints(self, tenant: str, most: int, up_to: int | None = None) -> list[SignedCheckpoint]:
        query = f"SELECT ?, size, note FROM checkpoint WHERE {_OF_TENANT} AND size <= ? ORDER BY size DESC LIMIT ?"  # noqa: S608
        limit = MAX_SIZE if up_to is None else up_to
        with _store_errors:
            return [SignedCheckpoint(*row) for row in self._db.execute(query, (tenant, tenant, limit, most))]

    def last_checkpoint(self, tenant: str) -> SignedCheckpoint | None:
        query = f"SELECT ?, size, note FROM checkpoint WHERE {_OF_TENANT} ORDER BY size DESC LIMIT 1"  # noqa: S608
        with _store_errors:
            row = self._db.execute(query, (tenant, tenant)).fetchone()
        return None if row is None else SignedCheckpoint._make(row)

    def expired(self, tenant: str, end: int) -> Iterator[int]:
        query = f"SELECT seq FROM leaf WHERE {_OF_TENANT} AND seq < ? AND length(payload) = 0 ORDER BY seq"  # noqa: S608
        with _store_errors:
            for (seq,) in self._db.execute(query, (tenant, end)):
                yield seq

    def open_intents(self, tenant: str) -> list[OpenIntent]:
        with _store_errors:
            return [OpenIntent(*row) for row in self._db.execute(_INTENTS + "WHERE tenant = ? ORDER BY seq", (tenant,))]

    def close(self) -> None:
        self._db.close()


def read_only_uri(path: Path) -> str:
    """URI of a connection that changes nothing.

    A copy on read-only media has no write-ahead log and can have no shared-memory file: it is read as immutable.
    """
    wal = path.with_name(path.name + "-wal")
    immutable = not wal.exists() and not os.access(path.parent, os.W_OK)
    return f"file:{quote(str(path))}?mode=ro" + ("&immutable=1" if immutable else "")
