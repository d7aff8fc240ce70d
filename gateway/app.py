"""The ASGI application: which path leads where. Nothing is decided here.

Inference routes are plain ASGI, not FastAPI: a framework's request handling costs a quarter of a millisecond, and the
pipeline has to see the client leave.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import time
from types import MappingProxyType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from backend.wire import Model, ModelList
from gateway.client import Client, Receive, Send, caller_address
from gateway.errors import GatewayError, InternalError, MethodNotAllowed, RouteNotFound
from gateway.health import Health
from gateway.inventory import Inventory
from gateway.openai.endpoint import CHAT, COMPLETIONS, Endpoint
from gateway.pipeline import Pipeline

OTHER_METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"]
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[Request], Awaitable[Response]]


class GatewayApp:
    """Inference goes straight to the pipeline; everything else through Starlette's router and its error handlers."""

    def __init__(self, pipeline: Pipeline, others: Starlette) -> None:
        self._pipeline = pipeline
        self._others = others
        self._endpoints: dict[tuple[str, str], Endpoint] = {("POST", e.path): e for e in (CHAT, COMPLETIONS)}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        if endpoint is not None:
            await self._pipeline.answer(endpoint, Client(scope, receive, send))
        else:
            await self._others(scope, receive, send)


def build_app(
    pipeline: Pipeline, inventory: Inventory, health: Health, mounts: Mapping[str, ASGIApp] = MappingProxyType({})
) -> GatewayApp:
    """`mounts`: applications of their own, by the path they are at."""
    authenticator, telemetry = pipeline.authenticator, pipeline.telemetry
    started = int(time())

    async def models(request: Request) -> Response:
        principal = await authenticator.authenticate(request.headers, caller_address(request.scope))
        listed = [
            Model(id=name, created=started, owned_by=principal.tenant) for name in inventory.models(principal.tenant)
        ]
        return _json(200, ModelList(data=listed).model_dump_json().encode())

    async def alive(request: Request) -> Response:
        return _json(200, b'{"status":"alive"}')

    async def ready(request: Request) -> Response:
        report = await health.report()
        return _json(200 if report.ready else 503, report.model_dump_json().encode())

    async def metrics(request: Request) -> Response:
        return Response(telemetry.exposition(), headers={"content-type": PROMETHEUS_TEXT})

    async def wrong_method(request: Request) -> Response:
        return await _refused(request, MethodNotAllowed(f"Use POST at {request.url.path}"))

    routes = [
        *(Route(endpoint.path, wrong_method, methods=OTHER_METHODS) for endpoint in (CHAT, COMPLETIONS)),
        Route("/v1/models", models, methods=["GET"]),
        Route("/healthz", alive, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        *(Mount(path, app) for path, app in mounts.items()),
    ]
    handlers: dict[Any, Any] = {GatewayError: _refused, HTTPException: _http_error, Exception: _failed}
    return GatewayApp(pipeline, Starlette(routes=routes, exception_handlers=handlers))


async def _refused(request: Request, error: GatewayError) -> Response:
    response = _json(error.http_status, error.body())
    for name, value in error.headers():
        response.headers[name.decode()] = value.decode()
    return response


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        return await _refused(request, MethodNotAllowed(f"{request.method} is not offered at this URL"))
    if error.status_code == 404:
        return await _refused(request, RouteNotFound("There is nothing at this URL; see docs/api.md for what there is"))
    return await _failed(request, error)


async def _failed(request: Request, error: Exception) -> Response:
    return await _refused(request, InternalError("The gateway failed"))


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, headers={"content-type": "application/json"})
