"""AI systems and projects that a person stopped, as records (AI Act 14(4)(e), 26(5)).

One row each, kept when the system is resumed. A project may be stopped that is part of no AI system.
"""

from collections.abc import Mapping
from datetime import datetime

from sqlmodel import Session, select

from gateway.database.database import Database
from gateway.database.tables.oversight import StopRow
from gateway.records.control import Record
from gateway.store import lookup

Place = tuple[str, str, str]
"""Tenant, project or '', AI system or '': one of the last two is empty."""


class StopRecord(Record):
    """A stop of an AI system, or of a project. `reason` is a code; until `resumed_at`, every request is refused."""

    tenant: str
    project: str | None
    ai_system_id: str | None
    reason: str
    stopped_at: datetime
    stopped_by: str
    resumed_at: datetime | None
    resumed_by: str | None

    @property
    def place(self) -> Place:
        return self.tenant, self.project or "", self.ai_system_id or ""


def stop_record(row: StopRow) -> StopRecord:
    fields = row.model_dump(exclude={"epoch"})
    return StopRecord.model_validate(fields | {name: fields[name] or None for name in ("project", "ai_system_id")})


def stops_in(database: Database, tenant: str) -> list[StopRecord]:
    """All stops that there ever were in the tenant, those in force and those that ended. Raises NotFound."""
    with database.read() as session:
        lookup.tenant(session, tenant)
        rows = session.exec(
            select(StopRow).where(StopRow.tenant == tenant).order_by(StopRow.project, StopRow.ai_system_id)
        )
        return [stop_record(row) for row in rows]


def read_stops(session: Session, cell: str, since: int) -> Mapping[Place, StopRecord]:
    """Those that changed after epoch `since`."""
    rows = session.exec(select(StopRow).where(StopRow.cell == cell, StopRow.epoch > since))
    records = map(stop_record, rows)
    return {record.place: record for record in records}
