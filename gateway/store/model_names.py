"""Queries for the model names of projects."""

from collections.abc import Mapping

from sqlmodel import Session, col, select

from gateway.database.database import Database
from gateway.database.errors import NotFound
from gateway.database.tables.models import ModelNameRow
from gateway.records.model_names import ModelNameRecord
from gateway.store import lookup

NamesByProject = Mapping[tuple[str, str], Mapping[str, ModelNameRecord]]
"""Model names by (tenant, project), then by name."""


def model_name_record(row: ModelNameRow) -> ModelNameRecord:
    return ModelNameRecord.model_validate(row.model_dump(exclude={"epoch"}))


def model_name(session: Session, tenant: str, project: str, name: str) -> ModelNameRow:
    """Return the row of a model name. Raises NotFound if it does not exist or was deleted."""
    lookup.project(session, tenant, project)
    row = session.get(ModelNameRow, (tenant, project, name))
    if row is None or row.deleted_at is not None:
        raise NotFound(f"project {project!r} has no such name; `domicile model list` shows those there are")
    return row


def model_names_in(database: Database, tenant: str, project: str | None = None) -> list[ModelNameRecord]:
    """Return the model names of the tenant, or of one project, without deleted ones. Raises NotFound for an unknown
    tenant or project."""
    with database.read() as session:
        query = select(ModelNameRow).where(ModelNameRow.tenant == tenant, col(ModelNameRow.deleted_at).is_(None))
        if project is None:
            lookup.tenant(session, tenant)
        else:
            lookup.project(session, tenant, project)
            query = query.where(ModelNameRow.project == project)
        return [model_name_record(row) for row in session.exec(query.order_by(ModelNameRow.project, ModelNameRow.name))]


def model_name_at(database: Database, tenant: str, project: str, name: str) -> ModelNameRecord:
    """Return a model name. Raises NotFound."""
    with database.read() as session:
        return model_name_record(model_name(session, tenant, project, name))


def read_model_names(session: Session, cell: str, since: int) -> NamesByProject:
    """Return the model names that changed after epoch `since`, including deleted ones."""
    rows = session.exec(select(ModelNameRow).where(ModelNameRow.cell == cell, ModelNameRow.epoch > since))
    found: dict[tuple[str, str], dict[str, ModelNameRecord]] = {}
    for row in rows:
        found.setdefault((row.tenant, row.project), {})[row.name] = model_name_record(row)
    return found


def merged(before: NamesByProject, changes: NamesByProject) -> NamesByProject:
    """Return `before` updated with `changes`, without deleted names."""
    after = dict(before)
    for place, names in changes.items():
        known = {**after.get(place, {}), **names}
        after[place] = {name: record for name, record in known.items() if record.deleted_at is None}
    return after
