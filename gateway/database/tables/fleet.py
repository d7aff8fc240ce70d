"""Rows of the fleet: deployments (configuration), and replicas, their time, demand and leases, which have no epoch."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Double, Index
from sqlmodel import Field

from gateway.database.tables.control import Changed, Row, UtcDateTime
from regions.fleet.deployment import MAX_FAILURE


class DeploymentRow(Changed, Row, table=True):
    """What shall run. As `regions.fleet.deployment.Deployment`."""

    __tablename__ = "deployment"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    id: str = Field(primary_key=True, max_length=31)
    model: str
    weights: str
    regions: list[str] = Field(sa_type=JSON)
    gpu: str = Field(max_length=32)
    min_replicas: int
    max_replicas: int
    idle_s: int
    ttft_ms: int
    calls_each: int
    asleep_s: int
    wait_s: int
    micro_eur_per_hour: int = Field(sa_type=BigInteger)
    weights_sha256: str | None = Field(None, max_length=64)
    kind: str = Field("mixed", max_length=16, sa_column_kwargs={"server_default": "mixed"})
    prefill: int = Field(0, sa_column_kwargs={"server_default": "0"})
    draining: bool
    asked: str | None = Field(None, max_length=16)
    failures: int = 0
    failure: str | None = Field(None, max_length=MAX_FAILURE)
    failed_at: datetime | None = Field(None, sa_type=UtcDateTime)
    deleted_at: datetime | None = Field(None, sa_type=UtcDateTime)


class ReplicaRow(Row, table=True):
    """One replica, also after its end. `holder`: the node whose launcher started it."""

    __tablename__ = "replica"
    __table_args__ = (Index("ix_replica_cell_ended_at", "cell", "ended_at"),)

    id: str = Field(primary_key=True, max_length=31)
    cell: str = Field(max_length=31)
    tenant: str = Field(max_length=31)
    deployment: str = Field(max_length=31)
    region: str = Field(max_length=31)
    state: str = Field(max_length=16)
    holder: str = Field(max_length=128)
    gpu: str = Field(max_length=32)
    model: str
    micro_eur_per_hour: int = Field(sa_type=BigInteger)
    started_at: float = Field(sa_type=Double)
    metered_until: float = Field(sa_type=Double)
    ended_at: float | None = Field(None, sa_type=Double)
    reason: str | None = Field(None, max_length=64)
    role: str = Field("mixed", max_length=16, sa_column_kwargs={"server_default": "mixed"})


class UptimeRow(Row, table=True):
    """Milliseconds that a replica was up, and of them at work, on one day (UTC), and the price of its hour."""

    __tablename__ = "uptime"
    __table_args__ = (Index("ix_uptime_day_tenant", "day", "tenant"),)

    replica: str = Field(primary_key=True, max_length=31)
    day: str = Field(primary_key=True, max_length=10)
    tenant: str = Field(max_length=31)
    deployment: str = Field(max_length=31)
    model: str
    region: str = Field(max_length=31)
    gpu: str = Field(max_length=32)
    micro_eur_per_hour: int = Field(sa_type=BigInteger)
    up_ms: int = Field(sa_type=BigInteger)
    busy_ms: int = Field(sa_type=BigInteger)


class DemandRow(Row, table=True):
    """What one gateway has to do for a tenant's model, as of `at`; `regions`: where waiting calls may be answered."""

    __tablename__ = "demand"

    tenant: str = Field(primary_key=True, max_length=31)
    model: str = Field(primary_key=True, max_length=256)
    node: str = Field(primary_key=True, max_length=128)
    cell: str = Field(max_length=31)
    at: float = Field(sa_type=Double)
    in_flight: int
    parked: int
    ttft_ms: float | None = Field(None, sa_type=Double)
    regions: list[str] = Field(sa_type=JSON)


class LeaseRow(Row, table=True):
    """Who may do what only one may do, until when. `term` grows with each new holder."""

    __tablename__ = "lease"

    name: str = Field(primary_key=True, max_length=64)
    holder: str = Field(max_length=128)
    term: int = Field(sa_type=BigInteger)
    until: float = Field(sa_type=Double)
