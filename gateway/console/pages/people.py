"""People and roles of a tenant or of the installation's staff, which use the same pages; and the user's own account
with its open sessions."""

from typing import Final, get_args

from starlette.responses import RedirectResponse, Response

from gateway.console.page import Page, form
from gateway.console.visit import Visit, confirm, path
from gateway.identity.keys import parse_key
from gateway.records.control import Role


def _base(visit: Visit) -> tuple[object, ...]:
    return ("staff",) if visit.tenant is None else ("tenants", visit.tenant, "people")


def _home(visit: Visit) -> str:
    return visit.path("staff") if visit.tenant is None else visit.here("people")


def _person(visit: Visit) -> str:
    return str(visit.request.path_params["person"])


async def listed(visit: Visit) -> Response:
    page = await visit.get(*_base(visit), after=visit.request.query_params.get("after", ""), limit=100)
    roles = [role for role in get_args(Role) if visit.tenant is None or role != "operator"]
    return visit.render(
        "people.html",
        shown_tenant=visit.tenant,
        active="staff" if visit.tenant is None else "people",
        rows=page["items"],
        after=page["next"],
        all_roles=roles,
        base=_home(visit),
        manages=visit.may("staff.manage" if visit.tenant is None else "people.manage"),
    )


def _roles(visit: Visit) -> list[str]:
    return [role for role in get_args(Role) if visit.form.get(f"role-{role}")]


async def create(visit: Visit) -> Response:
    body = {"display_name": visit.form.get("display_name", "").strip(), "roles": _roles(visit)}
    await visit.change("POST", *_base(visit), body=body)
    return _back(visit, "person.created")


async def show(visit: Visit) -> Response:
    found = await visit.api.call("GET", (*_base(visit), _person(visit)))
    roles = [role for role in get_args(Role) if visit.tenant is None or role != "operator"]
    return visit.render(
        "person.html",
        shown_tenant=visit.tenant,
        active="staff" if visit.tenant is None else "people",
        person=found.body,
        state=found.headers.get("etag", "").strip('"'),
        all_roles=roles,
        base=_home(visit),
        tokens=(await visit.get(*_base(visit), _person(visit), "tokens", limit=200))["items"],
        manages=visit.may("staff.manage" if visit.tenant is None else "people.manage"),
    )


async def set_roles(visit: Visit) -> Response:
    await visit.change("PUT", *_base(visit), _person(visit), "roles", body={"roles": _roles(visit)})
    return _back(visit, "person.changed")


async def revoke_token(visit: Visit) -> Response:
    token = visit.request.path_params["token"]
    await visit.change("POST", *_base(visit), _person(visit), "tokens", token, "revoke")
    return _back(visit, "session.ended")


confirm_revoke: Final = confirm(
    "people.revoke", "people.revoke_lead", "people", lambda visit: (*_base(visit), _person(visit)), _person, _home
)


async def revoke(visit: Visit) -> Response:
    await visit.change("POST", *_base(visit), _person(visit), "revoke")
    return _back(visit, "person.revoked")


def _back(visit: Visit, done: str) -> Response:
    return visit.to("staff" if visit.tenant is None else "people", done=done)


def _pages(prefix: str) -> tuple[Page, ...]:
    return (
        Page(prefix, listed),
        form(f"{prefix}/create", create, listed),
        Page(f"{prefix}/{{person}}", show),
        form(f"{prefix}/{{person}}/roles", set_roles, show),
        form(f"{prefix}/{{person}}/tokens/{{token}}/revoke", revoke_token, show),
        Page(f"{prefix}/{{person}}/revoke", confirm_revoke),
        form(f"{prefix}/{{person}}/revoke", revoke, confirm_revoke, fresh=True),
    )


async def account(visit: Visit) -> Response:
    return visit.render(
        "account.html", sessions=await visit.get("sessions"), own=parse_key(visit.api.token, "admin").id
    )


async def end_session(visit: Visit) -> Response:
    await visit.change("POST", "sessions", visit.request.path_params["token"], "end")
    return RedirectResponse(path("account", done="session.ended"), 303)


PAGES: Final = (
    Page("/account", account),
    form("/account/sessions/{token}/end", end_session, account),
    *_pages("/t/{tenant}/people"),
    *_pages("/staff"),
)
