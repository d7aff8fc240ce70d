"""What there is: tenants, projects, keys, people, policies, backends, as frozen records. Revoked ones are listed too.

All raise DatabaseUnavailable, and NotFound for an unknown tenant, project or object.
"""

from datetime import UTC, datetime

from sqlmodel import col, select

from gateway.database.database import Database
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
from gateway.store import lookup
from gateway.store.lookup import (
    OPERATOR,
    TENANT_SCOPE,
    backend_record,
    key_record,
    person_record,
    policy_record,
    project_record,
    proposal_record,
    tenant_record,
    token_record,
)
from gateway.store.uses import count_below, newest_pepper


class Inventory:
    """Read-only view of one control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenants(self) -> list[TenantRecord]:
        with self._database.read() as session:
            return [tenant_record(row) for row in session.exec(select(TenantRow).order_by(TenantRow.id))]

    def tenant(self, tenant: str) -> TenantRecord:
        with self._database.read() as session:
            return tenant_record(lookup.tenant(session, tenant))

    def has_living(self, tenant: str) -> bool:
        """Whether it exists and was not revoked."""
        with self._database.read() as session:
            row = session.get(TenantRow, tenant)
            return row is not None and row.revoked_at is None

    def projects(self, tenant: str) -> list[ProjectRecord]:
        with self._database.read() as session:
            lookup.tenant(session, tenant)
            rows = session.exec(select(ProjectRow).where(ProjectRow.tenant == tenant).order_by(ProjectRow.id))
            return [project_record(row) for row in rows]

    def project(self, tenant: str, project: str) -> ProjectRecord:
        with self._database.read() as session:
            return project_record(lookup.project(session, tenant, project))

    def keys(self, tenant: str, project: str | None = None) -> list[KeyRecord]:
        """Oldest first."""
        with self._database.read() as session:
            query = select(ApiKeyRow).where(ApiKeyRow.tenant == tenant)
            if project is None:
                lookup.tenant(session, tenant)
            else:
                lookup.project(session, tenant, project)
                query = query.where(ApiKeyRow.project == project)
            return [key_record(row) for row in session.exec(query.order_by(col(ApiKeyRow.created_at), ApiKeyRow.id))]

    def key(self, tenant: str, key_id: str) -> KeyRecord:
        with self._database.read() as session:
            return key_record(lookup.key(session, tenant, key_id))

    def hashed_before(self, pepper: int) -> int:
        """How many living keys and tokens are hashed under a generation of the pepper older than this."""
        with self._database.read() as session:
            return count_below(session, pepper, datetime.now(UTC))

    def newest_pepper(self) -> int:
        """The newest generation of the pepper that a living key or token is hashed under; 1 if there is none."""
        with self._database.read() as session:
            return newest_pepper(session, datetime.now(UTC))

    def people(self, tenant: str | None) -> list[PersonRecord]:
        """Oldest first. `tenant` None: the installation's own staff."""
        with self._database.read() as session:
            if tenant is not None:
                lookup.tenant(session, tenant)
            query = select(PersonRow).where(PersonRow.tenant == tenant)
            return [person_record(row) for row in session.exec(query.order_by(col(PersonRow.created_at), PersonRow.id))]

    def has_operator(self) -> bool:
        """Whether anybody can come in who may do everything."""
        return any("operator" in person.roles and person.revoked_at is None for person in self.people(None))

    def person(self, tenant: str | None, person: str) -> PersonRecord:
        with self._database.read() as session:
            return person_record(lookup.person(session, tenant, person))

    def tokens(self, tenant: str | None, person: str) -> list[AccessTokenRecord]:
        """Oldest first."""
        with self._database.read() as session:
            lookup.person(session, tenant, person)
            query = select(AccessTokenRow).where(AccessTokenRow.person == person)
            rows = session.exec(query.order_by(col(AccessTokenRow.created_at), AccessTokenRow.id))
            return [token_record(row) for row in rows]

    def token(self, tenant: str | None, person: str, token: str) -> AccessTokenRecord:
        with self._database.read() as session:
            return token_record(lookup.token(session, tenant, person, token))

    def policies(self, tenant: str | None) -> list[PolicyVersionRecord]:
        """Every version, oldest first, the tenant's own before its projects'. `tenant` None: the operator's."""
        with self._database.read() as session:
            if tenant is not None:
                lookup.tenant(session, tenant)
            rows = session.exec(
                select(PolicyVersionRow)
                .where(PolicyVersionRow.tenant == (tenant or OPERATOR))
                .order_by(PolicyVersionRow.project, col(PolicyVersionRow.number))
            )
            return [policy_record(row) for row in rows]

    def proposals(self, tenant: str | None) -> list[PolicyProposalRecord]:
        """Every one, oldest first. `tenant` None: of the operator's policy."""
        with self._database.read() as session:
            if tenant is not None:
                lookup.tenant(session, tenant)
            rows = session.exec(
                select(PolicyProposalRow)
                .where(PolicyProposalRow.tenant == (tenant or OPERATOR))
                .order_by(PolicyProposalRow.project, col(PolicyProposalRow.number))
            )
            return [proposal_record(row) for row in rows]

    def proposal(self, tenant: str | None, number: int, project: str | None = None) -> PolicyProposalRecord:
        with self._database.read() as session:
            if tenant is not None:
                lookup.tenant(session, tenant)
            scope = TENANT_SCOPE if project is None else project
            return proposal_record(lookup.proposal(session, tenant or OPERATOR, scope, number))

    def backend(self, tenant: str, backend: str) -> BackendRecord:
        with self._database.read() as session:
            return backend_record(lookup.backend(session, tenant, backend))

    def backends(self, tenant: str) -> list[BackendRecord]:
        with self._database.read() as session:
            lookup.tenant(session, tenant)
            rows = session.exec(select(BackendRow).where(BackendRow.tenant == tenant).order_by(BackendRow.id))
            return [backend_record(row) for row in rows]
