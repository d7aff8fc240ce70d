"""Application of the admin API: its routers, error handlers and middleware. OpenAPI at ``/openapi.json``, without pages
that load scripts from other hosts."""

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin import (
    backends,
    deployments,
    keys,
    limits,
    login,
    models,
    oversight,
    people,
    policies,
    sessions,
    tenants,
    usage,
)
from gateway.admin import explain as study
from gateway.admin.calls.access import AdminContext
from gateway.admin.calls.openapi import AdminApi
from gateway.admin.calls.problems import install_handlers
from gateway.admin.record import batches, calls, changes, health, incidents, marks, packs, rights

PREFIX = "/admin/v1"
MAX_BODY = 2 << 20
TOO_LARGE = HTTPException(413, f"the body is larger than {MAX_BODY} bytes; send less at once")


def build_admin(context: AdminContext) -> FastAPI:
    """Return the application, which the caller mounts at PREFIX."""
    app = AdminApi(
        title="Domicile admin API",
        version="1",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": PREFIX}],
        root_path_in_servers=False,
        redirect_slashes=False,  # the redirect would go to whatever host the request names
        generate_unique_id_function=operation_id,
    )
    app.state.context = context
    install_handlers(app)
    routes: list[APIRoute] = []
    for router in (
        people.bootstrap_router,
        login.router,
        sessions.router,
        tenants.router,
        models.router,
        policies.tenant_router,
        policies.operator_router,
        study.router,
        backends.router,
        keys.router,
        people.tenant_router,
        people.staff_router,
        people.tenant_actors_router,
        people.staff_actors_router,
        limits.router,
        deployments.router,
        usage.router,
        oversight.router,
        marks.router,
        calls.router,
        calls.summary_router,
        changes.router,
        changes.installation_router,
        rights.router,
        incidents.router,
        health.router,
        packs.router,
        batches.router,
    ):
        app.include_router(router)
        routes += [route for route in router.routes if isinstance(route, APIRoute)]
    app.state.methods = [(route.path_regex, frozenset(route.methods or ())) for route in routes]
    app.state.paths = sorted({route.path for route in routes})
    app.add_middleware(BoundedBody)
    app.add_middleware(NoStore)
    return app


def operation_id(route: APIRoute) -> str:
    """Return the operation id: the name of the function, with a suffix for routes of the staff and the operator, which
    share functions with those of tenants."""
    return f"{route.name}_of_staff" if route.path.startswith(("/staff", "/operator")) else route.name


class BoundedBody:
    """Middleware that reads at most MAX_BODY bytes of a request's body. A larger one is answered with 413."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = next((value for name, value in scope.get("headers", ()) if name == b"content-length"), b"0")
        size = 0

        async def bounded() -> Message:
            nonlocal size
            if int(declared) > MAX_BODY:  # before a client that waits for 100 sends it
                raise TOO_LARGE
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise TOO_LARGE
            return message

        await self._app(scope, bounded, send)


class NoStore:
    """Middleware that forbids caches to store a response and browsers to guess its media type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("cache-control", "no-store")
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, marked)
