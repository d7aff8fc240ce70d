"""Login of people through the identity provider: login, callback, login of devices, logout.

A session is an access token that expires within an hour (docs/adr/0007), so that sessions and tokens share a table, a
look-up and a revocation. The browser stores it in a cookie that scripts cannot read.
"""

import hmac
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from gateway.admin.calls.access import AdminContext, Context, authenticated_actor
from gateway.admin.calls.authentication import Cookies, PendingLogin
from gateway.admin.calls.problems import LoginRefused
from gateway.admin.calls.schemas import Body, Name
from gateway.database.errors import Invalid, NotFound
from gateway.identity.grants import display_name_of, grants_of, groups_of, subject_digest
from gateway.identity.jwt import MAX_SIZE, JwtRefused, authentication_time
from gateway.identity.keys import ApiKey
from gateway.identity.login import FRESH, CodeRefused, LoginAttempt
from gateway.identity.roles import Actor
from gateway.openai.asgi_client import caller_address
from gateway.records.control import AccessTokenRecord, PersonRecord, Role
from gateway.store.idempotent_answers import Answers, Pending

if TYPE_CHECKING:
    from gateway.identity.provider import IdentityProvider

router = APIRouter(tags=["login"])

Short = Annotated[str | None, Query(max_length=4096)]

TO_CONSOLE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/console/">'
    '<title>Domicile</title><p><a href="/console/">Go on to the console</a></p></html>'
)
"""A page instead of a redirect: after a redirect from the provider's site, the browser would not send the session
cookie, which is ``SameSite=Strict``. It sends the cookie with a request from a page of this site."""
OF_PAGE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
    "referrer-policy": "no-referrer",
}


class Session(BaseModel):
    """The person who logged in, their tenant, and the expiry. The session itself is in the cookie."""

    model_config = ConfigDict(frozen=True)

    person: str
    tenant: str | None
    roles: tuple[Role, ...]
    expires_at: datetime


@router.get("/login", status_code=303, response_class=RedirectResponse, response_model=None)
async def login(request: Request, context: Context, tenant: Name | None = None, again: bool = False) -> Response:
    """Redirect to the identity provider, which redirects to ``/callback``. `tenant`: for a person with roles in
    several. `again`: the provider authenticates the person again, which irreversible actions in the console require."""
    provider, cookies = _open(context)
    attempt = LoginAttempt.new()
    url = await context.provider_pool.run(provider.authorization_url, attempt, again)
    known = await run_in_threadpool(context.session, request)
    begun = PendingLogin(
        attempt, tenant, known.token if known is not None else "", int(context.now().timestamp()), again
    )
    response = RedirectResponse(url, 303, headers={"cache-control": "no-store"})
    cookies.set_login(response, begun, context.hasher())
    return response


@router.get("/callback", response_model=Session)
async def callback(
    request: Request,
    context: Context,
    code: Short = None,
    state: Short = None,
    iss: Short = None,
    error: Short = None,
) -> Response:
    """Complete a login with the response of the identity provider. Roles are those of the person's current groups.

    An earlier session of the browser ends. A browser gets a page that leads to the console, other clients get JSON.
    """
    provider, cookies = _open(context)
    life = timedelta(minutes=provider.settings.session_minutes)
    try:
        begun = await run_in_threadpool(_pending_login, context, cookies, request, state)
        claims = await context.provider_pool.run(_claims, provider, begun.attempt, code, iss, error)
        person, record, token = await run_in_threadpool(_start_session, context, provider, request, begun, claims, life)
    except LoginRefused as refusal:
        context.on_refused(refusal.reason, caller_address(request.scope))
        raise
    if "text/html" in request.headers.get("accept", ""):
        response: Response = HTMLResponse(TO_CONSOLE, headers=OF_PAGE)
    else:
        session = Session(person=person.id, tenant=person.tenant, roles=person.roles, expires_at=record.expires_at)
        response = JSONResponse(session.model_dump(mode="json"), headers={"cache-control": "no-store"})
    cookies.forget(response)
    cookies.set_session(response, token.token, int(life.total_seconds()))
    return response


