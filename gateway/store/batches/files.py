"""Files: uploaded ones, whose lines are in parts, and results, whose lines are the results of their batch."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from gateway.database.database import Database
from gateway.database.tables.batches import BatchResultRow, FilePartRow, StoredFileRow
from gateway.records.batches import FileRecord, Owner, Sealed, SealedPart, SealedResult

UPLOAD_S = 3600.0
"""After so long an upload that did not end is given up."""

FILE: Any = StoredFileRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
PART: Any = FilePartRow.__table__  # type: ignore[attr-defined]
RESULT: Any = BatchResultRow.__table__  # type: ignore[attr-defined]


class StoredFiles:
    """Blocking. All raise DatabaseUnavailable."""

    def __init__(self, database: Database, cell: str) -> None:
        self._database = database
        self._cell = cell

    def add(self, file: FileRecord) -> None:
        with self._database.write() as session:
            insert_file(session.connection(), self._cell, file)

    def add_parts(self, file: str, parts: Sequence[SealedPart]) -> None:
        rows = [
            {
                "file": file,
                "number": one.number,
                "first": one.first,
                "lines": one.lines,
                **_sealed_columns(one.sealed),
            }
            for one in parts
        ]
        with self._database.write() as session:
            session.connection().execute(insert(PART), rows)

    def finish(self, file: FileRecord) -> None:
        """The upload is whole."""
        values = {name: getattr(file, name) for name in ("state", "size", "lines", "expires_at")}
        with self._database.write() as session:
            query = update(FILE).where(FILE.c.id == file.id).values(values | _sealed_columns(file.sealed))
            session.connection().execute(query)

    def get(self, owner: Owner, file: str) -> FileRecord | None:
        """None for a file that there is not, or that is another project's."""
        with self._database.read() as session:
            row = session.connection().execute(select(FILE).where(*_ready(owner), FILE.c.id == file)).mappings().first()
        return None if row is None else _record(row)

    def page(
        self, owner: Owner, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool] | None:
        """Files behind the one called `after`, and whether there are more; None where that is not a file of `owner`."""
        query = select(FILE).where(*_ready(owner))
        if purpose is not None:
            query = query.where(FILE.c.purpose == purpose)
        with self._database.read() as session:
            found = page_of(session.connection(), query, FILE, after, limit, newest_first, owner)
        return None if found is None else ([_record(row) for row in found[0]], found[1])

    def parts(self, file: str, after: int, limit: int) -> list[SealedPart]:
        """Those behind number `after`, in order."""
        query = select(PART).where(PART.c.file == file, PART.c.number > after).order_by(PART.c.number).limit(limit)
        with self._database.read() as session:
            rows = session.connection().execute(query).mappings().all()
        return [SealedPart(row["number"], row["first"], row["lines"], sealed_in(row)) for row in rows]

    def results(self, batch: str, part: str, after: int, limit: int) -> list[SealedResult]:
        """Those behind line `after`, in order."""
        query = select(RESULT).where(RESULT.c.batch == batch, RESULT.c.part == part, RESULT.c.line > after)
        with self._database.read() as session:
            rows = session.connection().execute(query.order_by(RESULT.c.line).limit(limit)).mappings().all()
        return [SealedResult(row["line"], row["part"], row["size"], sealed_in(row)) for row in rows]

    def parts_under_key(self, tenant: str, key: str) -> list[tuple[FileRecord, SealedPart]]:
        """Return the parts of a tenant's files that are sealed under the data key, each with its file."""
        query = select(PART).join(FILE, FILE.c.id == PART.c.file)
        query = query.where(FILE.c.tenant == tenant, FILE.c.state == "ready", PART.c.data_key == key)
        with self._database.read() as session:
            connection = session.connection()
            rows = connection.execute(query.order_by(PART.c.file, PART.c.number)).mappings().all()
            of = select(FILE).where(FILE.c.id.in_({row["file"] for row in rows}))
            files = {row["id"]: _record(row) for row in connection.execute(of).mappings()}
        return [
            (files[row["file"]], SealedPart(row["number"], row["first"], row["lines"], sealed_in(row))) for row in rows
        ]

    def used_bytes(self, tenant: str) -> int:
        """Bytes of all files of the tenant."""
        with self._database.read() as session:
            query = select(func.coalesce(func.sum(FILE.c.size), 0)).where(FILE.c.tenant == tenant)
            return int(session.connection().execute(query).scalar_one())

    def hide(self, owner: Owner, file: str) -> FileRecord | None:
        """From now on it is not found; `purge` deletes its content. None where there was none."""
        with self._database.write() as session:
            connection = session.connection()
            row = connection.execute(select(FILE).where(*_ready(owner), FILE.c.id == file)).mappings().first()
            if row is None:
                return None
            connection.execute(update(FILE).where(FILE.c.id == file).values(state="deleted"))
        return _record(row)

    def due(self, now: float, limit: int, skipped: int = 0) -> list[FileRecord]:
        """Files whose time is over, that were deleted, or whose upload did not end, behind the first `skipped`."""
        given_up = (FILE.c.state == "uploading") & (FILE.c.created_at <= now - UPLOAD_S)
        over = (FILE.c.expires_at <= now) | (FILE.c.state == "deleted") | given_up
        query = select(FILE).where(FILE.c.cell == self._cell, over).order_by(FILE.c.expires_at, FILE.c.id)
        query = query.limit(limit).offset(skipped)
        with self._database.read() as session:
            return [_record(row) for row in session.connection().execute(query).mappings()]

    def purge(self, file: FileRecord) -> None:
        """Delete its content and itself."""
        with self._database.write() as session:
            connection = session.connection()
            connection.execute(delete(PART).where(PART.c.file == file.id))
            if file.batch is not None:
                connection.execute(delete(RESULT).where(RESULT.c.batch == file.batch, RESULT.c.part == file.part))
            connection.execute(delete(FILE).where(FILE.c.id == file.id))

    def has_results(self, batch: str) -> bool:
        """Whether a file of results of the batch is left."""
        with self._database.read() as session:
            query = select(FILE.c.id).where(FILE.c.batch == batch).limit(1)
            return session.connection().execute(query).first() is not None


