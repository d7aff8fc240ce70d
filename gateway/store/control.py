"""What administrators do to tenants, projects, policies and backends; keys and people come from modules of their own.

Each operation is one transaction: it changes its rows, bumps the configuration epoch (which is how every gateway
learns of it), offers the change to `on_event`, and only then commits.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import get_args

from sqlmodel import Session, col, func, select

from gateway.identity.principal import PolicyInForce
from gateway.store import lookup
from gateway.store.change import CheckPolicy, OnEvent, checked_name, checked_text
from gateway.store.errors import Duplicate, Invalid
from gateway.store.key_control import KeyControl
from gateway.store.limit_control import LimitControl
from gateway.store.lookup import backend_record, policy_record, project_record, tenant_record
from gateway.store.records import (
    BackendRecord,
    LegalBasis,
    PolicyVersionRecord,
    ProjectRecord,
    RiskClass,
    TenantRecord,
)
from gateway.store.session_control import SessionControl
from gateway.store.tables import BackendRow, PolicyVersionRow, ProjectRow, TenantRow
from regions.identity import BackendIdentity

__all__ = ["CheckPolicy", "Control", "OnEvent"]


class Control(KeyControl, SessionControl, LimitControl):
    """Operations of one actor on one cell. All raise DatabaseUnavailable, and what `on_event` raises."""

    # Tenants

    def create_tenant(self, tenant: str, *, display_name: str | None = None) -> TenantRecord:
        """Raises Invalid for a name outside the grammar, Duplicate."""
        checked_name(tenant, "tenant")
        with self._change() as change:
            row = TenantRow(
                id=tenant, display_name=checked_text(display_name or tenant, "display name"), **change.stamp
            )
            change.insert(row, f"tenant {tenant!r}")
            record = tenant_record(row)
            change.tell("tenant.created", tenant, tenant, None, record)
        return record

    def revoke_tenant(self, tenant: str) -> TenantRecord:
        """All its keys stop working, and its backends leave the fleet. Revoking twice changes nothing."""
        with self._change() as change:
            row = lookup.tenant(change.session, tenant)
            return self._revoke(change, row, tenant_record, "tenant.revoked", tenant, tenant)

    # Projects

    def create_project(
        self,
        tenant: str,
        project: str,
        *,
        purpose: str,
        legal_basis: LegalBasis,
        data_classes: Sequence[str] = (),
        risk_class: RiskClass = "minimal",
        ai_system_id: str | None = None,
    ) -> ProjectRecord:
        """Raises Invalid, Duplicate, NotFound for an unknown or revoked tenant."""
        checked_name(project, "project")
        for name, value, allowed in (
            ("legal basis", legal_basis, get_args(LegalBasis)),
            ("risk class", risk_class, get_args(RiskClass)),
        ):
            if value not in allowed:
                raise Invalid(f"{name} {value!r} is not one of {', '.join(allowed)}")
        with self._change() as change:
            lookup.living_tenant(change.session, tenant)
            row = ProjectRow(
                tenant=tenant,
                id=project,
                purpose=checked_text(purpose, "purpose"),
                legal_basis=legal_basis,
                data_classes=[checked_text(c, "data class") for c in dict.fromkeys(data_classes)],
                risk_class=risk_class,
                ai_system_id=None if ai_system_id is None else checked_text(ai_system_id, "AI system id"),
                **change.stamp,
            )
            change.insert(row, f"project {project!r} of tenant {tenant!r}")
            record = project_record(row)
            change.tell("project.created", tenant, project, None, record, project=project)
        return record

    def revoke_project(self, tenant: str, project: str) -> ProjectRecord:
        """All its keys stop working. Revoking twice changes nothing."""
        with self._change() as change:
            row = lookup.project(change.session, tenant, project)
            return self._revoke(change, row, project_record, "project.revoked", tenant, project, project=project)

    # Policies

    def activate_policy(self, tenant: str, document: str, *, project: str | None = None) -> PolicyVersionRecord:
        """Make `document` the tenant's (or the project's) policy from now on; the version before it stays on file.

        It must compile, pass its own tests, and leave every active project document of the tenant compiling under it.
        Raises Invalid with the policy's own words, NotFound.
        """
        scope = lookup.TENANT_SCOPE if project is None else project
        with self._change() as change:
            session = change.session
            lookup.living_tenant(session, tenant)
            if project is not None:
                lookup.living_project(session, tenant, project)
            policy = self._check_policy(session, tenant, scope, document).policy
            before = lookup.active_policy(session, tenant, scope)
            before_record = policy_record(before) if before else None
            if before:
                before.active, before.epoch = False, change.epoch
                session.flush()  # before the insert: one active version at a time
            last = session.exec(
                select(func.max(PolicyVersionRow.number)).where(
                    PolicyVersionRow.tenant == tenant, PolicyVersionRow.project == scope
                )
            ).one()
            row = PolicyVersionRow(
                tenant=tenant,
                project=scope,
                number=(last or 0) + 1,
                sha256=sha256(document.encode()).hexdigest(),
                document=document,
                active=True,
                activated_by=self._actor,
                **change.stamp,
            )
            change.insert(row, f"version {row.number}")
            record = policy_record(row)
            detail = {
                "number": str(row.number),
                "sha256": row.sha256,
                "policy_id": policy.policy_id,
                "policy_version": policy.version,
                "policy_hash": policy.hash,
            }
            target = scope or tenant
            change.tell("policy.activated", tenant, target, before_record, record, project=project, detail=detail)
        return record

    def _check_policy(self, session: Session, tenant: str, scope: str, document: str) -> PolicyInForce:
        if scope:
            own = lookup.active_policy(session, tenant, lookup.TENANT_SCOPE)
            if own is None:
                raise Invalid(f"tenant {tenant!r} has no active policy that project {scope!r} could tighten")
            return self._checked(f"the policy of project {scope!r}", tenant, own.document, document)
        in_force = self._checked(f"the policy of tenant {tenant!r}", tenant, document)
        below = select(PolicyVersionRow).where(
            PolicyVersionRow.tenant == tenant,
            PolicyVersionRow.project != lookup.TENANT_SCOPE,
            col(PolicyVersionRow.active).is_(True),
        )
        for row in session.exec(below):
            self._checked(f"project {row.project!r} under the new policy", tenant, document, row.document)
        return in_force

    def _checked(self, what: str, tenant: str, document: str, project_document: str | None = None) -> PolicyInForce:
        try:
            return self._check(tenant, document, project_document)
        except Exception as error:  # whatever it is, a document that does not compile must not become active
            raise Invalid(f"{what}: {error}") from error

    # Backends

    def register_backend(self, backend: BackendIdentity, *, url: str, models: Sequence[str]) -> BackendRecord:
        """Add the replica, or move one of the same identity to a new `url`. Raises Invalid, Duplicate, NotFound."""
        if backend.cell != self._cell:
            raise Invalid(f"{backend.uri} is not of cell {self._cell!r}")
        if not url.startswith(("https://", "http://127.0.0.1:")):
            raise Invalid(f"{url!r} is neither https nor on this machine")
        if not models:
            raise Invalid("a backend must serve a model")
        with self._change() as change:
            lookup.living_tenant(change.session, backend.tenant)
            row = change.session.get(BackendRow, backend.backend)
            before = backend_record(row) if row else None
            if row is None:
                row = BackendRow(
                    id=backend.backend,
                    tenant=backend.tenant,
                    region=backend.region,
                    uri=backend.uri,
                    url=url,
                    models=list(models),
                    **change.stamp,
                )
                change.session.add(row)
            elif row.uri != backend.uri:
                raise Duplicate(f"backend {backend.backend!r} exists already, as another")
            else:
                row.url, row.models, row.revoked_at, row.epoch = url, list(models), None, change.epoch
            change.session.flush()
            record = backend_record(row)
            change.tell("backend.registered", backend.tenant, backend.backend, before, record)
        return record

    def revoke_backend(self, tenant: str, backend: str) -> BackendRecord:
        """It gets no more requests. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.backend(change.session, tenant, backend)
            return self._revoke(change, row, backend_record, "backend.revoked", tenant, backend)
