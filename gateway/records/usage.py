"""Immutable records of limits, prices and usage, returned by the control store."""

from datetime import datetime

from gateway.database.tables.control import Changed
from gateway.database.tables.usage import LimitSettingRow, PriceRow
from gateway.limits.limit_kinds import KINDS, LimitFigures, figures
from gateway.limits.limiter import Limits
from gateway.records.control import Record
from gateway.records.prices import MICRO, Price


class LimitsRecord(Record, LimitFigures):
    """Limits of a tenant, project or key. `project` and `key` are None for a level above."""

    tenant: str
    project: str | None
    key: str | None


class PriceRecord(Record):
    """A price in euros per million tokens, valid from `valid_from` until the next version. `batch_discount`: discount
    in batches, in percent."""

    model: str
    number: int
    valid_from: datetime
    input: float
    output: float
    cached: float
    batch_discount: int = 0


def limits_record(row: LimitSettingRow) -> LimitsRecord:
    """Return the record of a row. Raises StoreError for a kind of limit that this release does not know."""
    return LimitsRecord(
        cell=row.cell,
        created_at=row.created_at,
        tenant=row.tenant,
        project=row.project or None,
        key=row.key or None,
        **figures(row),
    )


def no_limits(owner: Changed, tenant: str, project: str, key: str) -> LimitsRecord:
    """Return the record of a tenant, project or key, `owner`, for which no limit was ever set."""
    return LimitsRecord(
        cell=owner.cell, created_at=owner.created_at, tenant=tenant, project=project or None, key=key or None
    )


def limits_of(row: LimitSettingRow) -> Limits:
    """Return the limits in the form used by the limiter. Raises StoreError as `limits_record` does."""
    amounts = figures(row)
    return Limits.of(**{kind.name: amounts[kind.field] for kind in KINDS})


def price_record(row: PriceRow) -> PriceRecord:
    return PriceRecord(
        cell=row.cell,
        created_at=row.created_at,
        model=row.model,
        number=row.number,
        valid_from=row.valid_from,
        input=row.input / MICRO,
        output=row.output / MICRO,
        cached=row.cached / MICRO,
        batch_discount=row.batch_discount,
    )


def price_of(row: PriceRow) -> Price:
    """Return the price in the form used by the ledger."""
    return Price(
        row.model, row.number, row.valid_from.timestamp(), row.input, row.output, row.cached, row.batch_discount
    )
