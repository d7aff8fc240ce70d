"""The store in a PostgreSQL database: several gateways on several machines write one log.

Numbers are taken under a row lock on the tree's head, so no two writers can fork it. A writer that hangs inside a
transaction is fenced by the server (`idle_in_transaction_session_timeout`): its late commit fails. A node's name is
held by an advisory lock of its session while the connection lives, so use a direct connection, not one that a pooler
shares among transactions. Plain psycopg, as `audit.storage.sqlite` is plain sqlite3
(docs/adr/0010-the-record-at-scale.md).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from audit.errors import NoLog, StoreError
from audit.events.base import Step
from audit.storage.attested_files import AttestedFile
from audit.storage.installation_identity import Identity, check_founder, check_identity, identity_of
from audit.storage.postgres_server import (
    Rows,
    connect,
    format_of,
    has_table,
    prepare,
    require_durability,
    setup,
    store_errors,
)
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

WHAT = "the record"
LOCK_SECONDS = 5
NAME_SECONDS = 2.0
HUNG_SECONDS = 10
"""How long a writer may idle inside a transaction before the server ends it."""
FETCH = 2000

_NODE_LOCKS = 0x444F4D41  # first half of the advisory locks on node names

_Leaf = tuple[int, int, bytes, bytes]
"""A row of the table of leaves: id of the tree, number in it, hash, payload."""


def open_postgres(url: str) -> Callable[[Path, str, str], "PostgresStore"]:
    """What `AuditLog.open` takes as `open_store` for a log in the database at `url` (``postgresql://…``)."""
    return lambda path, node, boot: PostgresStore.open(url, node, boot)


class PostgresStore:
    """The writing side, for one thread. `node` and `boot` are written beside each intent it opens."""

    def __init__(self, db: Rows, node: str, boot: str) -> None:
        self._db = db
        self._node = node
        self._boot = boot
        self._trees: dict[str, int] = {}  # ids of trees, which never change
        self._written = Written()

    @classmethod
    def open(cls, url: str, node: str, boot: str, *, create: bool = True) -> "PostgresStore":
        """Open the log, or create it where `create` allows.

        Raises StoreError if the server is away, would not keep what it commits, or has something else under our name,
        if there is no log to open, or if another process lives as `node`.
        """
        with store_errors():
            db = connect(url)
            try:
                require_durability(db)
                prepare(db, create=create)
                _take_name(db, node)
                for name, seconds in (
                    ("lock_timeout", LOCK_SECONDS),
                    ("idle_in_transaction_session_timeout", HUNG_SECONDS),
                ):
                    db.execute("SELECT set_config(%s, %s, false)", (name, f"{round(seconds * 1000)}ms"))
            except BaseException:
                db.close()
                raise
        return cls(db, node, boot)

    def append(
        self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = (), keep: Keep | None = None
    ) -> Appended:
        with store_errors():
            self._make_trees({entry.tenant for entry in entries} | {one.tenant for one in checkpoints})
            with self._db.pipeline() as pipeline, self._db.transaction():
                appended = self._append(entries, checkpoints, keep, pipeline.sync)
            self._written.add(appended)
            return appended

    def _make_trees(self, tenants: set[str]) -> None:
        for tenant in sorted(tenants - self._trees.keys()):  # in one order everywhere: no deadlock
            self._db.execute(
                "INSERT INTO tree (tenant, size, frontier) VALUES (%s, 0, '') ON CONFLICT DO NOTHING",
                (tenant,),
            )
            row = self._db.execute("SELECT id FROM tree WHERE tenant = %s", (tenant,)).fetchone()
            if row is not None:
                self._trees[tenant] = row[0]

    def _append(
        self,
        entries: Sequence[LogEntry],
        checkpoints: Sequence[SignedCheckpoint],
        keep: Keep | None,
        sync: Callable[[], None],
    ) -> Appended:
        """`sync` sends what is queued and lets the server count the time that we are idle in the transaction."""
        heads = self._lock_heads({entry.tenant for entry in entries}, sync)
        intents = _Intents(
            self._db, [(self._trees[e.tenant], e.request_id) for e in entries if e.step is not Step.NONE], sync
        )
        placed, leaves, private = self._place(entries, heads, intents, keeps_values=keep is not None)
        grown = {tree for tree, *_ in leaves}
        heads = {tenant: head for tenant, head in heads.items() if self._trees[tenant] in grown}
        if leaves:
            self._db.execute(_INSERT_LEAVES, [list(column) for column in zip(*leaves, strict=True)])
        for tenant, head in heads.items():
            self._db.execute(_SET_HEAD, (head.size, bytes(head), self._trees[tenant]))
        intents.write(self._node, self._boot)
        for tenant, size, note in sorted(checkpoints):  # in one order everywhere, as others may sign the same heads
            self._db.execute(_INSERT_CHECKPOINT, (self._trees[tenant], size, note))
        if keep is not None and private:
            sync()
            keep(private)
        return Appended(placed, heads)

    def _place(
        self, entries: Sequence[LogEntry], heads: Mapping[str, Frontier], intents: "_Intents", *, keeps_values: bool
    ) -> tuple[list[int | Refused], list[_Leaf], list[Placed]]:
        """Number each entry in its tree, and grow `heads` and `intents` by it, in memory only.

        Returns for each entry its number or why it is refused, the rows of the leaves, and the entries among them
        that have private values.
        """
        placed: list[int | Refused] = []
        leaves: list[_Leaf] = []
        private: list[Placed] = []
        for entry in entries:
            tree, head = self._trees[entry.tenant], heads[entry.tenant]
            if entry.private and not keeps_values:
                refused: Refused | None = keeps_no_values()
            else:
                refused = intents.take(entry, tree, head.size)
            if refused is not None:
                placed.append(refused)
                continue
            placed.append(head.size)
            leaves.append((tree, head.size, entry.leaf_hash, entry.payload))
            if entry.private:
                private.append((head.size, entry))
            head.append(entry.leaf_hash)
        return placed, leaves, private

    def _lock_heads(self, tenants: set[str], sync: Callable[[], None]) -> dict[str, Frontier]:
        if not tenants:
            return {}
        ids = [self._trees[tenant] for tenant in tenants]
        cursor = self._db.execute(_LOCK_HEADS, (ids,))
        sync()
        rows = cursor.fetchall()
        if len(rows) != len(ids):
            raise StoreError(
                "a tree has gone from the audit database; run `domicile audit verify`, and restore the database"
            )
        for tenant, size, _ in rows:
            self._written.check(tenant, size)
        return {tenant: Frontier.from_bytes(size, frontier) for tenant, size, frontier in rows}

    def claim(self, key: VerifierKey) -> Identity:
        """Check that the database is of the log of `key`, and write that into it if it does not say so yet.

        Raises ForeignDatabaseError, with nothing written.
        """
        with store_errors():
            if (found := _identity(self._db)) is None:
                with setup(self._db):
                    if (found := _identity(self._db)) is None:
                        row = self._db.execute(_FIRST_NOTE).fetchone()
                        check_founder(None if row is None else row[0], key, WHAT)
                        found = self._write_identity(identity_of(key))
        check_identity(found, key, WHAT)
        return found

    def _write_identity(self, identity: Identity) -> Identity:
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS identity (cell text NOT NULL, log text NOT NULL, key text NOT NULL)"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS succession (note text PRIMARY KEY)")
        self._db.execute("INSERT INTO identity VALUES (%s, %s, %s)", (identity.cell, identity.log, identity.key))
        return identity

    def successions(self) -> list[str]:
        with store_errors():
            return _successions(self._db)

    def add_successions(self, notes: Sequence[str]) -> None:
        with store_errors():
            for note in notes:
                self._db.execute("INSERT INTO succession VALUES (%s) ON CONFLICT DO NOTHING", (note,))

    def publish_succession(self, note: str, check: Callable[[Sequence[str]], None]) -> None:
        with store_errors(), self._db.transaction():
            self._db.execute("LOCK TABLE succession IN SHARE ROW EXCLUSIVE MODE")
            check(_successions(self._db))
            self._db.execute("INSERT INTO succession VALUES (%s) ON CONFLICT DO NOTHING", (note,))

    def attested_files(self) -> list[AttestedFile]:
        with store_errors():
            return _attested_files(self._db)

    def add_attested_files(self, files: Sequence[AttestedFile]) -> None:
        with store_errors():
            if files and not has_table(self._db, "attested_file"):
                with setup(self._db):
                    self._db.execute(_ATTESTED_FILE)
            for one in files:
                self._db.execute(_PUT_FILE, one)

    def newest(self) -> list[bytes]:
        with store_errors():
            return [bytes(payload) for (payload,) in self._db.execute(_NEWEST)]

    def intents(self, node: str) -> list[OpenIntent]:
        with store_errors():
            return [
                OpenIntent(*row) for row in self._db.execute(_INTENTS + "WHERE node = %s ORDER BY tree, seq", (node,))
            ]

    def unsigned(self) -> dict[str, Frontier]:
        with store_errors():
            return {tenant: Frontier.from_bytes(size, data) for tenant, size, data in self._db.execute(_UNSIGNED)}

    def consolidate(self) -> bool:
        """PostgreSQL stops itself after a failed fsync and replays its log: what is committed is written."""
        with store_errors():
            self._db.execute("SELECT 1")
        return True

    def close(self) -> None:
        with suppress(psycopg.Error):  # the server frees the name too, a moment after the connection is gone
            self._db.execute("SELECT pg_advisory_unlock_all()")
        self._db.close()


