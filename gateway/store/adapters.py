"""Queries for the adapters of projects."""

from collections.abc import Mapping

from sqlmodel import Session, col, select

from gateway.database.database import Database
from gateway.database.errors import NotFound
from gateway.database.tables.models import AdapterRow
from gateway.records.adapters import AdapterRecord
from gateway.store import lookup

AdaptersByProject = Mapping[tuple[str, str], Mapping[str, AdapterRecord]]
"""Adapters by (tenant, project), then by name. A set of changes also has the deleted adapters."""


def adapter_record(row: AdapterRow) -> AdapterRecord:
    return AdapterRecord.model_validate(row.model_dump(include=set(AdapterRecord.model_fields)))


def adapter_row(session: Session, tenant: str, project: str, name: str) -> AdapterRow:
    """Return the row of an adapter. Raises NotFound if it does not exist or was deleted."""
    lookup.project(session, tenant, project)
    row = session.get(AdapterRow, (tenant, project, name))
    if row is None or row.deleted_at is not None:
        raise NotFound(no_such_adapter(project))
    return row


def no_such_adapter(project: str) -> str:
    return f"project {project!r} has no such adapter; `domicile adapter list` shows those there are"


def adapters_in(database: Database, tenant: str, project: str | None = None) -> list[AdapterRecord]:
    """Return the adapters of the tenant, or of one project. Raises NotFound for an unknown tenant or project."""
    with database.read() as session:
        query = select(AdapterRow).where(AdapterRow.tenant == tenant, col(AdapterRow.deleted_at).is_(None))
        if project is None:
            lookup.tenant(session, tenant)
        else:
            lookup.project(session, tenant, project)
            query = query.where(AdapterRow.project == project)
        return [adapter_record(row) for row in session.exec(query.order_by(AdapterRow.project, AdapterRow.name))]


def adapter_at(database: Database, tenant: str, project: str, name: str) -> AdapterRecord:
    """Return an adapter. Raises NotFound."""
    with database.read() as session:
        return adapter_record(adapter_row(session, tenant, project, name))


def read_adapters(session: Session, cell: str, since: int) -> AdaptersByProject:
    """Return the adapters that changed after epoch `since`, including deleted ones."""
    found: dict[tuple[str, str], dict[str, AdapterRecord]] = {}
    for row in session.exec(select(AdapterRow).where(AdapterRow.cell == cell, AdapterRow.epoch > since)):
        found.setdefault((row.tenant, row.project), {})[row.name] = adapter_record(row)
    return found


def merged_adapters(before: AdaptersByProject, changes: AdaptersByProject) -> AdaptersByProject:
    """Return `before` updated with `changes`, without deleted adapters."""
    after = dict(before)
    for place, adapters in changes.items():
        known = {**after.get(place, {}), **adapters}
        after[place] = {name: record for name, record in known.items() if record.deleted_at is None}
    return after
