"""Keys by which answers are watermarked, and salts of their fingerprints."""

from datetime import datetime

from sqlmodel import Field

from gateway.database.tables.control import Row, UtcDateTime


class MonthlySecretRow(Row):
    """A secret of a tenant for a calendar month (UTC), such as ``2026-12``, wrapped under the tenant's key."""

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    period: str = Field(primary_key=True, max_length=7)
    wrapped: bytes
    created_at: datetime = Field(sa_type=UtcDateTime)


class MarkKeyRow(MonthlySecretRow, table=True):
    """A key by which answers are watermarked. It is kept for detection."""

    __tablename__ = "mark_key"


class AnswerSaltRow(MonthlySecretRow, table=True):
    """The salt of the fingerprints of answers. It is kept for searches."""

    __tablename__ = "answer_salt"


class MarkUseRow(Row, table=True):
    """A model whose answers were marked in a period, and by which scheme."""

    __tablename__ = "mark_use"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    period: str = Field(primary_key=True, max_length=7)
    model: str = Field(primary_key=True, max_length=256)
    scheme: str = Field(primary_key=True, max_length=32)
    first_at: datetime = Field(sa_type=UtcDateTime)


class TextTestRow(Row, table=True):
    """A text that was tested within the last hour. number: free for the next one when the hour is over."""

    __tablename__ = "text_test"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    kind: str = Field(primary_key=True, max_length=16)
    number: int = Field(primary_key=True)
    at: datetime = Field(sa_type=UtcDateTime)
