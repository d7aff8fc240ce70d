"""How people come in through the identity provider, and how they leave: login, callback, logout.

A session is an access token that ends within the hour (docs/adr/0007): one table, one look-up, one way to revoke. The
browser holds it in a cookie that no script can read.
"""

import hmac
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict

from gateway.admin.access import Desk, DeskOf, person_calling
from gateway.admin.caller import Cookies
from gateway.admin.problems import LoginRefused
from gateway.admin.shapes import Name
from gateway.identity.grants import display_name_of, grants_of, groups_of, subject_digest
from gateway.identity.jwt import JwtRefused
from gateway.identity.login import Attempt, CodeRefused
from gateway.identity.roles import Actor
from gateway.store.errors import Invalid, NotFound
from gateway.store.records import PersonRecord, Role

if TYPE_CHECKING:
    from gateway.identity.provider import IdentityProvider

router = APIRouter(tags=["login"])

Short = Annotated[str | None, Query(max_length=4096)]


class Session(BaseModel):
    """Who has logged in, where, and until when. The session itself is in the cookie."""

    model_config = ConfigDict(frozen=True)

    person: str
    tenant: str | None
    roles: tuple[Role, ...]
    expires_at: datetime


@router.get("/login", status_code=303, response_class=RedirectResponse, response_model=None)
def login(desk: DeskOf, tenant: Name | None = None) -> Response:
    """Go to the identity provider, and come back by ``/callback``. `tenant`: for who has roles in several."""
    provider, cookies = _open(desk)
    attempt = Attempt.new()
    response = RedirectResponse(provider.authorization_url(attempt), 303, headers={"cache-control": "no-store"})
    cookies.set_login(response, attempt, tenant)
    return response


@router.get("/callback", response_model=Session)
def callback(
    request: Request,
    desk: DeskOf,
    code: Short = None,
    state: Short = None,
    iss: Short = None,
    error: Short = None,
) -> Response:
    """Where the identity provider sends people back to. Roles are those of their groups as of now."""
    provider, cookies = _open(desk)
    try:
        person = _logged_in(desk, provider, cookies.login_of(request), code, state, iss, error)
        life = timedelta(minutes=provider.settings.session_minutes)
        record, token = desk.control("system").open_session(person.tenant, person.id, life=life)
    except LoginRefused as refusal:
        desk.on_refused(refusal.reason)
        raise
    session = Session(person=person.id, tenant=person.tenant, roles=person.roles, expires_at=record.expires_at)
    response = JSONResponse(session.model_dump(mode="json"), headers={"cache-control": "no-store"})
    cookies.forget(response)
    cookies.set_session(response, token.token, int(life.total_seconds()))
    return response


@router.post("/logout", status_code=204)
def logout(actor: Annotated[Actor, Depends(person_calling)], desk: DeskOf, response: Response) -> None:
    """End the session, or the access token, that this is called with."""
    if actor.kind == "machine":
        raise Invalid("a machine's token ends by itself")
    desk.control(actor.name).close_session(actor.tenant, actor.person, actor.token)
    if desk.cookies is not None:
        desk.cookies.forget(response, session=True)


def _open(desk: Desk) -> tuple["IdentityProvider", Cookies]:
    if desk.provider is None or desk.cookies is None:
        raise NotFound("nobody can log in here: no identity provider is configured")
    return desk.provider, desk.cookies


def _logged_in(
    desk: Desk,
    provider: "IdentityProvider",
    begun: tuple[Attempt, str | None] | None,
    code: str | None,
    state: str | None,
    issuer: str | None,
    error: str | None,
) -> PersonRecord:
    """The person that came back. Raises LoginRefused, ProviderUnavailable."""
    settings = provider.settings
    if begun is None or state is None or not hmac.compare_digest(begun[0].state.encode(), state.encode()):
        raise LoginRefused("login_state", "this login was not begun in this browser, or too long ago; log in again")
    if issuer is not None and issuer != settings.issuer:  # RFC 9207
        raise LoginRefused("login_issuer", "the answer comes from another identity provider")
    if error is not None or not code:
        raise LoginRefused("login_denied", "the identity provider let nobody in")
    attempt, tenant = begun
    try:
        claims = provider.person(code, attempt)
    except CodeRefused as refused:
        raise LoginRefused("login_code", str(refused)) from refused
    except JwtRefused as refused:
        raise LoginRefused(refused.reason, str(refused)) from refused
    people = desk.control("system").apply_groups(
        subject_digest(claims["iss"], claims["sub"]),
        display_name_of(claims),
        grants_of(groups_of(claims, settings.groups_claim), settings.roles),
    )
    return _chosen(people, tenant)


def _chosen(people: list[PersonRecord], tenant: str | None) -> PersonRecord:
    if not people:
        raise LoginRefused("login_groups", "none of your groups has a role here")
    places = {person.tenant or "": person for person in people}
    if tenant is not None and tenant not in places:
        raise LoginRefused("login_tenant", f"you have no role there; you have in: {', '.join(filter(None, places))}")
    if tenant is None and "" not in places and len(people) > 1:
        raise LoginRefused("login_tenant", f"say which with ?tenant=, of {', '.join(places)}")
    return places[tenant or ("" if "" in places else next(iter(places)))]
