"""Rows about AI systems and projects that a person stopped (AI Act 14(4)(e), 26(5)).

One row each, kept when the system is let go on.
"""

from datetime import datetime

from sqlmodel import Field

from gateway.database.tables.control import Changed, Row, UtcDateTime


class StopRow(Changed, Row, table=True):
    """Who appears as the record names actors."""

    __tablename__ = "oversight_stop"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    project: str = Field(primary_key=True, max_length=31)
    ai_system_id: str = Field(primary_key=True, max_length=200)
    reason: str = Field(max_length=64)
    stopped_at: datetime = Field(sa_type=UtcDateTime)
    stopped_by: str
    resumed_at: datetime | None = Field(None, sa_type=UtcDateTime)
    resumed_by: str | None = None
