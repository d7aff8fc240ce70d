"""Batches: their states, and the results of their lines.

Who works a tenant's batches holds the tenant's lease, and shows its term in each transaction: a gateway that was
suspended, and wakes up after another took over, changes nothing. A line has one row of results at the most, so that
whatever is done twice is kept once.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import Database
from gateway.database.leases import Lease
from gateway.database.tables.batches import BatchRow
from gateway.records.batches import ACTIVE, BatchRecord, FileRecord, Owner, SealedResult, Status
from gateway.store.batches.files import RESULT, insert_file, page_of, sealed_in

BATCH: Any = BatchRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
OPEN: tuple[Status, ...] = ("validating", "in_progress")
"""The states that can be cancelled."""


class StoredBatches:
    """Blocking. All raise DatabaseUnavailable."""

    def __init__(self, database: Database, cell: str) -> None:
        self._database = database
        self._cell = cell

    def add(self, batch: BatchRecord, max_active: int) -> bool:
        """False, with nothing added, where the tenant has `max_active` batches that are not over."""
        with self._database.write() as session:
            connection = session.connection()
            mine = (BATCH.c.tenant == batch.owner.tenant, BATCH.c.status.in_(ACTIVE))
            if connection.execute(select(func.count()).select_from(BATCH).where(*mine)).scalar_one() >= max_active:
                return False
            values = {
                name: getattr(batch, name)
                for name in ("id", "key_id", "endpoint", "input_file", "status", "total", "completed", "failed")
            }
            times = {name: getattr(batch, name) for name in ("created_at", "expires_at", "kept_until")}
            whose = {"cell": self._cell, "tenant": batch.owner.tenant, "project": batch.owner.project}
            sealed = {"data_key": batch.sealed.data_key, "sealed": batch.sealed.content}
            connection.execute(insert(BATCH), {**values, **times, **whose, **sealed})
        return True

    def get(self, owner: Owner | None, batch: str) -> BatchRecord | None:
        """None for a batch that there is not, or that is another project's. `owner` None: of any project."""
        with self._database.read() as session:
            return self._get(session.connection(), owner, batch)

    def page(self, owner: Owner, *, after: str | None, limit: int) -> tuple[list[BatchRecord], bool] | None:
        """The newest first, behind the one called `after`, and whether there are more; None where that is none of
        `owner`'s."""
        query = select(BATCH).where(BATCH.c.tenant == owner.tenant, BATCH.c.project == owner.project)
        with self._database.read() as session:
            found = page_of(session.connection(), query, BATCH, after, limit, True, owner)
        return None if found is None else ([_record(row) for row in found[0]], found[1])

    def all(self, tenant: str | None, limit: int) -> list[BatchRecord]:
        """The newest of a tenant, or of all, for operators."""
        query = select(BATCH).where(BATCH.c.cell == self._cell)
        if tenant is not None:
            query = query.where(BATCH.c.tenant == tenant)
        query = query.order_by(BATCH.c.created_at.desc(), BATCH.c.id.desc()).limit(limit)
        with self._database.read() as session:
            return [_record(row) for row in session.connection().execute(query).mappings()]

    def uses_file(self, file: str) -> bool:
        """Whether a batch that is not over reads the file."""
        query = select(BATCH.c.id).where(BATCH.c.input_file == file, BATCH.c.status.in_(ACTIVE)).limit(1)
        with self._database.read() as session:
            return session.connection().execute(query).first() is not None

    def cancel(self, owner: Owner | None, batch: str, now: float) -> BatchRecord | None:
        """The batch, cancelling from now on if it can be cancelled. None as for `get`."""
        with self._database.write() as session:
            connection = session.connection()
            open_ = update(BATCH).where(BATCH.c.id == batch, BATCH.c.status.in_(OPEN))
            if owner is not None:
                open_ = open_.where(BATCH.c.tenant == owner.tenant, BATCH.c.project == owner.project)
            connection.execute(open_.values(status="cancelling", cancelling_at=now))
            return self._get(connection, owner, batch)

    # --- for who works them --------------------------------------------------------------------------------------

    def tenants(self) -> list[str]:
        """Those with batches that are not over."""
        query = select(BATCH.c.tenant).where(BATCH.c.cell == self._cell, BATCH.c.status.in_(ACTIVE)).distinct()
        with self._database.read() as session:
            return sorted(session.connection().execute(query).scalars())

    def active(self, tenant: str, limit: int) -> list[BatchRecord]:
        """The oldest of a tenant that are not over."""
        query = select(BATCH).where(BATCH.c.cell == self._cell, BATCH.c.tenant == tenant, BATCH.c.status.in_(ACTIVE))
        with self._database.read() as session:
            rows = session.connection().execute(query.order_by(BATCH.c.created_at, BATCH.c.id).limit(limit))
            return [_record(row) for row in rows.mappings()]

    def done(self, batch: str) -> set[int]:
        """The lines that have a result."""
        with self._database.read() as session:
            query = select(RESULT.c.line).where(RESULT.c.batch == batch)
            return set(session.connection().execute(query).scalars())

    def advance(self, lease: Lease, term: int, batch: str, before: Sequence[Status], **values: Any) -> bool:
        """Change a batch that is in one of the states `before`; whether it was. Raises LeaseLost."""
        with self._database.write() as session:
            connection = session.connection()
            lease.check(connection, term)
            where = (BATCH.c.id == batch, BATCH.c.status.in_(before))
            return bool(connection.execute(update(BATCH).where(*where).values(values)).rowcount)

    def keep(self, lease: Lease, term: int, batch: str, results: Sequence[SealedResult]) -> Status:
        """Keep results of lines that have none yet, and count them; the status that the batch has. Raises LeaseLost."""
        with self._database.write() as session:
            connection = session.connection()
            lease.check(connection, term)
            kept = {"output": 0, "error": 0}
            for one in results:
                row = {
                    "batch": batch,
                    "line": one.line,
                    "part": one.part,
                    "size": one.size,
                    "data_key": one.sealed.data_key,
                    "sealed": one.sealed.content,
                }
                kept[one.part] += connection.execute(_insert_new(connection, row)).first() is not None
            counts = {
                "completed": BATCH.c.completed + kept["output"],
                "failed": BATCH.c.failed + kept["error"],
            }
            connection.execute(update(BATCH).where(BATCH.c.id == batch).values(counts))
            status: Status = connection.execute(select(BATCH.c.status).where(BATCH.c.id == batch)).scalar_one()
        return status

    def sizes(self, batch: str) -> dict[str, tuple[int, int]]:
        """Lines and bytes of its results, by part."""
        query = select(RESULT.c.part, func.count(), func.sum(RESULT.c.size)).where(RESULT.c.batch == batch)
        with self._database.read() as session:
            rows = session.connection().execute(query.group_by(RESULT.c.part)).all()
        return {part: (lines, int(size)) for part, lines, size in rows}

    def end(
        self,
        lease: Lease,
        term: int,
        batch: str,
        status: Status,
        now: float,
        kept_until: float,
        files: Sequence[FileRecord],
    ) -> bool:
        """The batch is over, with these files of results; without any its results are deleted. False where it was over
        before. Raises LeaseLost."""
        named = {f"{one.part}_file": one.id for one in files}
        with self._database.write() as session:
            connection = session.connection()
            lease.check(connection, term)
            values = {"status": status, "ended_at": now, "kept_until": kept_until, **named}
            mine = (BATCH.c.id == batch, BATCH.c.status.in_(ACTIVE))
            if not connection.execute(update(BATCH).where(*mine).values(values)).rowcount:
                return False
            for one in files:
                insert_file(connection, self._cell, one)
            if not files:
                connection.execute(delete(RESULT).where(RESULT.c.batch == batch))
        return True

    def over(self, now: float, limit: int, skipped: int = 0) -> list[BatchRecord]:
        """Batches whose time is over, also those that never ended, since their keys are gone; behind the
        first `skipped`."""
        query = select(BATCH).where(BATCH.c.cell == self._cell, BATCH.c.kept_until <= now)
        query = query.order_by(BATCH.c.kept_until, BATCH.c.id).offset(skipped)
        with self._database.read() as session:
            return [_record(row) for row in session.connection().execute(query.limit(limit)).mappings()]

    def purge(self, batch: str) -> None:
        with self._database.write() as session:
            connection = session.connection()
            connection.execute(delete(RESULT).where(RESULT.c.batch == batch))
            connection.execute(delete(BATCH).where(BATCH.c.id == batch))

    def results_under_key(self, tenant: str, key: str) -> list[tuple[BatchRecord, SealedResult]]:
        """All results of a tenant that are sealed under the data key, each with its batch."""
        query = select(RESULT).join(BATCH, BATCH.c.id == RESULT.c.batch)
        query = query.where(BATCH.c.tenant == tenant, RESULT.c.data_key == key)
        with self._database.read() as session:
            connection = session.connection()
            rows = connection.execute(query.order_by(RESULT.c.batch, RESULT.c.line)).mappings().all()
            of = select(BATCH).where(BATCH.c.id.in_({row["batch"] for row in rows}))
            batches = {row["id"]: _record(row) for row in connection.execute(of).mappings()}
        return [
            (batches[row["batch"]], SealedResult(row["line"], row["part"], row["size"], sealed_in(row))) for row in rows
        ]

    def _get(self, connection: Connection, owner: Owner | None, batch: str) -> BatchRecord | None:
        query = select(BATCH).where(BATCH.c.id == batch, BATCH.c.cell == self._cell)
        if owner is not None:
            query = query.where(BATCH.c.tenant == owner.tenant, BATCH.c.project == owner.project)
        row = connection.execute(query).mappings().first()
        return None if row is None else _record(row)


def _insert_new(connection: Connection, row: dict[str, Any]) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(RESULT).values(row).on_conflict_do_nothing().returning(RESULT.c.line)


def _record(row: Any) -> BatchRecord:
    same = (
        *("id", "key_id", "endpoint", "input_file", "status", "created_at", "expires_at", "kept_until", "total"),
        *("completed", "failed", "output_file", "error_file", "in_progress_at", "cancelling_at", "finalizing_at"),
        "ended_at",
    )
    values = {name: row[name] for name in same}
    return BatchRecord(owner=Owner(row["tenant"], row["project"]), sealed=sealed_in(row), **values)
