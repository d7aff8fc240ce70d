"""What administrators do to tenants, projects, keys, policies and backends.

Each operation is one transaction: it changes its rows, bumps the configuration epoch (which is how every gateway
learns of it), offers the change to `on_event`, and only then commits. If `on_event` raises, nothing has happened. So
the record may hold a change whose commit then failed, but never lacks one that was made.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeVar, get_args

from sqlalchemy import exc, text
from sqlmodel import Session, col, func, select

from gateway.identity.keys import ApiKey, KeyHasher, generate_key
from gateway.identity.principal import PolicyInForce
from gateway.store import lookup
from gateway.store.database import Database
from gateway.store.errors import Duplicate, Invalid
from gateway.store.lookup import backend_record, key_record, policy_record, project_record, tenant_record
from gateway.store.records import (
    UNBOUNDED,
    AdminEvent,
    BackendRecord,
    KeyRecord,
    LegalBasis,
    PolicyVersionRecord,
    ProjectRecord,
    Record,
    RiskClass,
    Scopes,
    TenantRecord,
)
from gateway.store.tables import (
    ApiKeyRow,
    BackendRow,
    PolicyVersionRow,
    ProjectRow,
    Row,
    TenantRow,
)
from regions.errors import IdentityError
from regions.identity import BackendIdentity, check_name

OnEvent = Callable[[AdminEvent], None]
CheckPolicy = Callable[[str, str, str | None], PolicyInForce]
"""(tenant, its document, a project's or None) -> what would be in force; raises what is wrong, failed tests too."""

RevocableRow = TypeVar("RevocableRow", TenantRow, ProjectRow, ApiKeyRow, BackendRow)
RecordKind = TypeVar("RecordKind", bound=Record)


class Change:
    """A running transaction: its session, instant and epoch."""

    def __init__(self, session: Session, cell: str, actor: str, at: datetime, epoch: int, on_event: OnEvent) -> None:
        self.session, self.cell, self.actor, self.at, self.epoch = session, cell, actor, at, epoch
        self._on_event = on_event

    @property
    def stamp(self) -> dict[str, Any]:
        return {"cell": self.cell, "created_at": self.at, "epoch": self.epoch}

    def insert(self, row: Row, what: str) -> None:
        self.session.add(row)
        try:
            self.session.flush()
        except exc.IntegrityError as error:
            raise Duplicate(f"{what} exists already") from error

    def tell(self, action: str, tenant: str, target: str, before: Record | None, after: Record, **more: Any) -> None:
        self.session.flush()
        self._on_event(
            AdminEvent.model_validate(
                {
                    "action": action,
                    "cell": self.cell,
                    "tenant": tenant,
                    "target": target,
                    "actor": self.actor,
                    "at": self.at,
                    "before": before and before.digest(),
                    "after": after.digest(),
                    "epoch": self.epoch,
                    **more,
                }
            )
        )


class Control:
    """Operations of one actor on one cell. All raise DatabaseUnavailable, and what `on_event` raises."""

    def __init__(
        self,
        database: Database,
        *,
        cell: str,
        hasher: KeyHasher,
        actor: str,
        check_policy: CheckPolicy,
        on_event: OnEvent = lambda event: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._cell = _name(cell, "cell")
        self._hasher = hasher
        self._actor = actor
        self._check = check_policy
        self._on_event = on_event
        self._now = now

    # Tenants

    def create_tenant(self, tenant: str, *, display_name: str | None = None) -> TenantRecord:
        """Raises Invalid for a name outside the grammar, Duplicate."""
        _name(tenant, "tenant")
        with self._change() as change:
            row = TenantRow(id=tenant, display_name=_text(display_name or tenant, "display name"), **change.stamp)
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
        _name(project, "project")
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
                purpose=_text(purpose, "purpose"),
                legal_basis=legal_basis,
                data_classes=[_text(c, "data class") for c in dict.fromkeys(data_classes)],
                risk_class=risk_class,
                ai_system_id=ai_system_id,
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

    # Keys

    def create_key(
        self,
        tenant: str,
        project: str,
        *,
        label: str = "",
        scopes: Scopes = UNBOUNDED,
        expires_at: datetime | None = None,
    ) -> tuple[KeyRecord, ApiKey]:
        """The record, and the key itself: its only appearance ever. Raises Invalid, NotFound."""
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= self._now()):
            raise Invalid("a key must expire in the future, at an instant with a zone")
        key = generate_key()
        with self._change() as change:
            lookup.living_project(change.session, tenant, project)
            row = ApiKeyRow(
                id=key.id,
                tenant=tenant,
                project=project,
                label=label,
                digest=self._hasher.digest(key),
                last_four=key.token[-4:],
                scopes=scopes.model_dump(mode="json", exclude_none=True),
                expires_at=expires_at,
                **change.stamp,
            )
            change.insert(row, f"key {key.id}")
            record = key_record(row)
            change.tell("key.created", tenant, key.id, None, record, project=project)
        return record, key

    def revoke_key(self, tenant: str, key_id: str) -> KeyRecord:
        """Every gateway refuses it within a second. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.key(change.session, tenant, key_id)
            return self._revoke(change, row, key_record, "key.revoked", tenant, key_id, project=row.project)

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

    @contextmanager
    def _change(self) -> Iterator[Change]:
        try:
            with self._database.write() as session:
                epoch = _bump_epoch(session, self._cell)
                yield Change(session, self._cell, self._actor, self._now(), epoch, self._on_event)
        except exc.IntegrityError as error:  # another administrator was faster
            raise Duplicate("someone else made it at the same moment") from error

    @staticmethod
    def _revoke(
        change: Change,
        row: RevocableRow,
        to_record: Callable[[RevocableRow], RecordKind],
        action: str,
        tenant: str,
        target: str,
        *,
        project: str | None = None,
    ) -> RecordKind:
        before = to_record(row)
        if row.revoked_at is not None:
            return before
        row.revoked_at, row.epoch = change.at, change.epoch
        after = to_record(row)
        change.tell(action, tenant, target, before, after, project=project)
        return after


# Understood by SQLite (from 3.35) and PostgreSQL alike.
_BUMP_EPOCH = text(
    "INSERT INTO config_epoch (cell, value) VALUES (:cell, 1) "
    "ON CONFLICT (cell) DO UPDATE SET value = config_epoch.value + 1 RETURNING value"
)


def _bump_epoch(session: Session, cell: str) -> int:
    """The next epoch. The row stays locked until the commit, so epochs are committed in order."""
    return int(session.connection().execute(_BUMP_EPOCH, {"cell": cell}).scalar_one())


def _name(name: str, what: str) -> str:
    try:
        return check_name(name, what)
    except IdentityError as error:
        raise Invalid(str(error)) from error


def _text(value: str, what: str) -> str:
    """A line for people: not empty, not long, nothing in it that moves a cursor."""
    if not value.strip() or len(value) > 200 or not value.isprintable():
        raise Invalid(f"{what} must be one line of 1 to 200 printable characters")
    return value
