"""Rows about other cells: which there are, who may be served there, and what was taken over from them."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field

from gateway.database.tables.control import Changed, Row, UtcDateTime


class PeerRow(Changed, Row, table=True):
    """Another cell that may ask for bundles. `verifier_key`: of its record, as text."""

    __tablename__ = "cell_peer"

    id: str = Field(primary_key=True, max_length=31)
    verifier_key: str
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class TenantCellRow(Changed, Row, table=True):
    """That a tenant of this cell is also served in `peer`, until it is revoked."""

    __tablename__ = "tenant_cell"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    peer: str = Field(primary_key=True, max_length=31, foreign_key="cell_peer.id")
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class TenantHomeRow(Row, table=True):
    """A tenant that is administered in another cell, `home`."""

    __tablename__ = "tenant_home"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    home: str = Field(max_length=31)


class BundleRow(Row, table=True):
    """The last bundle that was taken over from each cell."""

    __tablename__ = "bundle"

    home: str = Field(primary_key=True, max_length=31)
    epoch: int = Field(sa_type=BigInteger)
    sha256: str = Field(max_length=64)
    applied_at: datetime = Field(sa_type=UtcDateTime)
