"""Which records of a tree are of one sort: their numbers, so that a list of them reads no records of calls.

What they say stays in the record alone, so there is nothing here to seal, to erase or to expire. The hash of the
last record that was read says whether the log is still the one that was: where it is not, nothing is known of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from audit.log.walk import size_of
from audit.storage.store import Reader
from gateway.database.database import Database

AT_ONCE = 10_000
"""Records between two transactions."""


class Index(NamedTuple):
    """Of records of one sort. `cursor`: table of how far each tree was read; `place`: table of their numbers. `find`
    returns of records from a number to before another those of the sort, as columns of `place`, at least ``seq``."""

    cursor: Any
    place: Any
    find: Callable[[Reader, str, int, int], Sequence[Mapping[str, Any]]]


class RecordPlaces:
    """`log`: the name of the log that is read, as in the ledger's cursors. May be used from several threads."""

    def __init__(self, database: Database, log: str, index: Index) -> None:
        self._database = database
        self._log = log[:16]
        self._cursor, self._place, self._find = index
        self._read: dict[str, int] = {}  # at least so far, to see without a query that nothing is new

    def follow(self, open_reader: Callable[[], Reader]) -> None:
        """Note what is new on record. Several gateways may do it at once: each step is of one of them.

        Raises DatabaseUnavailable, or what the reader raises; then what was noted stays.
        """
        with closing(open_reader()) as reader:
            for tenant, size in reader.sizes().items():
                while size > self._read.get(tenant, 0):
                    self._read[tenant] = self._step(reader, tenant, size)

    def _read_so_far(self, reader: Reader, tenant: str, query: Any) -> Sequence[Any]:
        """Rows of `query`, which begins with the cursor's columns; none where the log is another one, or was not read.
        The query is one statement, so that its rows are of one moment."""
        with self._database.read() as session:
            rows = session.connection().execute(query.where(self._here(self._cursor, tenant))).all()
        if not rows or not _is_same(reader, tenant, rows[0].next_seq, rows[0].leaf_hash):
            return ()
        return rows

    def _places(self, *columns: Any, also: Any = True) -> Any:
        """Query of the cursor and, beside it, of the places that `also` selects."""
        cursor, place = self._cursor, self._place
        same = and_(place.c.log == cursor.c.log, place.c.tenant == cursor.c.tenant, also)
        return select(cursor.c.next_seq, cursor.c.leaf_hash, *columns).select_from(cursor.outerjoin(place, same))

    def _step(self, reader: Reader, tenant: str, size: int) -> int:
        """Returns how far the tree was read by then, at the least."""
        with self._database.read() as session:
            query = select(self._cursor).where(self._here(self._cursor, tenant))
            before = session.connection().execute(query).mappings().first()
        start, last = (0, b"") if before is None else (before["next_seq"], bytes(before["leaf_hash"]))
        if not _is_same(reader, tenant, start, last):
            if start > size:
                return size  # read from a newer snapshot than ours, or the log is an older one, which `known` sees
            self._begin_anew(tenant, start, last)
            return 0
        if start >= size:
            return start
        end = min(size, start + AT_ONCE)
        found = self._find(reader, tenant, start, end)
        (hash_,) = reader.leaf_hashes(tenant, end - 1, end)
        with self._database.write() as session:
            connection = session.connection()
            self._insert(connection, tenant)
            if not self._move(connection, tenant, start, last, end, hash_):
                return start
            if found:
                rows = [{"log": self._log, "tenant": tenant, **one} for one in found]
                connection.execute(insert(self._place), rows)
        return end

    def _begin_anew(self, tenant: str, start: int, last: bytes) -> None:
        with self._database.write() as session:
            connection = session.connection()
            if self._move(connection, tenant, start, last, 0, b""):
                connection.execute(delete(self._place).where(self._here(self._place, tenant)))

    def _insert(self, connection: Connection, tenant: str) -> None:
        begin = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(self._cursor)
        row = {"log": self._log, "tenant": tenant, "next_seq": 0, "leaf_hash": b""}
        connection.execute(begin.on_conflict_do_nothing(), row)

    def _move(self, connection: Connection, tenant: str, start: int, last: bytes, end: int, hash_: bytes) -> bool:
        """False where another gateway moved it meanwhile: then its step counts, and not ours."""
        there = and_(
            self._here(self._cursor, tenant), self._cursor.c.next_seq == start, self._cursor.c.leaf_hash == last
        )
        moved = connection.execute(update(self._cursor).where(there).values(next_seq=end, leaf_hash=hash_))
        return bool(moved.rowcount)

    def _here(self, table: Any, tenant: str) -> Any:
        return and_(table.c.log == self._log, table.c.tenant == tenant)


def _is_same(reader: Reader, tenant: str, read: int, last: bytes) -> bool:
    """Whether the record before number `read` has the hash `last`."""
    if read == 0:
        return True
    return read <= size_of(reader, tenant) and list(reader.leaf_hashes(tenant, read - 1, read)) == [bytes(last)]
