"""Find one row, or say in an administrator's words that it is not there; turn rows into records."""

from typing import Any

from pydantic import BaseModel
from sqlmodel import Session, SQLModel, col, select

from gateway.database.errors import Invalid, NotFound
from gateway.database.tables.control import (
    AccessTokenRow,
    ApiKeyRow,
    BackendRow,
    PersonRow,
    PolicyProposalRow,
    PolicyVersionRow,
    ProjectRow,
    TenantRow,
)
from gateway.records.control import (
    AccessTokenRecord,
    BackendRecord,
    KeyRecord,
    PersonRecord,
    PolicyProposalRecord,
    PolicyVersionRecord,
    ProjectRecord,
    TenantRecord,
)

TENANT_SCOPE = ""
"""In the project column of a policy version: the tenant's own document."""

OPERATOR = ""
"""In the tenant column of a policy version: the operator's own document, above all tenants."""


def tenant(session: Session, tenant_id: str) -> TenantRow:
    """Raises NotFound."""
    row = session.get(TenantRow, tenant_id)
    if row is None:
        raise NotFound(
            f"there is no tenant {tenant_id!r}; `domicile tenant list` shows those there are", name=tenant_id
        )
    return row


def living_tenant(session: Session, tenant_id: str) -> TenantRow:
    """Raises NotFound, and Invalid if it was revoked."""
    row = tenant(session, tenant_id)
    if row.revoked_at is not None:
        raise Invalid(f"tenant {tenant_id!r} was revoked on {row.revoked_at:%Y-%m-%d}; name a tenant in use")
    return row


def project(session: Session, tenant_id: str, project_id: str) -> ProjectRow:
    """Raises NotFound."""
    tenant(session, tenant_id)
    row = session.get(ProjectRow, (tenant_id, project_id))
    if row is None:
        raise NotFound(
            f"tenant {tenant_id!r} has no project {project_id!r}; `domicile project list` shows those there are",
            name=project_id,
            tenant=tenant_id,
        )
    return row


def living_project(session: Session, tenant_id: str, project_id: str) -> ProjectRow:
    """Raises NotFound, and Invalid if it or its tenant was revoked."""
    living_tenant(session, tenant_id)
    row = project(session, tenant_id, project_id)
    if row.revoked_at is not None:
        raise Invalid(f"project {project_id!r} was revoked on {row.revoked_at:%Y-%m-%d}; name a project in use")
    return row


def key(session: Session, tenant_id: str, key_id: str) -> ApiKeyRow:
    """Raises NotFound, also for a key of another tenant."""
    row = session.get(ApiKeyRow, key_id)
    if row is None or row.tenant != tenant_id:
        raise NotFound(f"tenant {tenant_id!r} has no key {key_id!r}; `domicile key list` shows those there are")
    return row


def backend(session: Session, tenant_id: str, backend_id: str) -> BackendRow:
    """Raises NotFound, also for a backend of another tenant."""
    row = session.get(BackendRow, backend_id)
    if row is None or row.tenant != tenant_id:
        raise NotFound(
            f"tenant {tenant_id!r} has no backend {backend_id!r}; `domicile backend list` shows those there are"
        )
    return row


def person(session: Session, tenant_id: str | None, person_id: str) -> PersonRow:
    """`tenant_id` None: of the staff. Raises NotFound, also for a person of another tenant."""
    row = session.get(PersonRow, person_id)
    if row is None or row.tenant != tenant_id:
        raise NotFound(
            f"{f'tenant {tenant_id!r}' if tenant_id else 'the staff'} has no person {person_id!r}"
            "; `domicile person list` shows those there are"
        )
    return row


def living_person(session: Session, tenant_id: str | None, person_id: str) -> PersonRow:
    """Raises NotFound, and Invalid if the person or the tenant was revoked."""
    if tenant_id is not None:
        living_tenant(session, tenant_id)
    row = person(session, tenant_id, person_id)
    if row.revoked_at is not None:
        raise Invalid(f"person {person_id!r} was revoked on {row.revoked_at:%Y-%m-%d}; name a person in use")
    return row


def token(session: Session, tenant_id: str | None, person_id: str, token_id: str) -> AccessTokenRow:
    """Raises NotFound, also for a token of another person."""
    person(session, tenant_id, person_id)
    row = session.get(AccessTokenRow, token_id)
    if row is None or row.person != person_id:
        raise NotFound(f"person {person_id!r} has no such token; check the id of the token")
    return row


def active_policy(session: Session, tenant_id: str, scope: str) -> PolicyVersionRow | None:
    """`scope`: a project, or TENANT_SCOPE."""
    return session.exec(
        select(PolicyVersionRow).where(
            PolicyVersionRow.tenant == tenant_id,
            PolicyVersionRow.project == scope,
            col(PolicyVersionRow.active).is_(True),
        )
    ).one_or_none()


def tenant_record(row: TenantRow) -> TenantRecord:
    return TenantRecord.model_validate(_fields(row, TenantRecord))


def project_record(row: ProjectRow) -> ProjectRecord:
    return ProjectRecord.model_validate(_fields(row, ProjectRecord))


def key_record(row: ApiKeyRow) -> KeyRecord:
    return KeyRecord.model_validate(_fields(row, KeyRecord))


def person_record(row: PersonRow) -> PersonRecord:
    fields = {name: getattr(row, name) for name in PersonRecord.model_fields if name != "federated"}
    return PersonRecord.model_validate(fields | {"federated": row.subject is not None})


def token_record(row: AccessTokenRow) -> AccessTokenRecord:
    return AccessTokenRecord.model_validate(_fields(row, AccessTokenRecord))


def backend_record(row: BackendRow) -> BackendRecord:
    return BackendRecord.model_validate(_fields(row, BackendRecord))


def policy_record(row: PolicyVersionRow) -> PolicyVersionRecord:
    fields = _fields(row, PolicyVersionRecord)
    return PolicyVersionRecord.model_validate(fields | {"tenant": row.tenant or None, "project": row.project or None})


def proposal(session: Session, tenant_id: str, scope: str, number: int) -> PolicyProposalRow:
    """Raises NotFound."""
    row = session.get(PolicyProposalRow, (tenant_id, scope, number))
    if row is None:
        whose = f"project {scope!r} of " if scope else ""
        raise NotFound(
            f"{whose}{f'tenant {tenant_id!r}' if tenant_id else 'the operator'} has no proposal {number}"
            "; `domicile policy list` shows those there are"
        )
    return row


def proposal_record(row: PolicyProposalRow) -> PolicyProposalRecord:
    fields = _fields(row, PolicyProposalRecord)
    return PolicyProposalRecord.model_validate(fields | {"tenant": row.tenant or None, "project": row.project or None})


def _fields(row: SQLModel, kind: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in kind.model_fields}