def insert_file(connection: Connection, cell: str, file: FileRecord) -> None:
    connection.execute(
        insert(FILE),
        {
            "id": file.id,
            "cell": cell,
            "tenant": file.owner.tenant,
            "project": file.owner.project,
            "purpose": file.purpose,
            "state": file.state,
            "size": file.size,
            "lines": file.lines,
            "created_at": file.created_at,
            "expires_at": file.expires_at,
            "batch": file.batch,
            "part": file.part,
            **_sealed_columns(file.sealed),
        },
    )


def page_of(
    connection: Connection,
    query: Any,
    table: Any,
    after: str | None,
    limit: int,
    newest_first: bool,
    owner: Owner | None,
) -> tuple[list[Any], bool] | None:
    """Rows behind the one called `after`, by time and id, and whether there are more. None where `owner` (any, if None)
    has nothing that is called so."""
    place = (table.c.created_at, table.c.id)
    if after is not None:
        mine = (table.c.tenant == owner.tenant, table.c.project == owner.project) if owner is not None else ()
        known = connection.execute(select(*place).where(table.c.id == after, *mine)).first()
        if known is None:
            return None
        at, name = known
        same = table.c.created_at == at
        if newest_first:
            query = query.where((table.c.created_at < at) | (same & (table.c.id < name)))
        else:
            query = query.where((table.c.created_at > at) | (same & (table.c.id > name)))
    order = [column.desc() if newest_first else column.asc() for column in place]
    rows = list(connection.execute(query.order_by(*order).limit(limit + 1)).mappings())
    return rows[:limit], len(rows) > limit


def sealed_in(row: Any) -> Sealed:
    return Sealed(row["data_key"], bytes(row["sealed"]))


def _sealed_columns(sealed: Sealed) -> dict[str, Any]:
    return {"data_key": sealed.data_key, "sealed": sealed.content}


def _ready(owner: Owner) -> tuple[Any, ...]:
    return FILE.c.tenant == owner.tenant, FILE.c.project == owner.project, FILE.c.state == "ready"


def _record(row: Any) -> FileRecord:
    return FileRecord(
        row["id"],
        Owner(row["tenant"], row["project"]),
        row["purpose"],
        row["state"],
        row["size"],
        row["lines"],
        row["created_at"],
        row["expires_at"],
        sealed_in(row),
        row["batch"],
        row["part"],
    )
