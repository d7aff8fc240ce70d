"""What administrators do to deployments: what shall run. What does run is the reconciler's business."""

import re

from sqlmodel import Session, col, select

from gateway.database.errors import Duplicate, Invalid, InvalidValue, NotFound, NotReady
from gateway.database.tables.fleet import DeploymentRow
from gateway.records.fleet import DeploymentRecord, deployment_record
from gateway.store import lookup
from gateway.store.change import Administration
from regions.fleet.deployment import Asked, Deployment, Scale, check_kind


class DeploymentControl(Administration):
    def create_deployment(self, wanted: Deployment) -> DeploymentRecord:
        """One living deployment of a tenant serves a model. Raises Invalid, Duplicate, NotFound."""
        _check(wanted)
        try:
            check_kind(wanted.kind, wanted.prefill)
        except ValueError as error:
            raise InvalidValue(str(error)) from None
        with self._change() as change:
            lookup.living_tenant(change.session, wanted.tenant)
            serving = _living(change.session, wanted.tenant, wanted.model)
            if serving is not None:
                raise Duplicate(
                    f"deployment {serving.id!r} of tenant {wanted.tenant!r} serves {wanted.model!r} already"
                    "; change that one, or delete it first"
                )
            row = DeploymentRow(**wanted.model_dump() | {"regions": list(wanted.regions)}, **change.stamp)
            change.insert(row, f"deployment {wanted.id!r} of tenant {wanted.tenant!r}")
            record = deployment_record(row)
            change.report("deployment.created", wanted.tenant, wanted.id, None, record)
        return record

    def scale_deployment(self, tenant: str, deployment: str, scale: Scale) -> DeploymentRecord:
        """Judge it by these figures from now on; one that was drained works again. Raises Invalid, NotFound."""
        _check(scale)
        with self._change() as change:
            lookup.living_tenant(change.session, tenant)
            row = living(change.session, tenant, deployment)
            before = deployment_record(row)
            for name in Scale.model_fields:
                setattr(row, name, getattr(scale, name))
            row.draining, row.failures, row.epoch = False, 0, change.epoch
            record = deployment_record(row)
            change.report("deployment.scaled", tenant, deployment, before, record)
        return record

    def pin_weights(self, tenant: str, deployment: str, weights_sha256: str) -> DeploymentRecord:
        """Replicas that start from now on have to run these weights; those that run keep running. Raises InvalidValue,
        NotFound."""
        if not re.fullmatch(r"[0-9a-f]{64}", weights_sha256):
            raise InvalidValue("weights are named by their SHA-256, 64 hex digits; take it from the record or the log")
        with self._change() as change:
            row = living(change.session, tenant, deployment)
            before = deployment_record(row)
            if row.weights_sha256 == weights_sha256:
                return before
            row.weights_sha256, row.failures, row.epoch = weights_sha256, 0, change.epoch
            record = deployment_record(row)
            detail = {"weights_sha256": weights_sha256}
            change.report("deployment.pinned", tenant, deployment, before, record, detail=detail)
        return record

    def drain_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        """Running answers end, then its replicas; none is started again until it is scaled. Raises NotFound."""
        with self._change() as change:
            row = living(change.session, tenant, deployment)
            before = deployment_record(row)
            if row.draining:
                return before
            row.draining, row.asked, row.epoch = True, None, change.epoch
            record = deployment_record(row)
            change.report("deployment.drained", tenant, deployment, before, record)
        return record

    def put_deployment_to_sleep(self, tenant: str, deployment: str) -> DeploymentRecord:
        """Running answers end, then its replicas sleep until a call waits or it is woken. Raises Invalid, NotFound,
        NotReady for one that was drained."""
        return self._ask(tenant, deployment, "asleep", "deployment.put_to_sleep")

    def wake_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        """A replica comes up without a call, and goes as its figures say. Raises Invalid, NotFound,
        NotReady for one that was drained."""
        return self._ask(tenant, deployment, "awake", "deployment.woken")

    def _ask(self, tenant: str, deployment: str, asked: Asked, action: str) -> DeploymentRecord:
        with self._change() as change:
            lookup.living_tenant(change.session, tenant)
            row = living(change.session, tenant, deployment)
            if row.draining:
                raise NotReady(f"deployment {deployment!r} was drained, so none of it runs; scale it first")
            before = deployment_record(row)
            if row.asked == asked:
                return before
            row.asked, row.epoch = asked, change.epoch
            record = deployment_record(row)
            change.report(action, tenant, deployment, before, record, detail={"asked": asked})
        return record

    def delete_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        """Drain and delete permanently; costs stay on record. Deleting twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = find(change.session, tenant, deployment)
            before = deployment_record(row)
            if row.deleted_at is not None:
                return before
            row.deleted_at, row.epoch = change.at, change.epoch
            record = deployment_record(row)
            change.report("deployment.deleted", tenant, deployment, before, record)
        return record


def find(session: Session, tenant: str, deployment: str) -> DeploymentRow:
    """Raises NotFound, also for one of another tenant."""
    row = session.get(DeploymentRow, (tenant, deployment))
    if row is None:
        raise NotFound(
            f"tenant {tenant!r} has no deployment {deployment!r}; `domicile deployment list` shows those there are"
        )
    return row


def living(session: Session, tenant: str, deployment: str) -> DeploymentRow:
    """Raises NotFound, and Invalid if it was deleted."""
    row = find(session, tenant, deployment)
    if row.deleted_at is not None:
        raise Invalid(f"deployment {deployment!r} was deleted on {row.deleted_at:%Y-%m-%d}; create a new one")
    return row


def _living(session: Session, tenant: str, model: str) -> DeploymentRow | None:
    return session.exec(
        select(DeploymentRow).where(
            DeploymentRow.tenant == tenant, DeploymentRow.model == model, col(DeploymentRow.deleted_at).is_(None)
        )
    ).first()


def _check(scale: Scale) -> None:
    if scale.min_replicas > scale.max_replicas:
        raise InvalidValue(
            f"{scale.min_replicas} replicas at least and {scale.max_replicas} at most cannot both hold"
            "; lower the first or raise the second"
        )