class _Intents:
    """The open intents that a batch touches, as they were and as it leaves them. Read under the locks on the heads."""

    def __init__(self, db: Rows, asked: list[tuple[int, str | None]], sync: Callable[[], None]) -> None:
        self._db = db
        self._before: dict[tuple[int, str], int] = {}
        if asked:
            trees, requests = ([*column] for column in zip(*asked, strict=True))
            cursor = db.execute(_FIND_INTENTS, (trees, [_storable(one) for one in requests]))
            sync()
            found = cursor.fetchall()
            self._before = {(tree, request): seq for tree, request, seq in found}
        self._now = dict(self._before)

    def take(self, entry: LogEntry, tree: int, seq: int) -> Refused | None:
        if entry.step is Step.NONE:
            return None
        request = entry.request_id or ""
        if request != _storable(request):
            return Refused("its request id holds a zero byte")
        at = tree, request
        if entry.step is Step.OPENS:
            return already_open(request) if self._now.setdefault(at, seq) != seq else None
        if at not in self._now:
            return not_open(request)
        if entry.step is Step.CLOSES:
            del self._now[at]
        return None

    def write(self, node: str, boot: str) -> None:
        closed = [at for at, seq in self._before.items() if self._now.get(at) != seq]
        opened = [(*at, seq) for at, seq in self._now.items() if self._before.get(at) != seq]
        if closed:
            self._db.execute(_CLOSE_INTENTS, [list(column) for column in zip(*closed, strict=True)])
        if opened:
            columns = [list(column) for column in zip(*opened, strict=True)]
            self._db.execute(_OPEN_INTENTS, [node, boot, *columns])


