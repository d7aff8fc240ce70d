"""Where the records of incidents, of requests of persons and of acts that answer these lie in a tree."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from audit.incidents.known_cases import places
from audit.storage.store import Reader
from gateway.database.database import Database
from gateway.database.tables.usage import CaseCursorRow, CasePlaceRow
from gateway.store.log_followers.record_places import Index, RecordPlaces

_CURSOR: Any = CaseCursorRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_PLACE: Any = CasePlaceRow.__table__  # type: ignore[attr-defined]


def _find(reader: Reader, tenant: str, start: int, end: int) -> list[dict[str, Any]]:
    return [{"seq": seq} for seq in places(reader, tenant, start, end)]


class CasePlaces(RecordPlaces):
    """`log`: the name of the log that is read, as in the ledger's cursors. May be used from several threads."""

    def __init__(self, database: Database, log: str) -> None:
        super().__init__(database, log, Index(_CURSOR, _PLACE, _find))

    def known(self, reader: Reader, tenant: str) -> tuple[int, Sequence[int]]:
        """How many records were read, and which of them are of cases. (0, ()) where the log is another one, or was
        not read. Raises DatabaseUnavailable, StoreError."""
        rows = self._read_so_far(reader, tenant, self._places(_PLACE.c.seq).order_by(_PLACE.c.seq))
        return (rows[0].next_seq, tuple(row.seq for row in rows if row.seq is not None)) if rows else (0, ())

    def tenants(self) -> list[str]:
        """Those of which a record is noted. Raises DatabaseUnavailable."""
        with self._database.read() as session:
            query = select(_PLACE.c.tenant).where(_PLACE.c.log == self._log).distinct()
            return sorted(session.connection().execute(query).scalars())
