"""Names that projects give to models, and adapters of projects."""

from datetime import datetime

from sqlalchemy import JSON, ForeignKeyConstraint
from sqlmodel import Field

from gateway.database.tables.control import Changed, Row, UtcDateTime


class ModelNameRow(Changed, Row, table=True):
    """What a name stands for in one project. As `gateway.records.model_names.ModelNameRecord`."""

    __tablename__ = "model_name"
    __table_args__ = (ForeignKeyConstraint(["tenant", "project"], ["project.tenant", "project.id"]),)

    tenant: str = Field(primary_key=True, max_length=31)
    project: str = Field(primary_key=True, max_length=31)
    name: str = Field(primary_key=True, max_length=128)
    targets: list[str] = Field(sa_type=JSON)
    defaults: dict[str, float] = Field(sa_type=JSON)
    other_vectors: bool
    deprecated_at: datetime | None = Field(None, sa_type=UtcDateTime)
    sunset_at: datetime | None = Field(None, sa_type=UtcDateTime)
    replacement: str | None = Field(None, max_length=128)
    deleted_at: datetime | None = Field(None, sa_type=UtcDateTime)


class AdapterRow(Changed, Row, table=True):
    """An adapter of one project. As `gateway.records.adapters.AdapterRecord`."""

    __tablename__ = "adapter"
    __table_args__ = (ForeignKeyConstraint(["tenant", "project"], ["project.tenant", "project.id"]),)

    tenant: str = Field(primary_key=True, max_length=31)
    project: str = Field(primary_key=True, max_length=31)
    name: str = Field(primary_key=True, max_length=64)
    model: str = Field(max_length=128)
    path: str = Field(max_length=1024)
    sha256: str = Field(max_length=64)
    deleted_at: datetime | None = Field(None, sa_type=UtcDateTime)