def _storable(text: str | None) -> str:
    return (text or "").replace("\0", "")


_LOCK_HEADS = "SELECT tenant, size, frontier FROM tree WHERE id = ANY(%b::bigint[]) ORDER BY id FOR NO KEY UPDATE"
_SET_HEAD = "UPDATE tree SET size = %b, frontier = %b WHERE id = %b"
_INSERT_LEAVES = (
    "INSERT INTO leaf (tree, seq, hash, payload)"
    " SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[])"
)
_INSERT_CHECKPOINT = (
    "INSERT INTO checkpoint (tree, size, note) VALUES (%s, %s, %s)"
    " ON CONFLICT DO NOTHING"  # another process signed the same head
)
_FIND_INTENTS = (
    "SELECT tree, request_id, seq FROM open_intent"
    " JOIN unnest(%b::bigint[], %s::text[]) AS asked (tree, request_id) USING (tree, request_id)"
)
_CLOSE_INTENTS = (
    "DELETE FROM open_intent AS o USING unnest(%b::bigint[], %s::text[]) AS done (tree, request_id)"
    " WHERE o.tree = done.tree AND o.request_id = done.request_id"
)
_OPEN_INTENTS = (
    "INSERT INTO open_intent (tree, request_id, seq, node, boot)"
    " SELECT tree, request_id, seq, %s, %s FROM unnest(%b::bigint[], %s::text[], %b::bigint[])"
    " AS fresh (tree, request_id, seq)"
)
_INTENTS = "SELECT tenant, request_id, seq, node, boot FROM open_intent JOIN tree ON tree.id = open_intent.tree "
_UNSIGNED = (
    "SELECT tenant, size, frontier FROM tree WHERE size >"
    " coalesce((SELECT max(size) FROM checkpoint WHERE checkpoint.tree = tree.id), 0)"
)