class DeviceLogin(BaseModel):
    """Where a command line gets an ID token for `POST /device-login`: by the device flow (RFC 8628) of `issuer`."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    client_id: str
    scope: str


class DeviceToken(Body):
    """`id_token`: of the device flow, new. `tenant`: for who has roles in several."""

    id_token: str = Field(repr=False, max_length=MAX_SIZE)
    tenant: Name | None = None


class SessionWithToken(Session):
    """`token` is shown this once and kept nowhere."""

    token: str = Field(repr=False)


@router.get("/device-login")
def show_device_login(context: Context) -> DeviceLogin:
    """How to log in from a command line."""
    provider = _for_devices(context)
    settings = provider.settings
    scopes = dict.fromkeys([*settings.scope.split(), "offline_access"])
    return DeviceLogin(issuer=settings.issuer or "", client_id=settings.device_client_id or "", scope=" ".join(scopes))


@router.post("/device-login", status_code=201)
async def device_login(request: Request, context: Context, shown: DeviceToken) -> SessionWithToken:
    """Exchange an ID token of the device flow, which is accepted once, for a session. Roles are those of its groups."""
    provider = _for_devices(context)
    life = timedelta(minutes=provider.settings.session_minutes)
    try:
        try:
            claims = await context.provider_pool.run(provider.person_at_device, shown.id_token)
        except JwtRefused as refused:
            raise LoginRefused(refused.reason, str(refused)) from refused
        digest = sha256(shown.id_token.encode()).hexdigest()
        await run_in_threadpool(_use_once, context, "device login", digest)
        person = await run_in_threadpool(_person_of, context, provider, claims, shown.tenant)
        control = context.control("system")
        record, key = await run_in_threadpool(partial(control.open_session, person.tenant, person.id, life=life))
    except LoginRefused as refusal:
        context.on_refused(refusal.reason, caller_address(request.scope))
        raise
    return SessionWithToken(
        person=person.id, tenant=person.tenant, roles=person.roles, expires_at=record.expires_at, token=key.token
    )


@router.post("/logout", status_code=204, response_model=None)
def logout(request: Request, actor: Annotated[Actor, Depends(authenticated_actor)], context: Context) -> Response:
    """End the session or access token of the caller.

    A browser with a session is redirected (303) to the logout page of the identity provider, if it has one (OpenID
    Connect RP-Initiated Logout 1.0).
    """
    if actor.kind == "machine":
        raise Invalid("a machine's token cannot be logged out; it ends at its expiry")
    by_session = context.session(request)
    context.control(actor.name).close_session(actor.tenant, actor.person, actor.token)
    response = Response(status_code=204)
    if context.provider is not None and by_session is not None and compare_digest(by_session.token, actor.token):
        url = context.provider.end_session_url()
        response = response if url is None else RedirectResponse(url, 303, headers={"cache-control": "no-store"})
    if context.cookies is not None:
        context.cookies.forget(response, session=True)
    return response


def _open(context: AdminContext) -> tuple["IdentityProvider", Cookies]:
    if context.provider is None or context.cookies is None:
        raise NotFound(
            "login is not possible because no identity provider is configured; set oidc.issuer, or use an access token"
        )
    return context.provider, context.cookies


def _for_devices(context: AdminContext) -> "IdentityProvider":
    if context.provider is None or context.provider.settings.device_client_id is None:
        raise NotFound("login from a command line is not configured; set oidc.device_client_id, or use an access token")
    return context.provider


def _use_once(context: AdminContext, purpose: str, value: str) -> None:
    """Mark `value` as used. Raises LoginRefused if it was used before."""
    used = Answers(context.database, context.cell, purpose, value)
    try:
        claim = used.claim(value, context.now())
    except Pending:
        claim = b""
    if isinstance(claim, bytes):
        raise LoginRefused("login_used", "this login was already used; log in again")
    used.keep(claim, b"used")


def _pending_login(context: AdminContext, cookies: Cookies, request: Request, state: str | None) -> PendingLogin:
    """Return the pending login of this callback and mark it as used. Raises LoginRefused."""
    now = context.now()
    begun = cookies.login_of(request, context.hasher(), now.timestamp())
    if begun is None or state is None or not hmac.compare_digest(begun.attempt.state.encode(), state.encode()):
        raise LoginRefused("login_state", "this login was not started in this browser, or it has expired; log in again")
    _use_once(context, "login", begun.attempt.state)
    return begun


def _claims(
    provider: "IdentityProvider", attempt: LoginAttempt, code: str | None, issuer: str | None, error: str | None
) -> dict[str, Any]:
    """Return the claims of the person who logged in. Raises LoginRefused, ProviderUnavailable."""
    try:
        provider.check_issuer(issuer)
        if error is not None or not code:
            raise LoginRefused(
                "login_denied", "the identity provider refused the login; try again, or ask the operator"
            )
        return provider.person(code, attempt)
    except CodeRefused as refused:
        raise LoginRefused("login_code", str(refused)) from refused
    except JwtRefused as refused:
        raise LoginRefused(refused.reason, str(refused)) from refused


def _start_session(
    context: AdminContext,
    provider: "IdentityProvider",
    request: Request,
    begun: PendingLogin,
    claims: dict[str, Any],
    life: timedelta,
) -> tuple[PersonRecord, AccessTokenRecord, ApiKey]:
    """Assign the roles of their groups to the person, open a session and end the earlier one. Raises LoginRefused."""
    control = context.control("system")
    authenticated_at = _authenticated_at(context, provider, begun, claims)
    person = _person_of(context, provider, claims, begun.tenant)
    # A browser that comes from the provider does not send its session cookie, so the login's cookie contains its id.
    known = context.session(request)
    for token in {begun.session, "" if known is None else known.token} - {""}:
        control.end_session(token)
    record, key = control.open_session(person.tenant, person.id, life=life, authenticated_at=authenticated_at)
    return person, record, key


def _authenticated_at(
    context: AdminContext, provider: "IdentityProvider", begun: PendingLogin, claims: dict[str, Any]
) -> datetime | None:
    """Return when the provider last authenticated the person; None if it does not say. Raises LoginRefused if a new
    authentication was requested and the provider does not confirm it."""
    now, skew_s = context.now(), provider.settings.clock_skew_s
    try:
        at = authentication_time(claims, now=now.timestamp(), skew_s=skew_s)
    except JwtRefused as refused:
        raise LoginRefused(refused.reason, str(refused)) from refused
    if begun.again and at is None:
        raise LoginRefused(
            "login_not_fresh",
            "the identity provider does not say when you signed in, which this action requires"
            "; configure it to send the claim auth_time, or ask an operator to do it from a shell",
        )
    if begun.again and at is not None and now.timestamp() - at > FRESH.total_seconds() + skew_s:
        raise LoginRefused(
            "login_not_fresh",
            "the identity provider did not authenticate you again; sign out there, and sign in again",
        )
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _person_of(
    context: AdminContext, provider: "IdentityProvider", claims: dict[str, Any], tenant: str | None
) -> PersonRecord:
    """Return the person of the claims, with the roles of their groups. Raises LoginRefused."""
    settings, subject = provider.settings, subject_digest(claims["iss"], claims["sub"])
    if (provisioning := context.provisioning()) is not None:
        admitted = provisioning.admitted(subject)
        if admitted is None:
            raise LoginRefused(
                "login_provisioned",
                "the identity provider has not provisioned you here, or no longer does; ask its administrators",
            )
        return _chosen(admitted, tenant)
    people = context.control("system").apply_groups(
        subject,
        display_name_of(claims),
        grants_of(groups_of(claims, settings.groups_claim), settings.roles),
    )
    return _chosen(people, tenant)


def _chosen(people: list[PersonRecord], tenant: str | None) -> PersonRecord:
    if not people:
        raise LoginRefused(
            "login_groups", "none of your groups has a role here; ask the operator to add one of them to oidc.roles"
        )
    places = {person.tenant or "": person for person in people}
    if tenant is not None and tenant not in places:
        raise LoginRefused("login_tenant", f"you have no role there; choose one of {', '.join(filter(None, places))}")
    if tenant is None and "" not in places and len(people) > 1:
        raise LoginRefused(
            "login_tenant", f"you have roles in several tenants; name one of {', '.join(places)} with ?tenant="
        )
    return places[tenant or ("" if "" in places else next(iter(places)))]
