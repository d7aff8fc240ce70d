"""Limits, prices and usage as the control store returns them: frozen values that cross boundaries."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.database.tables.control import Changed
from gateway.database.tables.usage import LimitSettingRow, PriceRow
from gateway.limits.limiter import Limits
from gateway.records.control import Record
from gateway.records.prices import MICRO, Price

Count = Annotated[int, Field(ge=0, le=10**12, strict=True)]
Euros = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
"""Counted to the micro-euro."""


class LimitFigures(BaseModel):
    """What may be used at most; None sets no bound, 0 lets nothing through. Whole numbers but for euros."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent_requests: Count | None = None
    eur_per_day: Euros | None = None
    eur_per_month: Euros | None = None


class LimitsRecord(Record, LimitFigures):
    """`project` and `key` are None for the levels above."""

    tenant: str
    project: str | None
    key: str | None


class PriceRecord(Record):
    """Euros a million tokens, from `valid_from` until the next version is."""

    model: str
    number: int
    valid_from: datetime
    input: float
    output: float
    cached: float


def limits_record(row: LimitSettingRow) -> LimitsRecord:
    return LimitsRecord(
        cell=row.cell,
        created_at=row.created_at,
        tenant=row.tenant,
        project=row.project or None,
        key=row.key or None,
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        concurrent_requests=row.concurrent_requests,
        eur_per_day=_euros(row.micro_eur_per_day),
        eur_per_month=_euros(row.micro_eur_per_month),
    )


def no_limits(owner: Changed, tenant: str, project: str, key: str) -> LimitsRecord:
    """Of a tenant, project or key, `owner`, for which nothing was ever set."""
    return LimitsRecord(
        cell=owner.cell, created_at=owner.created_at, tenant=tenant, project=project or None, key=key or None
    )


def limits_of(row: LimitSettingRow) -> Limits:
    """As they are counted."""
    return Limits.of(
        rpm=row.requests_per_minute,
        tpm=row.tokens_per_minute,
        concurrent=row.concurrent_requests,
        eur_per_day=_euros(row.micro_eur_per_day),
        eur_per_month=_euros(row.micro_eur_per_month),
    )


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
    )


def price_of(row: PriceRow) -> Price:
    """As it is counted."""
    return Price(row.model, row.number, row.valid_from.timestamp(), row.input, row.output, row.cached)


def _euros(micro: int | None) -> float | None:
    return None if micro is None else micro / MICRO
