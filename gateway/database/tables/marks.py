"""Keys by which answers are watermarked."""

from datetime import datetime

from sqlmodel import Field

from gateway.database.tables.control import Row, UtcDateTime


class MarkKeyRow(Row, table=True):
    """One key of a tenant, for a calendar month (UTC), wrapped under the tenant's key. It is kept for detection."""

    __tablename__ = "mark_key"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    period: str = Field(primary_key=True, max_length=7)
    wrapped: bytes
    created_at: datetime = Field(sa_type=UtcDateTime)


class MarkUseRow(Row, table=True):
    """A model whose answers were marked in a period, and by which scheme."""

    __tablename__ = "mark_use"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    period: str = Field(primary_key=True, max_length=7)
    model: str = Field(primary_key=True, max_length=256)
    scheme: str = Field(primary_key=True, max_length=32)
    first_at: datetime = Field(sa_type=UtcDateTime)
