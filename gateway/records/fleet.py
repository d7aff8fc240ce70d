"""Immutable records of deployments and replicas, returned by the control store."""

from datetime import UTC, datetime

from pydantic import Field

from gateway.database.tables.fleet import DeploymentRow, ReplicaRow
from gateway.records.control import Record
from gateway.records.prices import MICRO
from regions.fleet.deployment import Asked, Deployment, Kind, Replica, ReplicaState, Scale
from regions.fleet.fleet import Role


class DeploymentRecord(Record, Scale):
    """Desired state of a tenant's model. `eur_per_hour`: price of one replica. `failures`: failed starts since the last
    successful one; `failure` and `failed_at` describe the latest of them."""

    undigested = frozenset({"failures", "failure", "failed_at", "asked"})

    tenant: str
    id: str
    model: str
    weights: str
    regions: tuple[str, ...]
    gpu: str
    wait_s: int
    eur_per_hour: float
    weights_sha256: str | None = Field(None, description="what its replicas have to run")
    kind: Kind = "mixed"
    prefill: int = Field(0, description="replicas that compute prompts for those that answer")
    draining: bool
    asked: Asked | None = Field(None, description="what a person wants of it now, until it is done")
    failures: int = 0
    failure: str | None = None
    failed_at: datetime | None = None
    deleted_at: datetime | None


class ReplicaRecord(Record):
    """A replica, running or ended."""

    undigested = frozenset({"metered_until"})

    id: str
    tenant: str
    deployment: str
    region: str
    state: ReplicaState
    holder: str
    gpu: str
    model: str
    metered_until: datetime
    ended_at: datetime | None
    role: Role = "mixed"
    reason: str | None = Field(None, description="why it is in its state, where that was not asked for")


def deployment_record(row: DeploymentRow) -> DeploymentRecord:
    fields = {name: getattr(row, name) for name in DeploymentRecord.model_fields if name != "eur_per_hour"}
    return DeploymentRecord.model_validate(fields | {"eur_per_hour": row.micro_eur_per_hour / MICRO})


def deployment_of(row: DeploymentRow) -> Deployment:
    """Return the deployment in the form used by the fleet's reconciliation."""
    return Deployment.model_validate({name: getattr(row, name) for name in Deployment.model_fields})


def replica_record(row: ReplicaRow) -> ReplicaRecord:
    fields = {name: getattr(row, name) for name in ReplicaRecord.model_fields if hasattr(row, name)}
    return ReplicaRecord.model_validate(
        fields
        | {
            "created_at": _moment(row.started_at),
            "metered_until": _moment(row.metered_until),
            "ended_at": None if row.ended_at is None else _moment(row.ended_at),
        }
    )


def replica_of(row: ReplicaRow) -> Replica:
    return Replica.model_validate({name: getattr(row, name) for name in Replica.model_fields})


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
