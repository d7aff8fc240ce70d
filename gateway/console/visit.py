"""A browser's request with a session: user, admin API client, and page rendering."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from gateway.admin.calls.access import AdminContext
from gateway.console import navigation
from gateway.console.admin_calls import AdminCalls, Answer, Refused
from gateway.console.drawing import charts
from gateway.console.language import NAMES, Language
from gateway.console.session import FIELD, form_token
from gateway.console.static_files import address
from gateway.identity.roles import OF_OPERATOR, Actor, Permission, check

ROOT: Final = "/console"
ONCE: Final = "once"
STATE: Final = "state"

_PAGES: Final = Environment(
    loader=PackageLoader("gateway.console"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=["jinja2.ext.do"],
)


def marked(text: str) -> Markup:
    """A sentence of the gateway, escaped, with what stands between backticks as code."""
    parts = [escape(part) for part in str(text).split("`")]
    if len(parts) % 2 == 0:  # a backtick without its other
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


_PAGES.filters["marked"] = marked


def compile_templates() -> None:
    for name in _PAGES.list_templates():
        _PAGES.get_template(name)


@dataclass(slots=True)
class Visit:
    """`me`: the user, as returned by the admin API. `problem`: why the submitted form was refused. `form`: its fields,
    to be shown again. `status`: of the page. `inference`: the gateway's application, for calls of models."""

    request: Request
    context: AdminContext
    language: Language
    api: AdminCalls
    me: Mapping[str, Any]
    inference: Callable[[], ASGIApp]
    problem: Refused | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    @property
    def actor(self) -> Actor:
        return Actor(self.me["person"], self.me["tenant"], tuple(self.me["roles"]), "")

    @property
    def tenant(self) -> str | None:
        tenant: str | None = self.request.path_params.get("tenant")
        return tenant

    @property
    def owner(self) -> tuple[str, ...]:
        """Whose policies the page shows, as segments of the admin API: the tenant's or the operator's."""
        return ("operator",) if self.tenant is None else ("tenants", self.tenant)

    def may(self, permission: Permission, tenant: str | None = None) -> bool:
        return navigation.may(self.actor, permission, tenant or self.tenant)

    def need(self, permission: Permission) -> None:
        """Require a permission for a page that only links to guarded actions. Raises Refused with the admin API's
        message."""
        asked = permission if self.tenant is not None else OF_OPERATOR.get(permission, permission)
        verdict = check(self.actor, asked, self.tenant)
        if not verdict.allowed:
            raise Refused(403, verdict.because)

    async def get(self, *segments: object, **query: Any) -> Any:
        return await self.api.get(*segments, **query)

    async def of_tenant(self, *segments: object, **query: Any) -> Any:
        """``GET /tenants/<the page's>/...``, or ``GET /operator/...`` on a page of no tenant."""
        return await self.api.get(*self.owner, *segments, **query)

    async def change(self, method: str, *segments: object, body: Any = None, **query: Any) -> Answer:
        """Apply the submitted form: once, even if it is sent twice, and only to the state that the page showed."""
        headers = {}
        if self.form.get(ONCE):
            headers["idempotency-key"] = self.form[ONCE]
        if self.form.get(STATE):
            headers["if-match"] = self.form[STATE]
        return await self.api.call(method, segments, query=query, body=body, headers=headers)

    def render(self, template: str, **values: Any) -> Response:
        """Render a page, or a fragment for htmx (a template whose name begins with ``_``)."""
        return render(
            self.context, self.request, self.language, template, self.status, visit=self, me=self.me, **values
        )

    def path(self, *segments: object, **query: object) -> str:
        """Return a path of the console."""
        return path(*segments, **query)

    def here(self, *segments: object, **query: object) -> str:
        """Return a path below this tenant's pages, or the operator's."""
        below = ("operator",) if self.tenant is None else ("t", self.tenant)
        return path(*below, *segments, **query)

    def to(self, *segments: object, **query: object) -> Response:
        """Redirect to a page of this tenant, or of the console without a tenant."""
        target = path(*segments, **query) if self.tenant is None else self.here(*segments, **query)
        return RedirectResponse(target, 303)


Handler = Callable[[Visit], Awaitable[Response]]


def path(*segments: object, **query: object) -> str:
    base = "/".join([ROOT, *(quote(str(each), safe="") for each in segments if each != "")])
    base = f"{ROOT}/" if base == ROOT else base
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{base}?{urlencode(asked)}" if asked else base


def render(
    context: AdminContext, request: Request, language: Language, template: str, status: int = 200, **values: Any
) -> Response:
    """Render a page, with or without a session."""
    visit: Visit | None = values.get("visit")
    session = "" if visit is None else visit.api.token
    shared = {
        "t": language.text,
        "known": language.known,
        "number": language.number,
        "article": language.article,
        "instant": language.instant,
        "language": language,
        "languages": NAMES,
        "request": request,
        "asset": address,
        "charts": charts,
        "path": path,
        "pretty": partial(json.dumps, indent=2, ensure_ascii=False),
        "csrf_field": FIELD,
        "csrf": form_token(context, session) if session else "",
        "once": token_urlsafe,
        "navigation": navigation,
        "done": request.query_params.get("done", ""),
        "shown_tenant": None,
        "visit": None,
        "me": None,
    }
    return HTMLResponse(_PAGES.get_template(template).render(shared | values), status)


def texts(form: FormData) -> dict[str, str]:
    """Return the text fields of a form, the last of each name. Files are omitted."""
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}


def confirm(
    title: str,
    lead: str,
    active: str,
    segments: Callable[[Visit], tuple[object, ...]],
    name: Callable[[Visit], str],
    back: Callable[[Visit], str],
) -> Handler:
    """A page that asks once more before something that cannot be undone. `title`, `lead`: keys of texts; `segments`: of
    the object at the admin API, which is read first, so that only this state of it is changed."""

    async def show(visit: Visit) -> Response:
        found = await visit.api.call("GET", segments(visit))
        state = found.headers.get("etag", "").strip('"')
        return visit.render(
            "confirm.html",
            shown_tenant=visit.tenant,
            active=active,
            title=title,
            lead=lead,
            name=name(visit),
            back=back(visit),
            state=state,
            keep={},
        )

    return show
