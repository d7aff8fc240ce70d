"""How people come in through the identity provider, and how they leave: login, callback, logout.

A session is an access token that ends within the hour (docs/adr/0007): one table, one look-up, one way to revoke. The
browser holds it in a cookie that no script can read.
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
"""A page and no redirect: a browser that comes from the provider sends the session, which is ``SameSite=Strict``, only
with what a page of ours begins."""
OF_PAGE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
    "referrer-policy": "no-referrer",
}


class Session(BaseModel):
    """Who has logged in, where, and until when. The session itself is in the cookie."""

    model_config = ConfigDict(frozen=True)

    person: str
    tenant: str | None
    roles: tuple[Role, ...]
    expires_at: datetime


@router.get("/login", status_code=303, response_class=RedirectResponse, response_model=None)
async def login(request: Request, context: Context, tenant: Name | None = None, again: bool = False) -> Response:
    """Go to the identity provider, and come back by ``/callback``. `tenant`: for who has roles in several. `again`: the
    provider asks the person again, as what cannot be undone in the console takes."""
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
    """Where the identity provider sends people back to. Roles are those of their groups as of now.

    The session that the browser had ends. A browser goes on to the console, other clients get the session as JSON.
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
    """A session for an ID token of the device flow, which is good for this once. Roles are those of its groups."""
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
    """End the session, or the access token, that this is called with.

    303 to where the browser ends its session at the identity provider, if it has one and the provider offers that
    (OpenID Connect RP-Initiated Logout 1.0).
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
            "logging in is not possible, since no identity provider is configured; set oidc.issuer, or use "
            "an access token"
        )
    return context.provider, context.cookies


def _for_devices(context: AdminContext) -> "IdentityProvider":
    if context.provider is None or context.provider.settings.device_client_id is None:
        raise NotFound(
            "logging in from a command line by the identity provider is off; set oidc.device_client_id, or use an "
            "access token"
        )
    return context.provider


def _use_once(context: AdminContext, purpose: str, value: str) -> None:
    """Raises LoginRefused at the second time."""
    used = Answers(context.database, context.cell, purpose, value)
    try:
        claim = used.claim(value, context.now())
    except Pending:
        claim = b""
    if isinstance(claim, bytes):
        raise LoginRefused("login_used", "this login was used already; log in again")
    used.keep(claim, b"used")


def _pending_login(context: AdminContext, cookies: Cookies, request: Request, state: str | None) -> PendingLogin:
    """The pending login of this callback, which is consumed. Raises LoginRefused."""
    now = context.now()
    begun = cookies.login_of(request, context.hasher(), now.timestamp())
    if begun is None or state is None or not hmac.compare_digest(begun.attempt.state.encode(), state.encode()):
        raise LoginRefused("login_state", "this login was not begun in this browser, or too long ago; log in again")
    _use_once(context, "login", begun.attempt.state)
    return begun


def _claims(
    provider: "IdentityProvider", attempt: LoginAttempt, code: str | None, issuer: str | None, error: str | None
) -> dict[str, Any]:
    """Of the person that came back. Raises LoginRefused, ProviderUnavailable."""
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
    """Give the person the roles of their groups and a session, and end the one before. Raises LoginRefused."""
    control = context.control("system")
    authenticated_at = _authenticated_at(context, provider, begun, claims)
    person = _person_of(context, provider, claims, begun.tenant)
    # A browser does not send its session along when it comes from the provider, so the login's cookie names it too.
    known = context.session(request)
    for token in {begun.session, "" if known is None else known.token} - {""}:
        control.end_session(token)
    record, key = control.open_session(person.tenant, person.id, life=life, authenticated_at=authenticated_at)
    return person, record, key


def _authenticated_at(
    context: AdminContext, provider: "IdentityProvider", begun: PendingLogin, claims: dict[str, Any]
) -> datetime | None:
    """When the person last showed the provider who they are. Raises LoginRefused where they were to do so now, and the
    provider does not say that they did."""
    now, skew_s = context.now(), provider.settings.clock_skew_s
    try:
        at = authentication_time(claims, now=now.timestamp(), skew_s=skew_s)
    except JwtRefused as refused:
        raise LoginRefused(refused.reason, str(refused)) from refused
    if begun.again and at is None:
        raise LoginRefused(
            "login_not_fresh",
            "this needs a recent sign-in, and the identity provider does not say when you signed in"
            "; let it send the claim auth_time, or ask an operator to do it from a shell",
        )
    if begun.again and at is not None and now.timestamp() - at > FRESH.total_seconds() + skew_s:
        raise LoginRefused(
            "login_not_fresh",
            "the identity provider let you in without asking who you are; sign out there, and sign in again",
        )
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _person_of(
    context: AdminContext, provider: "IdentityProvider", claims: dict[str, Any], tenant: str | None
) -> PersonRecord:
    """Whom the claims are of, with the roles of their groups. Raises LoginRefused."""
    settings, subject = provider.settings, subject_digest(claims["iss"], claims["sub"])
    if (provisioning := context.provisioning()) is not None:
        admitted = provisioning.admitted(subject)
        if admitted is None:
            raise LoginRefused(
                "login_provisioned",
                "the identity provider has not provisioned you here, or ended that; ask its administrators",
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
