"""What the reconciler reads and writes. Every change shows the leader's term, and is on record before it is made."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import Session

from gateway.database.database import Database
from gateway.database.epoch import bump_epoch, read_epoch
from gateway.database.leases import Lease, LeaseLost
from gateway.database.tables.control import BackendRow, TenantRow
from gateway.database.tables.fleet import DeploymentRow, ReplicaRow
from gateway.records.fleet import deployment_record, replica_of, replica_record
from gateway.store.change import Change, OnEvent
from gateway.store.fleet.demand import read_demand
from gateway.store.fleet.uptime import meter
from gateway.store.lookup import backend_record
from regions.fleet.deployment import MAX_FAILURE, NEXT, Deployment, Replica, ReplicaState, replica_name
from regions.fleet.fleet import Backend, Role
from regions.fleet.ports import FleetView, NotLeading, OtherWeights

LEASE_S = 10.0
ACTOR = "system"

_DEPLOYMENT: Any = DeploymentRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_REPLICA: Any = ReplicaRow.__table__  # type: ignore[attr-defined]
_BACKEND: Any = BackendRow.__table__  # type: ignore[attr-defined]
_TENANT: Any = TenantRow.__table__  # type: ignore[attr-defined]


class FleetStore:
    """A `regions.fleet.ports.Store` of one cell for the process `node`. All raise DatabaseUnavailable and
    NotLeading."""

    def __init__(
        self,
        database: Database,
        *,
        cell: str,
        node: str,
        on_event: OnEvent,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        lease_s: float = LEASE_S,
    ) -> None:
        self._database = database
        self._cell = cell
        self._node = node
        self._on_event = on_event
        self._now = now
        self._lease = Lease(database, f"fleet:{cell}", node, ttl_s=lease_s)

    def lead(self) -> int | None:
        """The term of our lease, None where another leads or there is nothing to lead."""
        with self._database.read() as session:
            connection = session.connection()
            wanted = select(_DEPLOYMENT.c.id).where(_DEPLOYMENT.c.cell == self._cell).limit(1)
            if connection.execute(wanted).first() is None:
                return None
        return self._lease.take()

    def resign(self) -> None:
        self._lease.release()

    def view(self) -> FleetView:
        """Deployments that live and whose tenants do; replicas that have not ended."""
        with self._database.read() as session:
            connection = session.connection()
            columns = [_DEPLOYMENT.c[name] for name in Deployment.model_fields]
            wanted = (
                select(*columns)
                .join(_TENANT, _TENANT.c.id == _DEPLOYMENT.c.tenant)
                .where(
                    _DEPLOYMENT.c.cell == self._cell, _DEPLOYMENT.c.deleted_at.is_(None), _TENANT.c.revoked_at.is_(None)
                )
            )
            deployments = [Deployment.model_validate(dict(row)) for row in connection.execute(wanted).mappings()]
            # Whether it is offered comes in the same statement: what is between two of them is no state of it.
            registered = _BACKEND.c.id.is_not(None) & _BACKEND.c.revoked_at.is_(None)
            running = (
                select(*(_REPLICA.c[name] for name in Replica.model_fields), registered.label("offered"))
                .outerjoin(_BACKEND, _BACKEND.c.id == _REPLICA.c.id)
                .where(_REPLICA.c.cell == self._cell, _REPLICA.c.ended_at.is_(None))
            )
            rows = connection.execute(running).mappings().all()
            replicas = [Replica.model_validate({name: row[name] for name in Replica.model_fields}) for row in rows]
            offered = frozenset(row["id"] for row in rows if row["offered"])
            demand = read_demand(connection, self._cell)
        return FleetView({each.key: each for each in deployments}, tuple(replicas), demand, offered)

    def begin(self, term: int, deployment: Deployment, region: str, role: Role = "mixed") -> Replica:
        """A new replica, starting; from now on it is on the bill."""
        with self._turn(term) as (session, at):
            row = ReplicaRow(
                id=replica_name(deployment.id),
                cell=self._cell,
                tenant=deployment.tenant,
                deployment=deployment.id,
                region=region,
                state=ReplicaState.STARTING,
                holder=self._node,
                gpu=deployment.gpu,
                model=deployment.model,
                micro_eur_per_hour=deployment.micro_eur_per_hour,
                started_at=at,
                metered_until=at,
                ended_at=None,
                reason=None,
                role=role,
            )
            session.add(row)
            self._report(self._change(session, read_epoch(session, self._cell)), row, None)
            return replica_of(row)

    def ready(self, term: int, replica: Replica, backend: Backend, weights: str | None = None) -> None:
        """Every gateway may call it from now on. `weights`: SHA-256 that it computed; the first that a replica says
        pins its deployment. Raises OtherWeights."""
        with self._turn(term) as (session, _):
            row = self._moved(session, replica, ReplicaState.READY)
            change = self._change(session, bump_epoch(session, self._cell))
            registered = session.get(BackendRow, row.id)
            before = None if registered is None else backend_record(registered)
            if registered is None:
                registered = BackendRow(
                    **backend.model_dump(include={"id", "tenant", "region", "url", "uri", "role"}),
                    models=list(backend.models),
                    single_tenant="attested",
                    **change.stamp,
                )
                session.add(registered)
            registered.url, registered.revoked_at, registered.epoch = backend.url, None, change.epoch
            registered.transfer = backend.transfer
            deployment = session.get(DeploymentRow, replica.key)
            if deployment is not None:
                _pin(deployment, replica, weights, change)
                registered.weights_sha256 = deployment.weights_sha256
                if deployment.failures:
                    deployment.failures, deployment.failure, deployment.failed_at = 0, None, None
                    deployment.epoch = change.epoch
            change.report("backend.registered", row.tenant, row.id, before, backend_record(registered))
            self._report(change, row, replica)

    def asleep(self, term: int, replica: Replica, detail: Mapping[str, str], reason: str = "scaled_down") -> None:
        """It sleeps, out of service since it was to; `detail` is recorded."""
        with self._turn(term) as (session, _):
            row = self._moved(session, replica, ReplicaState.ASLEEP, reason)
            self._report(self._revoked(session, row), row, replica, detail)

    def withdraw(self, term: int, replica: Replica) -> None:
        """No gateway may call it from now on, though it is ready."""
        with self._turn(term) as (session, _):
            row = session.get(ReplicaRow, replica.id)
            if row is not None:
                self._revoked(session, row)

    def done_as_asked(self, term: int, deployment: Deployment) -> None:
        """It was put to sleep and a call woke it, or it was woken: its figures alone count again."""
        with self._turn(term) as (session, _):
            row = session.get(DeploymentRow, deployment.key)
            if row is not None and row.asked == deployment.asked:  # else a person wants something else by now
                row.asked = None

    def drain(self, term: int, replica: Replica, reason: str) -> None:
        """No gateway may call it from now on; running calls continue."""
        with self._turn(term) as (session, _):
            row = self._moved(session, replica, ReplicaState.DRAINING, reason)
            self._report(self._revoked(session, row), row, replica)

    def end(
        self,
        term: int,
        replica: Replica,
        state: ReplicaState,
        reason: str,
        *,
        seen: bool,
        detail: Mapping[str, str] = MappingProxyType({}),
        within_s: float | None = None,
        failure: str | None = None,
    ) -> None:
        """It runs no more. `seen`: it ran until now, and is billed so. `detail` is recorded: how it was released.
        `failure`: why it did not start, for those who look at the deployment and those who wait for it."""
        with self._turn(term) as (session, at):
            if seen:
                meter(session.connection(), self._cell, {replica.id: False}, at, within_s)
            row = self._moved(session, replica, state, reason)
            row.ended_at = at
            if failure is not None:
                self._failed(session, replica, failure)
            self._report(self._revoked(session, row), row, replica, detail)

    def meter(self, term: int, busy: Mapping[str, bool], within_s: float | None = None) -> None:
        """Bill these replicas up to now, of the last `within_s` seconds at most."""
        with self._turn(term) as (session, at):
            meter(session.connection(), self._cell, busy, at, within_s)

    @contextmanager
    def _turn(self, term: int) -> Iterator[tuple[Session, float]]:
        with self._database.write() as session:
            connection: Connection = session.connection()
            try:
                at = self._lease.check(connection, term)
            except LeaseLost as error:
                raise NotLeading(str(error)) from error
            yield session, at

    def _moved(self, session: Session, replica: Replica, to: ReplicaState, reason: str | None = None) -> ReplicaRow:
        row = session.get(ReplicaRow, replica.id)
        if row is None or to not in NEXT[ReplicaState(row.state)]:
            raise NotLeading(
                f"replica {replica.id} cannot become {to}: another has taken it further; it needs no action"
            )
        row.state, row.reason = to, reason
        return row

    def _failed(self, session: Session, replica: Replica, failure: str) -> None:
        deployment = session.get(DeploymentRow, replica.key)
        if deployment is None or deployment.deleted_at is not None:
            return
        deployment.failures += 1
        deployment.failure, deployment.failed_at = failure[:MAX_FAILURE], self._now()
        deployment.epoch = bump_epoch(session, self._cell)  # so that every gateway can inform its callers

    def _change(self, session: Session, epoch: int) -> Change:
        return Change(session, self._cell, ACTOR, self._now(), epoch, self._on_event, None)

    def _revoked(self, session: Session, row: ReplicaRow) -> Change:
        backend = session.get(BackendRow, row.id)
        if backend is None or backend.revoked_at is not None:
            return self._change(session, read_epoch(session, self._cell))
        change = self._change(session, bump_epoch(session, self._cell))
        before = backend_record(backend)
        backend.revoked_at, backend.epoch = change.at, change.epoch
        change.report("backend.revoked", row.tenant, row.id, before, backend_record(backend))
        return change

    @staticmethod
    def _report(
        change: Change, row: ReplicaRow, before: Replica | None, detail: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        details = {"deployment": row.deployment, "region": row.region, "gpu": row.gpu, **detail}
        if row.role != "mixed":
            details["role"] = row.role
        if row.reason:
            details["reason"] = row.reason
        if before is not None:
            details["was"] = before.state
        change.report(f"replica.{row.state}", row.tenant, row.id, None, replica_record(row), detail=details)


def _pin(deployment: DeploymentRow, replica: Replica, weights: str | None, change: Change) -> None:
    """Hold the replica to its deployment's digest, which the first that says one sets. Raises OtherWeights."""
    pinned = deployment.weights_sha256
    if pinned is None and weights is not None:
        before = deployment_record(deployment)
        deployment.weights_sha256, deployment.epoch = weights, change.epoch
        after = deployment_record(deployment)
        detail = {"weights_sha256": weights, "replica": replica.id}
        change.report("deployment.pinned", deployment.tenant, deployment.id, before, after, detail=detail)
    elif weights != pinned:
        said = f"runs the weights {weights}" if weights else "does not say which weights it runs"
        raise OtherWeights(
            f"replica {replica.id} {said}, and deployment {deployment.id} of {deployment.tenant} is pinned to {pinned}"
            "; put those weights back, or accept others with `domicile deployment update --weights-sha256`"
        )
