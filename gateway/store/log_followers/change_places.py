"""Where the records of changes lie in a tree, each with its type, so that a list of some types reads no other."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_

from audit.log.changes import change_types
from audit.storage.store import Reader
from gateway.database.database import Database
from gateway.database.tables.usage import ChangeCursorRow, ChangePlaceRow
from gateway.store.log_followers.record_places import Index, RecordPlaces

_CURSOR: Any = ChangeCursorRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_PLACE: Any = ChangePlaceRow.__table__  # type: ignore[attr-defined]


def _find(reader: Reader, tenant: str, start: int, end: int) -> list[dict[str, Any]]:
    return [{"seq": seq, "type": kind} for seq, kind in change_types(reader, tenant, start, end)]


class ChangePlaces(RecordPlaces):
    """`log`: the name of the log that is read, as in the ledger's cursors. May be used from several threads."""

    def __init__(self, database: Database, log: str) -> None:
        super().__init__(database, log, Index(_CURSOR, _PLACE, _find))

    def newest(
        self, reader: Reader, tenant: str, types: Collection[str], first: int, end: int, limit: int
    ) -> tuple[int, Sequence[int]]:
        """How many records were read, and the numbers of the newest `limit` changes of these types from record `first`
        to before `end`, newest first. (0, ()) where the log is another one, or was not read. Raises
        DatabaseUnavailable, StoreError."""
        wanted = and_(_PLACE.c.seq >= first, _PLACE.c.seq < end, _PLACE.c.type.in_(sorted(types)))
        query = self._places(_PLACE.c.seq, also=wanted).order_by(_PLACE.c.seq.desc()).limit(limit)
        rows = self._read_so_far(reader, tenant, query)
        return (rows[0].next_seq, tuple(row.seq for row in rows if row.seq is not None)) if rows else (0, ())
