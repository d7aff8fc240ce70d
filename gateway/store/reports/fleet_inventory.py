"""What deployments and replicas there are, as frozen records. All raise DatabaseUnavailable, NotFound."""

from sqlmodel import col, select

from gateway.database.database import Database
from gateway.database.tables.fleet import DeploymentRow, ReplicaRow
from gateway.records.fleet import DeploymentRecord, ReplicaRecord, deployment_record, replica_record
from gateway.store import lookup
from gateway.store.control import deployments as deployment_control
from gateway.store.pagination import Page


def deployments_in(
    database: Database, tenant: str, after: str | None = None, limit: int = 10_000
) -> Page[DeploymentRecord]:
    """By name, those deleted too."""
    with database.read() as session:
        lookup.tenant(session, tenant)
        query = select(DeploymentRow).where(DeploymentRow.tenant == tenant).order_by(DeploymentRow.id)
        if after is not None:
            query = query.where(DeploymentRow.id > after)
        rows = session.exec(query.limit(limit + 1)).all()
        items = tuple(deployment_record(row) for row in rows[:limit])
    return Page(items=items, next=items[-1].id if len(rows) > limit else None)


def deployment_at(database: Database, tenant: str, deployment: str) -> DeploymentRecord:
    with database.read() as session:
        lookup.tenant(session, tenant)
        return deployment_record(deployment_control.find(session, tenant, deployment))


def replicas_of(
    database: Database,
    tenant: str,
    deployment: str,
    after: str | None = None,
    limit: int = 10_000,
    *,
    ended: bool = False,
) -> Page[ReplicaRecord]:
    """By id; those that have ended only where that is asked for."""
    with database.read() as session:
        deployment_control.find(session, tenant, deployment)
        query = select(ReplicaRow).where(ReplicaRow.tenant == tenant, ReplicaRow.deployment == deployment)
        if not ended:
            query = query.where(col(ReplicaRow.ended_at).is_(None))
        if after is not None:
            query = query.where(ReplicaRow.id > after)
        rows = session.exec(query.order_by(ReplicaRow.id).limit(limit + 1)).all()
        items = tuple(replica_record(row) for row in rows[:limit])
    return Page(items=items, next=items[-1].id if len(rows) > limit else None)


def launched(database: Database, tenant: str) -> dict[str, str]:
    """By backend id, the deployment of each replica that a launcher ever started for the tenant."""
    with database.read() as session:
        lookup.tenant(session, tenant)
        rows = session.exec(select(ReplicaRow.id, ReplicaRow.deployment).where(ReplicaRow.tenant == tenant))
        return {replica: deployment for replica, deployment in rows}
