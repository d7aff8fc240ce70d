"""``/v1/models``, and what Ollama's clients ask before a chat: ``/api/tags``, ``/api/show``, ``/api/ps``,
``/api/version``."""

from datetime import UTC, datetime
from time import time

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.configuration.bounds import Bounds
from gateway.content.encoded_body import read_body
from gateway.directory.backend_registry import no_such_model
from gateway.errors import InvalidRequest, RouteNotFound
from gateway.nearest_route import unknown_url
from gateway.offers.listing import OLLAMA_VERSION, ollama_model, ollama_shown, openai_model
from gateway.offers.offer import Offered, Offers
from gateway.openai.asgi_client import Client, caller_address, headers_of, name_caller
from gateway.request.authentication import Authenticator

MODELS = "/v1/models"
TAGS, SHOW, RUNNING, VERSION = "/api/tags", "/api/show", "/api/ps", "/api/version"
PATHS = (MODELS, TAGS, SHOW, RUNNING, VERSION)
MAX_BODY = 64 << 10


class ModelRoutes:
    """`known`: the routes that there are, for a path that is none."""

    def __init__(self, authenticator: Authenticator, offers: Offers, bounds: Bounds, known: tuple[str, ...]) -> None:
        self._authenticator = authenticator
        self._offers = offers
        self._bounds = bounds
        self._known = known
        self._started = int(time())
        self._since = datetime.fromtimestamp(self._started, UTC).isoformat().replace("+00:00", "Z")

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/api/tags", self.tags, methods=["GET"]),
            Route("/api/ps", self.tags, methods=["GET"]),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        """The models that the caller may ask for."""
        offered, tenant = await self._offered(request), request.state.principal.tenant
        data = [openai_model(one, self._started, tenant) for one in offered]
        return _json({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """One of them, by its name. Raises ModelNotFound where the caller is offered none of that name, and
        RouteNotFound without a name."""
        offered, asked = await self._offered(request), request.path_params["model"]
        if not asked:
            raise RouteNotFound(unknown_url(request.method, request.url.path, self._known))
        return _json(openai_model(_named(offered, asked), self._started, request.state.principal.tenant))

    async def tags(self, request: Request) -> Response:
        return _json({"models": [ollama_model(one, self._since) for one in await self._offered(request)]})

    async def show(self, request: Request) -> Response:
        """Raises ModelNotFound, InvalidRequest."""
        offered = await self._offered(request)
        client = Client(request.scope, request.receive, request._send)  # its body is read within the same bounds
        raw = await read_body(client, MAX_BODY, self._bounds.now.body_timeout_s)
        try:
            body = from_json(raw)
            asked = body.get("model") or body.get("name")
        except (ValueError, AttributeError):
            raise InvalidRequest("The body is no JSON object; send one with a model", code="invalid_json") from None
        if not isinstance(asked, str):
            raise InvalidRequest("model: it is missing; add it", param="model", code="missing_required_parameter")
        return _json(ollama_shown(_named(offered, asked), self._since))

    async def version(self, request: Request) -> Response:
        """Version of the API, for clients that need one."""
        return _json({"version": OLLAMA_VERSION})

    async def _offered(self, request: Request) -> list[Offered]:
        """The principal is left in the request's state, for the error's record."""
        principal = await self._authenticator.authenticate(headers_of(request.scope), caller_address(request.scope))
        request.state.principal = principal
        name_caller(request.scope, principal.tenant)
        return self._offers.of(principal)


def _named(offered: list[Offered], asked: str) -> Offered:
    found = next((one for one in offered if one.name == asked), None)
    if found is None:
        raise no_such_model([one.name for one in offered])
    return found


def _json(value: object) -> Response:
    return Response(to_json(value), headers={"content-type": "application/json"})
