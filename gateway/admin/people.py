"""People of a tenant and staff of the installation, with their roles and tokens, and the first operator."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.calls.access import Context, IfMatch, RequireBootstrapToken, RequirePermission, authenticated_actor
from gateway.admin.calls.guarded_route import GuardedRoute
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import After, Body, Instant, Limit, ResponseBody, tagged
from gateway.identity.roles import ROLE_TABLE, Actor, Permission
from gateway.records.control import AccessTokenRecord, PersonRecord, Role
from gateway.store.control.people import MAX_TOKEN_LIFE
from gateway.store.pagination import Page
from gateway.store.reports.actors import persons_called

MAX_ACTORS = 500
ActorName = Annotated[str, Field(max_length=80)]
ActorNames = Annotated[tuple[ActorName, ...], Query(max_length=MAX_ACTORS)]
TokenDays = Annotated[int, Field(ge=1, le=MAX_TOKEN_LIFE.days)]


class NewPerson(Body):
    display_name: str
    roles: tuple[Role, ...]


class Roles(Body):
    roles: tuple[Role, ...]


class NewToken(Body):
    expires_at: Instant
    label: str = ""


class FirstOperator(Body):
    display_name: str
    token_days: TokenDays = 30


class TokenWithSecret(AccessTokenRecord):
    """A new token. `token` is shown once and is not stored."""

    token: str = Field(repr=False)


class Welcome(BaseModel):
    person: PersonRecord
    token: TokenWithSecret


class Changer(ResponseBody):
    """The person behind a token. `display_name` is null for staff of the installation, if a tenant's person asks."""

    id: str
    staff: bool
    display_name: str | None


class Named(ResponseBody):
    """Who acted: `actor` as records name it, a token or the id of a person."""

    actor: str
    person: Changer


class Me(BaseModel):
    """The caller and the permissions of their roles, in `tenant`, or in the whole installation if it is null.

    `since`: when the token or session was created; null for a machine, as is the name. `authenticated_at`: for a
    session, when the identity provider last authenticated the person; null if it does not say.
    """

    model_config = ConfigDict(frozen=True)

    person: str
    tenant: str | None
    roles: tuple[Role, ...]
    permissions: tuple[Permission, ...]
    display_name: str | None = None
    since: datetime | None = None
    authenticated_at: datetime | None = None


bootstrap_router = APIRouter(tags=["people"], route_class=GuardedRoute)


@bootstrap_router.post("/bootstrap", status_code=201)
def bootstrap(
    token: Annotated[str, Depends(RequireBootstrapToken())], context: Context, response: Response, first: FirstOperator
) -> Welcome:
    """Create the first operator with an access token. Takes the bootstrap token as bearer token, which is valid
    once."""
    expires_at = context.now() + timedelta(days=first.token_days)
    person, record, secret = context.control(f"key:{token}").bootstrap(token, first.display_name, expires_at=expires_at)
    return Welcome(person=person, token=_shown_once(response, record, secret.token))


@bootstrap_router.get("/me")
def me(actor: Annotated[Actor, Depends(authenticated_actor)], context: Context) -> Me:
    permissions = frozenset[Permission]().union(*(ROLE_TABLE[role] for role in actor.roles))
    name = since = authenticated_at = None
    if actor.kind == "key":
        name = context.inventory.person(actor.tenant, actor.person).display_name
        token = context.inventory.token(actor.tenant, actor.person, actor.token)
        since, authenticated_at = token.created_at, token.authenticated_at
    return Me(
        person=actor.person,
        tenant=actor.tenant,
        roles=actor.roles,
        permissions=tuple(sorted(permissions)),
        display_name=name,
        since=since,
        authenticated_at=authenticated_at,
    )


def _routes(
    prefix: str, tenant_of: Callable[..., str | None], read: Permission, manage: Permission, vouch: Permission
) -> APIRouter:
    """Return the routes for people of a tenant, or for the staff. `tenant_of`: dependency that returns the tenant, None
    for the staff. `read`, `manage`: permissions for GET and for other methods. `vouch`: permission to vouch for a
    person."""
    router = APIRouter(prefix=prefix, tags=["people"], route_class=IdempotentRoute)
    _add_people(router, tenant_of, read, manage, vouch)
    _add_tokens(router, tenant_of, read, manage)
    return router


