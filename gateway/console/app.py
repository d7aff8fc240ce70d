"""Console application: routes, session and form checks, error pages, and response headers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.app import BoundedBody
from gateway.admin.calls.access import AdminContext
from gateway.console import static_files
from gateway.console.admin_calls import AdminCalls, Refused
from gateway.console.all_pages import PAGES
from gateway.console.language import COOKIE, NAMES, language_of
from gateway.console.page import Page
from gateway.console.session import FIELD, check_origin, cookies_of, is_fresh, is_own_form
from gateway.console.sign_in import SignIn
from gateway.console.visit import ONCE, ROOT, STATE, Visit, path, render, texts
from gateway.database.errors import DatabaseUnavailable
from gateway.nearest_route import methods_here

PREFIX: Final = ROOT
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def build_console(context: AdminContext, admin: ASGIApp, inference: Callable[[], ASGIApp]) -> ASGIApp:
    """Return the ASGI application to mount at PREFIX. `admin`: the admin API. `inference`: the gateway's own
    application."""
    console = Console(context, admin, inference)
    sign_in = SignIn(context, admin)
    routes = [
        Route("/static/{version}/{name}", static_files.serve),
        Route("/language/{code}", console.choose_language),
        *sign_in.routes(),
        *console.routes(PAGES),
    ]
    errors = {HTTPException: console.http_error, Refused: console.refused, DatabaseUnavailable: console.unavailable}
    app = Starlette(routes=routes, exception_handlers={**errors, Exception: console.failed})
    app.router.redirect_slashes = False
    return Marked(BoundedBody(app))


@dataclass(frozen=True, slots=True)
class Console:
    """Pages that require a session."""

    context: AdminContext
    admin: ASGIApp
    inference: Callable[[], ASGIApp]

    def routes(self, pages: Sequence[Page]) -> list[Route]:
        return [Route(page.path, self._of(page), methods=[page.method]) for page in pages]

    def _of(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        answer = self._shown if page.method == "GET" else self._sent

        async def endpoint(request: Request) -> Response:
            return await answer(page, request)

        return endpoint

    async def _visit(self, request: Request) -> Visit | None:
        """Return the visit, or None without a valid session."""
        token = request.cookies.get(cookies_of(self.context, request).session, "")
        client = None if request.client is None else (request.client.host, request.client.port)
        api = AdminCalls(self.admin, token, client)
        try:
            me = await api.get("me") if token else None
        except Refused as refused:
            if refused.status != 401:
                raise
            me = None
        return None if me is None else Visit(request, self.context, language_of(request), api, me, self.inference)

    async def _shown(self, page: Page, request: Request) -> Response:
        visit = await self._visit(request)
        if visit is None:
            return self._to_sign_in(request)
        request.state.visit = visit
        return await page.handler(visit)

    async def _sent(self, page: Page, request: Request) -> Response:
        """Handle a form: check its origin, its session and, where the page requires it, a recent sign-in; then run
        it. What was typed into a form that is not taken is kept in a page that sends it."""
        visit = await self._visit(request)
        if visit is not None:
            request.state.visit = visit
        async with request.form(max_files=0) as form:
            sent = texts(form)
        check_origin(self.context, request)
        if visit is None:
            return self._kept(request, visit, sent, "ended") if sent else self._to_sign_in(request)
        visit.form = sent
        if not is_own_form(self.context, visit.api.token, sent.get(FIELD, "")):
            return self._kept(request, visit, sent, "other_session")
        if page.fresh and not is_fresh(visit.me["authenticated_at"], self.context.now()):
            return self._kept(request, visit, sent, "not_fresh")
        try:
            return await page.handler(visit)
        except Refused as refused:
            if page.shown_by is None or refused.status not in (403, 409, 412, 422):
                raise
            visit.problem, visit.status = refused, refused.status
            return await page.shown_by(visit)

    def _kept(self, request: Request, visit: Visit | None, sent: Mapping[str, str], why: str) -> Response:
        """A page that says why a form was not taken (`why`: key of the text) and sends it again, with the token of
        the session that there is then. A script is told as in `_to_sign_in`: its page has what was typed."""
        if request.headers.get("hx-request") == "true":
            return self._notice(request, "session.ended" if visit is None else f"kept.{why}", signs_in=visit is None)
        kept = [(name, value) for name, value in sent.items() if name != FIELD]
        return render(
            self.context,
            request,
            language_of(request),
            "kept.html",
            401 if visit is None else 403,
            visit=visit,
            why=why,
            signs_in=why != "other_session",
            action=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            kept=kept,
            shown=[each for each in kept if visit is not None and each[0] not in (ONCE, STATE) and each[1]],
        )

    def _to_sign_in(self, request: Request) -> Response:
        """Redirect to the sign-in page. A script that fetches a part of a page gets a notice for that page, which stays
        with what is typed in it."""
        if request.headers.get("hx-request") != "true":
            return RedirectResponse(path("sign-in"), 303)
        return self._notice(request, "session.ended", signs_in=True)

    def _notice(self, request: Request, text: str, *, signs_in: bool) -> Response:
        notice = render(self.context, request, language_of(request), "_session.html", text=text, signs_in=signs_in)
        notice.headers["hx-retarget"], notice.headers["hx-reswap"] = "#session", "innerHTML"
        return notice

    async def choose_language(self, request: Request) -> Response:
        """Set the language cookie for a year and redirect to the console."""
        response = RedirectResponse(path(), 303)
        if (code := request.path_params["code"]) in NAMES:
            secure = request.url.scheme == "https"
            response.set_cookie(
                COOKIE, code, max_age=365 * 86400, path=ROOT, secure=secure, httponly=True, samesite="lax"
            )
        return response

    async def refused(self, request: Request, error: Exception) -> Response:
        """Show an error of the admin API as a page."""
        assert isinstance(error, Refused)  # noqa: S101  # what it was registered for
        if error.status == 401:
            return self._to_sign_in(request)
        return self._error(request, error.status, error.detail)

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        response = self._error(request, error.status_code, "")
        if error.status_code == 405:
            response.headers["allow"] = methods_here(request)
        return response

    async def unavailable(self, request: Request, error: Exception) -> Response:
        return self._error(request, 503, str(error))

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return 500 without details of the error."""
        return self._error(request, 500, "")

    def _error(self, request: Request, status: int, detail: str) -> Response:
        visit: Visit | None = getattr(request.state, "visit", None)
        me = None if visit is None else visit.me
        shown = status if status in (400, 403, 404, 405, 409, 412, 413, 422, 503) else 500
        return render(
            self.context,
            request,
            language_of(request),
            "error.html",
            status,
            visit=visit,
            me=me,
            code=shown,
            detail=detail,
        )


class Marked:
    """Middleware that sets the headers of every response. Pages are never cached."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("cache-control", "no-store")
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, marked)
