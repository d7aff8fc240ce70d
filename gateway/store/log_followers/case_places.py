"""Which records of a tree are of incidents, requests of persons and acts that answer these: their numbers, so that
nobody reads a million records of calls for them.

What they say stays in the record alone, so there is nothing here to seal, to erase or to expire. The hash of the
last record that was read says whether the log is still the one that was: where it is not, nothing is known of it.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from audit.incidents.known_cases import places
from audit.log.walk import size_of
from audit.storage.store import Reader
from gateway.database.database import Database
from gateway.database.tables.usage import CaseCursorRow, CasePlaceRow

AT_ONCE = 10_000
"""Records between two transactions."""

_CURSOR: Any = CaseCursorRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_PLACE: Any = CasePlaceRow.__table__  # type: ignore[attr-defined]


class CasePlaces:
    """`log`: the name of the log that is read, as in the ledger's cursors. May be used from several threads."""

    def __init__(self, database: Database, log: str) -> None:
        self._database = database
        self._log = log[:16]
        self._read: dict[str, int] = {}  # at least so far, to see without a query that nothing is new

    def follow(self, open_reader: Callable[[], Reader]) -> None:
        """Note what is new on record. Several gateways may do it at once: each step is of one of them.

        Raises DatabaseUnavailable, or what the reader raises; then what was noted stays.
        """
        with closing(open_reader()) as reader:
            for tenant, size in reader.sizes().items():
                while size > self._read.get(tenant, 0):
                    self._read[tenant] = self._step(reader, tenant, size)

    def known(self, reader: Reader, tenant: str) -> tuple[int, Sequence[int]]:
        """How many records were read, and which of them are of cases. (0, ()) where the log is another one, or was
        not read. Raises DatabaseUnavailable, StoreError."""
        here = and_(_CURSOR.c.log == self._log, _CURSOR.c.tenant == tenant)
        same = and_(_PLACE.c.log == _CURSOR.c.log, _PLACE.c.tenant == _CURSOR.c.tenant)
        query = select(_CURSOR.c.next_seq, _CURSOR.c.leaf_hash, _PLACE.c.seq)  # in one statement, so of one moment
        query = query.select_from(_CURSOR.outerjoin(_PLACE, same)).where(here).order_by(_PLACE.c.seq)
        with self._database.read() as session:
            rows = session.connection().execute(query).all()
        if not rows or not _is_same(reader, tenant, rows[0].next_seq, rows[0].leaf_hash):
            return 0, ()
        return rows[0].next_seq, tuple(row.seq for row in rows if row.seq is not None)

    def tenants(self) -> list[str]:
        """Those of which a record is noted. Raises DatabaseUnavailable."""
        with self._database.read() as session:
            query = select(_PLACE.c.tenant).where(_PLACE.c.log == self._log).distinct()
            return sorted(session.connection().execute(query).scalars())

    def _step(self, reader: Reader, tenant: str, size: int) -> int:
        """Returns how far the tree was read by then, at the least."""
        with self._database.read() as session:
            query = select(_CURSOR).where(self._here(_CURSOR, tenant))
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
        found = places(reader, tenant, start, end)
        (hash_,) = reader.leaf_hashes(tenant, end - 1, end)
        with self._database.write() as session:
            connection = session.connection()
            self._insert(connection, tenant)
            if not self._move(connection, tenant, start, last, end, hash_):
                return start
            if found:
                rows = [{"log": self._log, "tenant": tenant, "seq": seq} for seq in found]
                connection.execute(insert(_PLACE), rows)
        return end

    def _begin_anew(self, tenant: str, start: int, last: bytes) -> None:
        with self._database.write() as session:
            connection = session.connection()
            if self._move(connection, tenant, start, last, 0, b""):
                connection.execute(delete(_PLACE).where(self._here(_PLACE, tenant)))

    def _insert(self, connection: Connection, tenant: str) -> None:
        begin = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_CURSOR)
        row = {"log": self._log, "tenant": tenant, "next_seq": 0, "leaf_hash": b""}
        connection.execute(begin.on_conflict_do_nothing(), row)

    def _move(self, connection: Connection, tenant: str, start: int, last: bytes, end: int, hash_: bytes) -> bool:
        """False where another gateway moved it meanwhile: then its step counts, and not ours."""
        there = and_(self._here(_CURSOR, tenant), _CURSOR.c.next_seq == start, _CURSOR.c.leaf_hash == last)
        moved = connection.execute(update(_CURSOR).where(there).values(next_seq=end, leaf_hash=hash_))
        return bool(moved.rowcount)

    def _here(self, table: Any, tenant: str) -> Any:
        return and_(table.c.log == self._log, table.c.tenant == tenant)


def _is_same(reader: Reader, tenant: str, read: int, last: bytes) -> bool:
    """Whether the record before number `read` has the hash `last`."""
    if read == 0:
        return True
    return read <= size_of(reader, tenant) and list(reader.leaf_hashes(tenant, read - 1, read)) == [bytes(last)]
