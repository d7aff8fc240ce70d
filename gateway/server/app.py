"""The ASGI application: which path leads where. Nothing is decided here.

Inference routes are plain ASGI, not FastAPI: a framework's request handling costs a quarter of a millisecond, and the
pipeline has to see the client leave.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from time import time
from types import MappingProxyType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from gateway.admin.calls.problems import problem
from gateway.apis.endpoints import ENDPOINTS, OTHER_PATHS
from gateway.apis.ollama.lines import error_line
from gateway.batches.routes import PATHS as BATCH_PATHS
from gateway.directory.backend_registry import BackendRegistry
from gateway.directory.web_origins import WebOrigins
from gateway.errors import GatewayError, InternalError, MethodNotAllowed, RouteNotFound
from gateway.identity.principal import Principal
from gateway.nearest_route import methods_here, not_offered, unknown_url
from gateway.offers.routes import MODELS
from gateway.offers.routes import PATHS as MODEL_PATHS
from gateway.openai.asgi_client import Client, Receive, Send, caller_address
from gateway.openai.endpoints import Endpoint
from gateway.request.pipeline import Pipeline
from gateway.responses.routes import PATH as RESPONSES_PATH
from gateway.server.health import Health

ROUTES = (*(endpoint.path for endpoint in ENDPOINTS), *MODEL_PATHS, *BATCH_PATHS)
"""What a caller may look for: the other paths are an operator's."""
_KNOWN = {path: path for path in ROUTES} | {path: endpoint.path for path, endpoint in OTHER_PATHS.items()}
CONSOLE = "/console"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Network = IPv4Network | IPv6Network
Operators = Callable[[], Sequence[Network]]
Exposition = Callable[[], Awaitable[bytes]]
"""The metrics, in Prometheus' text format."""
Handler = Callable[[Request], Awaitable[Response]]
Refused = Callable[[Request, GatewayError], Awaitable[Response]]