def _add_people(
    router: APIRouter,
    tenant_of: Callable[..., str | None],
    read: Permission,
    manage: Permission,
    vouch: Permission,
) -> None:
    """Add the routes of persons and their roles to `router`. Parameters as in `_routes`."""
    reading = [Depends(RequirePermission(read))]
    manager = Annotated[Actor, Depends(RequirePermission(manage))]
    voucher = Annotated[Actor, Depends(RequirePermission(vouch))]
    of = Annotated[str | None, Depends(tenant_of)]

    @router.get("", dependencies=reading)
    def list_people(context: Context, tenant: of, after: After = None, limit: Limit = 50) -> Page[PersonRecord]:
        return context.pages.people(tenant, after, limit)

    @router.post("", status_code=201)
    def create_person(actor: manager, context: Context, response: Response, tenant: of, new: NewPerson) -> PersonRecord:
        return tagged(response, context.control(actor.name).create_person(tenant, new.display_name, new.roles))

    @router.get("/{person}", dependencies=reading)
    def show_person(context: Context, response: Response, tenant: of, person: str) -> PersonRecord:
        return tagged(response, context.inventory.person(tenant, person))

    @router.put("/{person}/roles")
    def set_roles(
        actor: manager, context: Context, expected: IfMatch, response: Response, tenant: of, person: str, new: Roles
    ) -> PersonRecord:
        return tagged(response, context.control(actor.name, expected).set_roles(tenant, person, new.roles))

    @router.post("/{person}/vouch")
    def vouch_for_person(
        actor: voucher, context: Context, expected: IfMatch, response: Response, tenant: of, person: str
    ) -> PersonRecord:
        """Confirm that this is a second person, with their current roles and tokens. 409 for the person who created
        them, and for a caller without a role that they lack."""
        record = context.control(actor.name, expected).vouch_for_person(tenant, person, voucher=actor.person)
        return tagged(response, record)

    @router.post("/{person}/revoke")
    def revoke_person(
        actor: manager, context: Context, expected: IfMatch, response: Response, tenant: of, person: str
    ) -> PersonRecord:
        """Revoke the person and all their tokens immediately. This cannot be undone."""
        return tagged(response, context.control(actor.name, expected).revoke_person(tenant, person))


def _add_tokens(router: APIRouter, tenant_of: Callable[..., str | None], read: Permission, manage: Permission) -> None:
    """Add the routes of a person's access tokens to `router`. Parameters as in `_routes`."""
    reading = [Depends(RequirePermission(read))]
    manager = Annotated[Actor, Depends(RequirePermission(manage))]
    of = Annotated[str | None, Depends(tenant_of)]

    @router.get("/{person}/tokens", dependencies=reading)
    def list_tokens(
        context: Context, tenant: of, person: str, after: After = None, limit: Limit = 50
    ) -> Page[AccessTokenRecord]:
        return context.pages.tokens(tenant, person, after, limit)

    @router.post("/{person}/tokens", status_code=201)
    def create_token(
        actor: manager, context: Context, response: Response, tenant: of, person: str, new: NewToken
    ) -> TokenWithSecret:
        record, secret = context.control(actor.name).create_token(
            tenant, person, expires_at=new.expires_at, label=new.label
        )
        return _shown_once(response, record, secret.token)

    @router.post("/{person}/tokens/{token}/revoke")
    def revoke_token(
        actor: manager, context: Context, expected: IfMatch, response: Response, tenant: of, person: str, token: str
    ) -> AccessTokenRecord:
        return tagged(response, context.control(actor.name, expected).revoke_token(tenant, person, token))


def changer(person: PersonRecord | None, reader: Actor, tenant: str | None) -> Changer | None:
    """What `reader` is told of who acted in `tenant`; None for a person of another tenant."""
    if person is None or person.tenant not in (None, tenant):
        return None
    named = person.tenant is not None or reader.tenant is None
    return Changer(id=person.id, staff=person.tenant is None, display_name=person.display_name if named else None)


def _named(prefix: str, tenant_of: Callable[..., str | None], read: Permission) -> APIRouter:
    """Return the route that names who acted in a tenant, or in the installation."""
    router = APIRouter(prefix=prefix, tags=["people"], route_class=IdempotentRoute)
    reading = Annotated[Actor, Depends(RequirePermission(read))]
    tenant_or_none = Annotated[str | None, Depends(tenant_of)]

    @router.get("/actors")
    def list_actors(actor: reading, context: Context, tenant: tenant_or_none, of: ActorNames = ()) -> tuple[Named, ...]:
        """Name the persons behind tokens and ids, as policies and changes have them. Those that there are not, or that
        are of another tenant, are left out."""
        persons = persons_called(context.database, of)
        told = ((each, changer(persons.get(each), actor, tenant)) for each in dict.fromkeys(of))
        return tuple(Named(actor=each, person=person) for each, person in told if person is not None)

    return router


def _in_the_path(tenant: str) -> str:
    return tenant


def _of_the_staff() -> None:
    return None


def _shown_once(response: Response, record: AccessTokenRecord, token: str) -> TokenWithSecret:
    tagged(response, record)
    response.headers["cache-control"] = "no-store"
    return TokenWithSecret(**dict(record), token=token)


tenant_router = _routes("/tenants/{tenant}/people", _in_the_path, "people.read", "people.manage", "policies.approve")
staff_router = _routes("/staff", _of_the_staff, "staff.read", "staff.manage", "operator-policy.approve")
tenant_actors_router = _named("/tenants/{tenant}", _in_the_path, "people.read")
staff_actors_router = _named("/operator", _of_the_staff, "staff.read")
