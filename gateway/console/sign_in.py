"""Sign-in by identity provider or one-time token, and sign-out."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.admin.calls.access import AdminContext
from gateway.console.admin_calls import AdminCalls, Refused
from gateway.console.language import language_of
from gateway.console.session import FIELD, check_form, check_origin, cookies_of
from gateway.console.visit import path, render, texts
from gateway.database.errors import Invalid, NotFound
from gateway.identity.jwt import reason_of
from gateway.identity.keys import ApiKey, KeyRefused
from gateway.openai.asgi_client import caller_address

LIFE: Final = timedelta(minutes=60)
"""Of a session without an identity provider, whose settings say how long one is otherwise."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """Pages that require no session."""

    context: AdminContext
    admin: ASGIApp

    def routes(self) -> list[Route]:
        return [
            Route("/sign-in", self.show, methods=["GET"]),
            Route("/sign-in", self.by_token, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/signed-out", self.signed_out, methods=["GET"]),
        ]

    async def show(self, request: Request) -> Response:
        return self._page(request, again="again" in request.query_params)

    async def by_token(self, request: Request) -> Response:
        """Exchange a one-time token for a session."""
        check_origin(self.context, request)
        async with request.form(max_files=0, max_fields=10) as form:
            sent = texts(form).get("token", "").strip()
        try:
            key = await run_in_threadpool(self._spend, request, sent)
        except (KeyRefused, NotFound, Invalid) as error:
            return self._page(request, status=403, refused=str(error))
        response = RedirectResponse(path(), 303)
        cookies_of(self.context, request).set_session(response, key.token, int(self._life.total_seconds()))
        return response

    def _spend(self, request: Request, sent: str) -> ApiKey:
        """Return the new session. Raises KeyRefused, NotFound, Invalid."""
        try:
            bearer = self.context.sign_in_bearer(sent)
        except KeyRefused as error:
            self.context.on_refused(reason_of(error), caller_address(request.scope))
            raise
        return self.context.control(f"key:{bearer.token}").sign_in(bearer.token, life=self._life)[2]

    @property
    def _life(self) -> timedelta:
        provider = self.context.provider
        return LIFE if provider is None else timedelta(minutes=provider.settings.session_minutes)

    async def sign_out(self, request: Request) -> Response:
        """End the session and delete the cookie, also if the session has already ended."""
        cookies = cookies_of(self.context, request)
        token = request.cookies.get(cookies.session, "")
        async with request.form(max_files=0, max_fields=10) as form:
            check_form(self.context, request, token, texts(form).get(FIELD, ""))
        try:
            await AdminCalls(self.admin, token).call("POST", ("logout",))
        except Refused as refused:
            if refused.status != 401:
                raise
        response = RedirectResponse(path("signed-out"), 303)
        cookies.forget(response, session=True)
        return response

    async def signed_out(self, request: Request) -> Response:
        """Show the sign-out page, with a link to sign out at the identity provider if there is one."""
        provider = self.context.provider
        url = None if provider is None else await self.context.provider_pool.run(provider.end_session_url)
        return render(self.context, request, language_of(request), "signed_out.html", end_session=url)

    def _page(self, request: Request, *, status: int = 200, refused: str = "", again: bool = False) -> Response:
        has_provider = self.context.provider is not None and self.context.cookies is not None
        return render(
            self.context,
            request,
            language_of(request),
            "sign_in.html",
            status,
            has_provider=has_provider,
            refused=refused,
            again=again,
        )
