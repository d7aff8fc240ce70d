"""Adapters of projects, as records."""

from collections.abc import Mapping

from sqlmodel import Session, col, select

from gateway.database.database import Database
from gateway.database.errors import NotFound
from gateway.database.tables.models import AdapterRow
from gateway.records.adapters import AdapterRecord
from gateway.store import lookup

AdaptersByProject = Mapping[tuple[str, str], Mapping[str, AdapterRecord]]
"""By (tenant, project), then by name; those that were deleted, too, as long as they are changes."""


def adapter_record(row: AdapterRow) -> AdapterRecord:
    return AdapterRecord.model_validate(row.model_dump(include=set(AdapterRecord.model_fields)))


def adapter_row(session: Session, tenant: str, project: str, name: str) -> AdapterRow:
    """Raises NotFound, also for one that was deleted."""
    lookup.project(session, tenant, project)
    row = session.get(AdapterRow, (tenant, project, name))
    if row is None or row.deleted_at is not None:
        raise NotFound(f"project {project!r} has no such adapter; `domicile adapter list` shows those there are")
    return row


def adapters_in(database: Database, tenant: str, project: str | None = None) -> list[AdapterRecord]:
    """Those of the tenant, or of one project. Raises NotFound."""
    with database.read() as session:
        query = select(AdapterRow).where(AdapterRow.tenant == tenant, col(AdapterRow.deleted_at).is_(None))
        if project is None:
            lookup.tenant(session, tenant)
        else:
            lookup.project(session, tenant, project)
            query = query.where(AdapterRow.project == project)
        return [adapter_record(row) for row in session.exec(query.order_by(AdapterRow.project, AdapterRow.name))]


def adapter_at(database: Database, tenant: str, project: str, name: str) -> AdapterRecord:
    """Raises NotFound."""
    with database.read() as session:
        return adapter_record(adapter_row(session, tenant, project, name))


def read_adapters(session: Session, cell: str, since: int) -> AdaptersByProject:
    """Those that changed after epoch `since`."""
    found: dict[tuple[str, str], dict[str, AdapterRecord]] = {}
    for row in session.exec(select(AdapterRow).where(AdapterRow.cell == cell, AdapterRow.epoch > since)):
        found.setdefault((row.tenant, row.project), {})[row.name] = adapter_record(row)
    return found


def merged_adapters(before: AdaptersByProject, changes: AdaptersByProject) -> AdaptersByProject:
    """`before` with `changes`, without those that were deleted."""
    after = dict(before)
    for place, adapters in changes.items():
        known = {**after.get(place, {}), **adapters}
        after[place] = {name: record for name, record in known.items() if record.deleted_at is None}
    return after