class GatewayApp:
    """Inference goes straight to the pipeline; everything else through Starlette's router and its error handlers."""

    def __init__(self, pipeline: Pipeline, others: Starlette, refused: Refused, origins: WebOrigins) -> None:
        self._origins = origins
        self._pipeline = pipeline
        self._others = others
        self._refused = refused
        self._endpoints: dict[str, Endpoint] = {e.path: e for e in ENDPOINTS} | OTHER_PATHS

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope.get("path", ""))
        if endpoint is not None and scope["method"] == "POST":
            await self._pipeline.answer(endpoint, Client(scope, receive, send))
            return
        if scope["type"] == "http" and self._origins.known:
            if scope["method"] == "OPTIONS" and (headers := self._origins.preflight(scope)) is not None:
                await send({"type": "http.response.start", "status": 204, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
            send = self._origins.exposing(scope, send)
        if endpoint is None:
            await self._others(scope, receive, send)
        else:  # whatever the method is, also one that no router knows
            error = MethodNotAllowed(f"Use POST at {endpoint.path}", allow="POST")
            answer = await self._refused(Request(scope), error)
            answer.body = endpoint.format.error(error)
            answer.headers["content-length"] = str(len(answer.body))
            await answer(scope, receive, send)


class Handlers:
    """Answers at every path but those of inference: models, health and metrics; and answers every error.

    `operators`: from where metrics and the details of readiness may be read. `exposition`: the metrics.
    `of_cell`: those of the cell.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        registry: BackendRegistry,
        health: Health,
        operators: Operators,
        exposition: Exposition,
        of_cell: Exposition,
    ) -> None:
        self._exposition = exposition
        self._of_cell = of_cell
        self._authenticator = pipeline.authenticator
        self._recorder = pipeline.recorder
        self._registry = registry
        self._health = health
        self._operators = operators
        self._started = int(time())

    async def alive(self, request: Request) -> Response:
        """200 while the event loop runs."""
        return _json(200, b'{"status":"alive"}')

    async def ready(self, request: Request) -> Response:
        """200 or 503; for operators with every part that was asked."""
        report = await self._health.report()
        body = report.model_dump_json() if self._is_operator(request) else report.model_dump_json(include={"ready"})
        return _json(200 if report.ready else 503, body.encode())

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format; 404 for all but operators."""
        return await self._told(request, self._exposition)

    async def cell_metrics(self, request: Request) -> Response:
        """The same of the cell: its backends, which only gateways may ask, and its budgets."""
        return await self._told(request, self._of_cell)

    async def _told(self, request: Request, exposition: Exposition) -> Response:
        if not self._is_operator(request):
            return await self.http_error(request, HTTPException(404))
        return Response(await exposition(), headers={"content-type": PROMETHEUS_TEXT})

    async def refused(self, request: Request, error: GatewayError) -> Response:
        """OpenAI's or Ollama's error body. Nothing else stands for the request on record, so it is counted."""
        path = request.url.path
        parents = (MODELS, RESPONSES_PATH, *BATCH_PATHS)
        above = next((each for each in parents if path.startswith(f"{each}/")), None)
        endpoint = above or _KNOWN.get(path)
        principal: Principal | None = getattr(request.state, "principal", None)
        self._recorder.turned_away(error, endpoint, caller_address(request.scope), principal)
        return _answer(error, error_line(error) if path.startswith("/api/") else error.body())

    async def http_error(self, request: Request, error: HTTPException) -> Response:
        """What Starlette's router raises, as the admin API's problem or as the gateway's own error."""
        if error.status_code == 404 and request.url.path.startswith("/admin"):
            return problem(404, "there is nothing at this URL; the admin API is at /admin/v1")
        return await self.refused(request, _gateway_error(request, error))

    async def failed(self, request: Request, error: Exception) -> Response:
        """500, without a word of what failed."""
        return await self.refused(request, InternalError("The gateway failed"))

    def _is_operator(self, request: Request) -> bool:
        address = caller_address(request.scope)
        return address is not None and any(address in network for network in self._operators())


def build_app(
    pipeline: Pipeline,
    registry: BackendRegistry,
    health: Health,
    operators: Operators,
    exposition: Exposition,
    of_cell: Exposition,
    mounts: Mapping[str, ASGIApp] = MappingProxyType({}),
    more: Sequence[Route] = (),
    origins: WebOrigins | None = None,
) -> GatewayApp:
    """`operators`: from where metrics and the details of readiness may be read. `exposition`: the metrics,
    `of_cell`: those of the cell. `mounts`: applications by path. `more`: routes of ``/v1`` that are no
    inference. `origins`: of web pages that may call."""
    handlers = Handlers(pipeline, registry, health, operators, exposition, of_cell)
    routes = [
        Route("/healthz", handlers.alive, methods=["GET"]),
        Route("/readyz", handlers.ready, methods=["GET"]),
        Route("/metrics", handlers.metrics, methods=["GET"]),
        Route("/metrics/cell", handlers.cell_metrics, methods=["GET"]),
        *more,
        *(Mount(path, app) for path, app in mounts.items()),
        *(Route(path, _to_folder, methods=["GET"]) for path in mounts if path == CONSOLE),
    ]
    of_errors: dict[Any, Any] = {
        GatewayError: handlers.refused,
        HTTPException: handlers.http_error,
        Exception: handlers.failed,
    }
    others = Starlette(routes=routes, exception_handlers=of_errors)
    others.router.redirect_slashes = False  # the redirect would go to whatever host the request names
    return GatewayApp(pipeline, others, handlers.refused, origins or WebOrigins())


async def _to_folder(request: Request) -> Response:
    """``/console`` to ``/console/``, whatever host the request names."""
    return RedirectResponse(f"{CONSOLE}/", 308)


def _answer(error: GatewayError, body: bytes) -> Response:
    response = _json(error.http_status, body)
    for name, value in error.headers():
        response.headers[name.decode()] = value.decode()
    return response


def _gateway_error(request: Request, error: HTTPException) -> GatewayError:
    if error.status_code == 405 and not_offered(request.url.path) is None:
        return MethodNotAllowed(f"{request.method} is not offered at this URL", allow=methods_here(request))
    if error.status_code in (404, 405):
        return RouteNotFound(unknown_url(request.method, request.url.path, ROUTES))
    return InternalError("The gateway failed")


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, headers={"content-type": "application/json"})
