"""Long lists, a page at a time, in the order of their ids: a page never repeats or skips what was there throughout."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from sqlmodel import col, select

from gateway.database.database import Database
from gateway.database.tables.control import (
    AccessTokenRow,
    ApiKeyRow,
    BackendRow,
    PersonRow,
    PolicyVersionRow,
    ProjectRow,
    TenantRow,
)
from gateway.records.control import (
    AccessTokenRecord,
    BackendRecord,
    KeyRecord,
    PersonRecord,
    PolicyVersionRecord,
    ProjectRecord,
    Record,
    TenantRecord,
)
from gateway.store import lookup
from gateway.store.lookup import (
    backend_record,
    key_record,
    person_record,
    policy_record,
    project_record,
    tenant_record,
    token_record,
)

R = TypeVar("R", bound=Record)


class Page(BaseModel, Generic[R]):
    """`next`: what to send as ``after`` for the next page; None on the last."""

    model_config = ConfigDict(frozen=True)

    items: tuple[R, ...]
    next: str | None


class Pages:
    """`after`: where the page before ended, None for the first. All raise DatabaseUnavailable, and NotFound."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenants(self, after: str | None, limit: int) -> Page[TenantRecord]:
        return self._page(select(TenantRow), TenantRow.id, tenant_record, after, limit)

    def projects(self, tenant: str, after: str | None, limit: int) -> Page[ProjectRecord]:
        query = select(ProjectRow).where(ProjectRow.tenant == tenant)
        return self._page(query, ProjectRow.id, project_record, after, limit, tenant)

    def keys(self, tenant: str, project: str | None, after: str | None, limit: int) -> Page[KeyRecord]:
        query = select(ApiKeyRow).where(ApiKeyRow.tenant == tenant)
        if project is not None:
            query = query.where(ApiKeyRow.project == project)
        return self._page(query, ApiKeyRow.id, key_record, after, limit, tenant)

    def backends(self, tenant: str, after: str | None, limit: int) -> Page[BackendRecord]:
        query = select(BackendRow).where(BackendRow.tenant == tenant)
        return self._page(query, BackendRow.id, backend_record, after, limit, tenant)

    def policies(self, tenant: str | None, project: str | None, after: int, limit: int) -> Page[PolicyVersionRecord]:
        """Versions of the tenant's own document, or of a project's, oldest first; `after`: a number, 0 at first.

        `tenant` None: the operator's.
        """
        query = select(PolicyVersionRow).where(
            PolicyVersionRow.tenant == (tenant or lookup.OPERATOR),
            PolicyVersionRow.project == (project or lookup.TENANT_SCOPE),
        )
        return self._page(query, PolicyVersionRow.number, policy_record, after, limit, tenant)

    def people(self, tenant: str | None, after: str | None, limit: int) -> Page[PersonRecord]:
        """`tenant` None: the staff."""
        query = select(PersonRow).where(PersonRow.tenant == tenant)
        return self._page(query, PersonRow.id, person_record, after, limit, tenant)

    def tokens(self, tenant: str | None, person: str, after: str | None, limit: int) -> Page[AccessTokenRecord]:
        with self._database.read() as session:
            lookup.person(session, tenant, person)
        query = select(AccessTokenRow).where(AccessTokenRow.person == person)
        return self._page(query, AccessTokenRow.id, token_record, after, limit, tenant)

    def _page(
        self,
        query: Any,
        place: Any,
        to_record: Callable[[Any], R],
        after: str | int | None,
        limit: int,
        tenant: str | None = None,
    ) -> Page[R]:
        if after is not None:
            query = query.where(col(place) > after)
        with self._database.read() as session:
            if tenant is not None:
                lookup.tenant(session, tenant)
            rows = session.exec(query.order_by(place).limit(limit + 1)).all()
            items = tuple(to_record(row) for row in rows[:limit])
            more = str(getattr(rows[limit - 1], place.key)) if len(rows) > limit else None
        return Page(items=items, next=more)