_NEWEST = "SELECT payload FROM tree JOIN leaf ON leaf.tree = tree.id AND leaf.seq = tree.size - 1 WHERE payload != ''"
_FIRST_NOTE = (
    "SELECT note FROM checkpoint JOIN tree ON tree.id = checkpoint.tree"
    " ORDER BY tenant != '_system', tenant, checkpoint.size LIMIT 1"
)


def _identity(db: Rows) -> Identity | None:
    row = db.execute("SELECT cell, log, key FROM identity").fetchone() if has_table(db, "identity") else None
    return None if row is None else Identity(*row)


def _successions(db: Rows) -> list[str]:
    if not has_table(db, "succession"):
        return []
    return [note for (note,) in db.execute('SELECT note FROM succession ORDER BY note COLLATE "C"')]


_ATTESTED_FILE = (
    "CREATE TABLE IF NOT EXISTS attested_file"
    " (folder text, name text, content bytea NOT NULL, PRIMARY KEY (folder, name))"
)
_PUT_FILE = (
    "INSERT INTO attested_file VALUES (%s, %s, %b) ON CONFLICT (folder, name) DO UPDATE SET content = EXCLUDED.content"
)


def _attested_files(db: Rows) -> list[AttestedFile]:
    if not has_table(db, "attested_file"):
        return []
    rows = db.execute('SELECT folder, name, content FROM attested_file ORDER BY folder, name COLLATE "C"')
    return [AttestedFile(folder, name, bytes(content)) for folder, name, content in rows]


def _take_name(db: Rows, node: str) -> None:
    """A process that died a moment ago may still have a session, until the server notices."""
    deadline = time.monotonic() + NAME_SECONDS
    while db.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_NODE_LOCKS, node)).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise StoreError(
                f"another process already writes this log as node {node}; give each process its own name by `node`"
            )
        time.sleep(0.02)


class PostgresPruner:
    """Old row versions go with the server's vacuum, and out of its write-ahead log as that is recycled."""

    def __init__(self, url: str) -> None:
        with store_errors():
            self._db = connect(url)

    def prune(self, tenant: str, first: int, last: int) -> None:
        for start in range(first, last + 1, FETCH):
            with store_errors():
                self._db.execute(_PRUNE, (tenant, start, min(last, start + FETCH - 1)))

    def close(self) -> None:
        self._db.close()


