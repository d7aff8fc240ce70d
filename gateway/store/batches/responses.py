"""Responses that are kept, and those that wait to be answered.

Who answers a tenant's waiting responses holds the tenant's lease, and shows its term in each transaction. A response
ends once: whatever is done twice, or after it was cancelled, changes nothing.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from gateway.database.database import Database
from gateway.database.leases import Lease
from gateway.database.tables.responses import StoredResponseRow
from gateway.records.batches import Owner
from gateway.records.responses import WAITING, DueResponse, QueuedResponse, ResponseRecord, ResponseStatus

RESPONSE: Any = StoredResponseRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
DELETED = "deleted"


class StoredResponses:
    """Blocking. All raise DatabaseUnavailable."""

    def __init__(self, database: Database, cell: str) -> None:
        self._database = database
        self._cell = cell

    def add(self, response: ResponseRecord) -> None:
        with self._database.write() as session:
            self._insert(session.connection(), response)

    def queue(self, response: ResponseRecord, most: int) -> bool:
        """False, with nothing added, where `most` of the tenant wait."""
        with self._database.write() as session:
            connection = session.connection()
            if _waiting(connection, response.owner.tenant) >= most:
                return False
            self._insert(connection, response)
        return True

    def waiting(self, tenant: str) -> int:
        with self._database.read() as session:
            return _waiting(session.connection(), tenant)

    def get(self, owner: Owner, response: str, now: float) -> ResponseRecord | None:
        """None for one that there is not, whose time is over, or that is another project's."""
        with self._database.read() as session:
            return _get(session.connection(), owner, response, now)

    def chain(self, owner: Owner, response: str, now: float, most: int, most_bytes: int) -> list[ResponseRecord]:
        """The response and those that it continues, the newest first, up to one that there is not. More than `most`
        or `most_bytes` are not read on; the caller sees that by what it got."""
        found: list[ResponseRecord] = []
        size, name = 0, response
        with self._database.read() as session:
            connection = session.connection()
            while len(found) <= most and size <= most_bytes:
                record = _get(connection, owner, name, now)
                if record is None:
                    break
                found.append(record)
                size += len(record.asked) + len(record.answered or b"")
                if record.previous is None:
                    break
                name = record.previous
        return found

    def end(self, owner: Owner, response: str, status: ResponseStatus, answered: bytes) -> bool:
        """The response is over, on its project's word; False where it was over before."""
        with self._database.write() as session:
            mine = (RESPONSE.c.id == response, RESPONSE.c.tenant == owner.tenant, RESPONSE.c.project == owner.project)
            changed = update(RESPONSE).where(*mine, RESPONSE.c.status.in_(WAITING))
            done = session.connection().execute(changed.values(status=status, answered=answered))
            return bool(done.rowcount)

    def hide(self, owner: Owner, response: str) -> bool:
        """Delete the content; from now on it is not found. `purge` deletes the rest. False where there was none."""
        with self._database.write() as session:
            mine = (RESPONSE.c.id == response, RESPONSE.c.tenant == owner.tenant, RESPONSE.c.project == owner.project)
            hidden = update(RESPONSE).where(*mine, RESPONSE.c.status != DELETED)
            done = session.connection().execute(hidden.values(status=DELETED, expires_at=0.0, asked=b"", answered=None))
            return bool(done.rowcount)

    def due(self, now: float, limit: int, skipped: int = 0) -> list[DueResponse]:
        """Those whose time is over, and those that were deleted and still have a row, behind the first `skipped`."""
        query = select(RESPONSE.c.id, RESPONSE.c.tenant, RESPONSE.c.status).where(
            RESPONSE.c.cell == self._cell, RESPONSE.c.expires_at <= now
        )
        with self._database.read() as session:
            query = query.order_by(RESPONSE.c.expires_at, RESPONSE.c.id).limit(limit).offset(skipped)
            rows = session.connection().execute(query).all()
        return [DueResponse(row.id, row.tenant, row.status != DELETED) for row in rows]

    def purge(self, responses: Collection[str]) -> None:
        with self._database.write() as session:
            session.connection().execute(delete(RESPONSE).where(RESPONSE.c.id.in_(list(responses))))

    # --- for who answers those that wait ---------------------------------------------------------------------------

    def tenants(self) -> list[str]:
        """Those with responses that wait."""
        query = select(RESPONSE.c.tenant).where(RESPONSE.c.cell == self._cell, RESPONSE.c.status.in_(WAITING))
        with self._database.read() as session:
            return sorted(session.connection().execute(query.distinct()).scalars())

    def queued(self, tenant: str, limit: int) -> list[QueuedResponse]:
        """The oldest of a tenant that wait or are being answered."""
        columns = (RESPONSE.c.id, RESPONSE.c.status, RESPONSE.c.data_key, RESPONSE.c.created_at)
        query = select(*columns).where(
            RESPONSE.c.cell == self._cell, RESPONSE.c.tenant == tenant, RESPONSE.c.status.in_(WAITING)
        )
        with self._database.read() as session:
            rows = session.connection().execute(query.order_by(RESPONSE.c.created_at, RESPONSE.c.id).limit(limit)).all()
        return [QueuedResponse(*row) for row in rows]

    def taken(self, tenant: str, response: str) -> ResponseRecord | None:
        """One that waits, with its content; None where it is over."""
        mine = (RESPONSE.c.id == response, RESPONSE.c.tenant == tenant, RESPONSE.c.status.in_(WAITING))
        with self._database.read() as session:
            row = session.connection().execute(select(RESPONSE).where(*mine)).mappings().first()
        return None if row is None else _record(row)

    def advance(
        self, lease: Lease, term: int, response: str, status: ResponseStatus, answered: bytes | None = None
    ) -> bool:
        """Change one that is not over; False where it was. Raises LeaseLost."""
        with self._database.write() as session:
            connection = session.connection()
            lease.check(connection, term)
            open_ = update(RESPONSE).where(RESPONSE.c.id == response, RESPONSE.c.status.in_(WAITING))
            return bool(connection.execute(open_.values(status=status, answered=answered)).rowcount)

    # --- for requests of persons -----------------------------------------------------------------------------------

    def under_keys(self, tenant: str, keys: Collection[str]) -> list[ResponseRecord]:
        """All of a tenant that are sealed under one of these data keys, also those whose time is over."""
        query = select(RESPONSE).where(RESPONSE.c.tenant == tenant, RESPONSE.c.data_key.in_(list(keys)))
        with self._database.read() as session:
            rows = session.connection().execute(query.where(RESPONSE.c.status != DELETED)).mappings()
            return [_record(row) for row in rows]

    def _insert(self, connection: Connection, response: ResponseRecord) -> None:
        same = ("id", "key_id", "background", "status", "previous", "created_at", "expires_at", "data_key", "asked")
        values = {name: getattr(response, name) for name in (*same, "answered")}
        whose = {"cell": self._cell, "tenant": response.owner.tenant, "project": response.owner.project}
        connection.execute(insert(RESPONSE), values | whose)


def _waiting(connection: Connection, tenant: str) -> int:
    mine = (RESPONSE.c.tenant == tenant, RESPONSE.c.status.in_(WAITING))
    return int(connection.execute(select(func.count()).select_from(RESPONSE).where(*mine)).scalar_one())


def _get(connection: Connection, owner: Owner, response: str, now: float) -> ResponseRecord | None:
    mine = (RESPONSE.c.tenant == owner.tenant, RESPONSE.c.project == owner.project)
    query = select(RESPONSE).where(RESPONSE.c.id == response, *mine)
    live = (RESPONSE.c.status != DELETED, RESPONSE.c.expires_at > now)
    row = connection.execute(query.where(*live)).mappings().first()
    return None if row is None else _record(row)


def _record(row: Any) -> ResponseRecord:
    names = ("id", "key_id", "background", "status", "previous", "created_at", "expires_at", "data_key")
    answered = None if row["answered"] is None else bytes(row["answered"])
    return ResponseRecord(
        owner=Owner(row["tenant"], row["project"]),
        asked=bytes(row["asked"]),
        answered=answered,
        **{name: row[name] for name in names},
    )
