"""What limits and prices there are, as frozen records. All raise DatabaseUnavailable."""

from sqlmodel import col, select

from gateway.database.database import Database
from gateway.database.tables.control import ApiKeyRow, ProjectRow, TenantRow
from gateway.database.tables.usage import LimitSettingRow, PriceRow
from gateway.records.usage import LimitsRecord, PriceRecord, limits_record, no_limits, price_record
from gateway.store import lookup


def limits_in(database: Database, tenant: str) -> list[LimitsRecord]:
    """All that were ever set in the tenant, its own first. Raises NotFound."""
    with database.read() as session:
        lookup.tenant(session, tenant)
        rows = session.exec(
            select(LimitSettingRow)
            .where(LimitSettingRow.tenant == tenant)
            .order_by(LimitSettingRow.project, LimitSettingRow.key)
        )
        return [limits_record(row) for row in rows]


def limits_at(database: Database, tenant: str, *, project: str | None = None, key: str | None = None) -> LimitsRecord:
    """Limits of the tenant, a project or a key; where nothing was set, limits nothing. Raises NotFound."""
    with database.read() as session:
        owner: TenantRow | ProjectRow | ApiKeyRow
        if key is not None:
            owner = lookup.key(session, tenant, key)
            project = owner.project
        elif project is not None:
            owner = lookup.project(session, tenant, project)
        else:
            owner = lookup.tenant(session, tenant)
        row = session.get(LimitSettingRow, (tenant, project or "", key or ""))
        if row is not None:
            return limits_record(row)
        return no_limits(owner, tenant, project or "", key or "")


def prices_in(database: Database, cell: str) -> list[PriceRecord]:
    """Every version, oldest first, by model."""
    with database.read() as session:
        rows = session.exec(
            select(PriceRow).where(PriceRow.cell == cell).order_by(PriceRow.model, col(PriceRow.number))
        )
        return [price_record(row) for row in rows]