class PostgresReader:
    """The reading side: one snapshot of the database, which others may be writing."""

    def __init__(self, db: Rows, url: str) -> None:
        self._db = db
        self._url = url
        self._cursors = count()

    @classmethod
    def open(cls, url: str) -> "PostgresReader":
        """Raises StoreError if the server is away or there is no audit log in the database."""
        with store_errors():
            db = connect(url)
            try:
                db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                if format_of(db) is None:
                    raise NoLog(
                        "there is no audit log in this database; check database.record_url, or start the gateway once"
                    )
            except BaseException:
                db.close()
                raise
        return cls(db, url)

    def pruner(self) -> PostgresPruner:
        return PostgresPruner(self._url)

    def identity(self) -> Identity | None:
        """Which installation the database says it is of; None if it was never claimed."""
        with store_errors():
            return _identity(self._db)

    def successions(self) -> list[str]:
        with store_errors():
            return _successions(self._db)

    def attested_files(self) -> list[AttestedFile]:
        with store_errors():
            return _attested_files(self._db)

    def tenants(self) -> list[str]:
        with store_errors():
            query = 'SELECT tenant FROM tree ORDER BY tenant COLLATE "C"'
            return [tenant for (tenant,) in self._db.execute(query)]

    def sizes(self) -> dict[str, int]:
        """Size of every tree."""
        with store_errors():
            return {tenant: size for tenant, size in self._db.execute("SELECT tenant, size FROM tree")}

    def head(self, tenant: str) -> tuple[int, bytes]:
        with store_errors():
            row = self._db.execute("SELECT size, frontier FROM tree WHERE tenant = %s", (tenant,)).fetchone()
        if row is None:
            raise StoreError(f"the log has no tenant {tenant!r}; check the name of the tenant")
        return row[0], row[1]

    def leaves(self, tenant: str, start: int = 0, end: int | None = None) -> Iterator[StoredLeaf]:
        if end is None:
            yield from map(StoredLeaf._make, self._stream(_LEAVES, (tenant, start)))
        elif end - start > FETCH:
            yield from map(StoredLeaf._make, self._stream(_LEAVES_BEFORE, (tenant, start, end)))
        else:
            with store_errors(), self._db.cursor(binary=True) as cursor:  # in one round trip
                rows = cursor.execute(_LEAVES_BEFORE, (tenant, start, end)).fetchall()
            yield from map(StoredLeaf._make, rows)

    def leaf_hashes(self, tenant: str, start: int, end: int) -> Iterator[bytes]:
        for (leaf_hash,) in self._stream(_HASHES, (tenant, start, end)):
            yield leaf_hash

    def checkpoints(self, tenant: str) -> Iterator[SignedCheckpoint]:
        query = (
            "SELECT tenant, checkpoint.size, note FROM checkpoint JOIN tree ON tree.id = checkpoint.tree"
            " WHERE tenant = %s ORDER BY checkpoint.size"
        )
        yield from map(SignedCheckpoint._make, self._stream(query, (tenant,)))

    def newest_checkpoints(self, tenant: str, most: int, up_to: int | None = None) -> list[SignedCheckpoint]:
        limit = MAX_SIZE if up_to is None else up_to
        with store_errors():
            return [SignedCheckpoint(*row) for row in self._db.execute(_NEWEST_SIGNED, (tenant, tenant, limit, most))]

    def last_checkpoint(self, tenant: str) -> SignedCheckpoint | None:
        with store_errors():
            row = self._db.execute(_LAST, (tenant, tenant)).fetchone()
        return None if row is None else SignedCheckpoint._make(row)

    def expired(self, tenant: str, end: int) -> Iterator[int]:
        for (seq,) in self._stream(_EXPIRED, (tenant, end)):
            yield seq

    def open_intents(self, tenant: str) -> list[OpenIntent]:
        with store_errors():
            return [
                OpenIntent(*row) for row in self._db.execute(_INTENTS + "WHERE tenant = %s ORDER BY seq", (tenant,))
            ]

    def _stream(self, query: str, parameters: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        """Rows by a cursor on the server, FETCH at a time: a log does not fit into memory."""
        with store_errors(), self._db.cursor(f"walk_{next(self._cursors)}", binary=True) as cursor:
            cursor.itersize = FETCH
            cursor.execute(query, parameters)
            yield from cursor

    def close(self) -> None:
        self._db.close()


_LEAVES = (
    "SELECT seq, hash, payload FROM leaf"
    " WHERE tree = (SELECT id FROM tree WHERE tenant = %s) AND seq >= %s ORDER BY seq"
)
_LEAVES_BEFORE = _LEAVES.replace("ORDER BY", "AND seq < %s ORDER BY")
_HASHES = (
    "SELECT hash FROM leaf WHERE tree = (SELECT id FROM tree WHERE tenant = %s) AND seq >= %s AND seq < %s ORDER BY seq"
)
_NEWEST_SIGNED = (
    "SELECT %s::text, size, note FROM checkpoint"
    " WHERE tree = (SELECT id FROM tree WHERE tenant = %s) AND size <= %s ORDER BY size DESC LIMIT %s"
)
_LAST = (
    "SELECT %s::text, size, note FROM checkpoint"
    " WHERE tree = (SELECT id FROM tree WHERE tenant = %s) ORDER BY size DESC LIMIT 1"
)
_EXPIRED = (
    "SELECT seq FROM leaf WHERE tree = (SELECT id FROM tree WHERE tenant = %s)"
    " AND seq < %s AND length(payload) = 0 ORDER BY seq"
)
_PRUNE = (
    "UPDATE leaf SET payload = '' WHERE tree = (SELECT id FROM tree WHERE tenant = %s)"
    " AND seq BETWEEN %s AND %s AND payload != ''"
)
