"""``/v1/responses/{id}`` and what is below it: Starlette's handlers, which raise the API's errors."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.apis.responses.request import ENCRYPTED, LOGPROBS
from gateway.batches.objects import limit_of, listed, newest_first
from gateway.errors import InvalidRequest, ObjectNotFound
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import caller_address, headers_of, name_caller
from gateway.request.authentication import Authenticator
from gateway.responses.responses import Responses

PATH = "/v1/responses"
MAX_LISTED = 100
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ResponseRoutes:
    """Each handler authenticates first; the principal is left in the request's state, for the error's record."""

    authenticator: Authenticator
    responses: Responses

    def routes(self) -> list[Route]:
        return [
            Route(f"{PATH}/{{id}}", self.response, methods=["GET", "DELETE"]),  # one, so that a 405 names both
            Route(f"{PATH}/{{id}}/cancel", self.cancel, methods=["POST"]),
            Route(f"{PATH}/{{id}}/input_items", self.input_items, methods=["GET"]),
        ]

    async def response(self, request: Request) -> Response:
        if request.method == "DELETE":
            return await self.delete(request)
        principal, query = await self._principal(request), request.query_params
        _check_include(query)
        if query.get("stream", "false") != "false" or "starting_after" in query:
            name = "starting_after" if "starting_after" in query else "stream"
            raise InvalidRequest(
                f"{name}: a kept response is given whole; leave it out", param=name, code="unsupported_parameter"
            )
        return _json(await self.responses.get(principal, request.path_params["id"]))

    async def delete(self, request: Request) -> Response:
        principal, id_ = await self._principal(request), request.path_params["id"]
        await self.responses.delete(principal, id_)
        return _json(to_json({"id": id_, "object": "response", "deleted": True}))

    async def cancel(self, request: Request) -> Response:
        principal = await self._principal(request)
        return _json(await self.responses.cancel(principal, request.path_params["id"]))

    async def input_items(self, request: Request) -> Response:
        principal, query = await self._principal(request), request.query_params
        _check_include(query)
        limit, after, backwards = limit_of(query, 20, MAX_LISTED), query.get("after"), newest_first(query)
        items = await self.responses.items(principal, request.path_params["id"])
        if backwards:
            items.reverse()
        start = 0
        if after is not None:
            start = next((place for place, item in enumerate(items, 1) if item["id"] == after), -1)
            if start < 0:
                raise ObjectNotFound("This response has no such item; GET its input_items lists them", param="after")
        return _json(to_json(listed(items[start : start + limit], len(items) > start + limit)))

    async def _principal(self, request: Request) -> Principal:
        address = caller_address(request.scope)
        principal = await self.authenticator.authenticate(headers_of(request.scope), address)
        request.state.principal = principal
        name_caller(request.scope, principal.tenant)
        return principal


def _check_include(query: QueryParams) -> None:
    """What may be asked for is there if it was asked for when the response was made. Raises InvalidRequest."""
    if not {*query.getlist("include"), *query.getlist("include[]")} <= {ENCRYPTED, LOGPROBS}:
        raise InvalidRequest(
            f"include: this is not offered; send {ENCRYPTED} or {LOGPROBS}", param="include", code="invalid_value"
        )


def _json(body: bytes) -> Response:
    return Response(body, headers={"content-type": "application/json"})
