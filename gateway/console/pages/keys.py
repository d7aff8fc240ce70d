"""API keys of projects: create, rotate, revoke. The secret is shown only on the page that creates the key."""

from typing import Any, Final

from starlette.responses import Response

from gateway.console.page import Page, form
from gateway.console.visit import Visit, confirm

LISTS: Final = ("models", "endpoints", "regions", "networks")


async def listed(visit: Visit) -> Response:
    return await _list(visit)


async def _list(visit: Visit, made: Any = None) -> Response:
    asked = visit.request.query_params
    project, after = asked.get("project", ""), asked.get("after", "")
    page = await visit.of_tenant("keys", project=project, after=after, limit=100)
    projects = (await visit.of_tenant("projects", limit=200))["items"]
    return visit.render(
        "keys.html",
        shown_tenant=visit.tenant,
        active="keys",
        rows=page["items"],
        after=page["next"],
        project=project,
        projects=[each for each in projects if each["revoked_at"] is None],
        made=made,
    )


async def create(visit: Visit) -> Response:
    sent = {name: value.strip() for name, value in visit.form.items()}
    scopes = {name: _split(sent.get(name, "")) for name in LISTS}
    body = {"project": sent.get("project", ""), "label": sent.get("label", ""), "scopes": scopes}
    if sent.get("expires_on"):
        body["expires_at"] = f"{sent['expires_on']}T00:00:00Z"
    made = await visit.change("POST", "tenants", visit.tenant, "keys", body=body)
    visit.form = {}
    return await _list(visit, made.body)


async def rotate(visit: Visit) -> Response:
    made = await visit.change("POST", "tenants", visit.tenant, "keys", _key(visit), "rotate", body={})
    visit.form = {}
    return await _list(visit, made.body)


def _key(visit: Visit) -> str:
    return str(visit.request.path_params["key"])


confirm_revoke: Final = confirm(
    "keys.revoke",
    "keys.revoke_lead",
    "keys",
    lambda visit: ("tenants", visit.tenant, "keys", _key(visit)),
    _key,
    lambda visit: visit.here("keys"),
)


async def revoke(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "keys", _key(visit), "revoke")
    return visit.to("keys", done="key.revoked")


def _split(text: str) -> list[str] | None:
    """Split a comma-separated field. An empty field sets no bound."""
    return [each.strip() for each in text.split(",") if each.strip()] or None


PAGES: Final = (
    Page("/t/{tenant}/keys", listed),
    form("/t/{tenant}/keys/create", create, listed),
    form("/t/{tenant}/keys/{key}/rotate", rotate, listed),
    Page("/t/{tenant}/keys/{key}/revoke", confirm_revoke),
    form("/t/{tenant}/keys/{key}/revoke", revoke, confirm_revoke, fresh=True),
)
