"""``/v1/files`` and ``/v1/batches``: Starlette's handlers, which raise the API's errors."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.batches.batches import Batches
from gateway.batches.content.files import Files, owner_of
from gateway.batches.objects import (
    MAX_LISTED,
    batch_object,
    file_object,
    limit_of,
    listed,
    new_batch,
    newest_first,
    purpose_of,
)
from gateway.configuration.bounds import Bounds
from gateway.content.encoded_body import read_body
from gateway.content.retained_content import SUBJECT_HEADER
from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedEncoding
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client, caller_address, headers_of, name_caller
from gateway.request.authentication import Authenticator

FORM_OVERHEAD = 64 << 10
"""Bytes of a form around its file."""
FILES, BATCHES = "/v1/files", "/v1/batches"
PATHS = (FILES, BATCHES)
MAX_BATCH_BODY = 64 << 10
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class BatchRoutes:
    """Each handler authenticates first; the principal is left in the request's state, for the error's record."""

    authenticator: Authenticator
    files: Files
    batches: Batches
    bounds: Bounds

    def routes(self) -> list[Route]:
        return [
            Route(FILES, self.files_of_project, methods=["GET"]),
            Route(FILES, self.upload, methods=["POST"]),
            Route(f"{FILES}/{{id}}", self.file, methods=["GET"]),
            Route(f"{FILES}/{{id}}", self.delete_file, methods=["DELETE"]),
            Route(f"{FILES}/{{id}}/content", self.content, methods=["GET"]),
            Route(BATCHES, self.batches_of_project, methods=["GET"]),
            Route(BATCHES, self.create_batch, methods=["POST"]),
            Route(f"{BATCHES}/{{id}}", self.batch, methods=["GET"]),
            Route(f"{BATCHES}/{{id}}/cancel", self.cancel_batch, methods=["POST"]),
        ]

    async def upload(self, request: Request) -> Response:
        principal = await self._principal(request)
        _check_upload(request, self.files.settings.max_file_bytes + FORM_OVERHEAD)
        content_type = request.headers.get("content-type", "")
        file, name = await self.files.upload(principal, content_type, request.stream())
        return _json(file_object(file, name))

    async def files_of_project(self, request: Request) -> Response:
        principal, query = await self._principal(request), request.query_params
        files, more = await self.files.page(
            owner_of(principal),
            after=query.get("after"),
            limit=limit_of(query, MAX_LISTED, MAX_LISTED),
            newest_first=newest_first(query),
            purpose=purpose_of(query),
        )
        names = await self.files.names(principal.tenant, files)
        return _json(listed([file_object(file, name) for file, name in zip(files, names, strict=True)], more))

    async def file(self, request: Request) -> Response:
        principal = await self._principal(request)
        file = await self.files.get(owner_of(principal), request.path_params["id"])
        [name] = await self.files.names(principal.tenant, [file])
        return _json(file_object(file, name))

    async def content(self, request: Request) -> Response:
        principal = await self._principal(request)
        file = await self.files.get(owner_of(principal), request.path_params["id"])
        pieces = await self.files.read(principal, file)
        return StreamingResponse(pieces, media_type="application/jsonl")

    async def delete_file(self, request: Request) -> Response:
        principal, id_ = await self._principal(request), request.path_params["id"]
        await self.files.delete(principal, id_)
        return _json({"id": id_, "object": "file", "deleted": True})

    async def create_batch(self, request: Request) -> Response:
        principal = await self._principal(request)
        client = Client(request.scope, request.receive, request._send)  # its body is read within the same bounds
        raw = await read_body(client, MAX_BATCH_BODY, self.bounds.now.body_timeout_s)
        batch, said = await self.batches.create(principal, new_batch(raw))
        return _json(batch_object(batch, said))

    async def batches_of_project(self, request: Request) -> Response:
        principal, query = await self._principal(request), request.query_params
        found, more = await self.batches.page(owner_of(principal), query.get("after"), limit_of(query, 20, 100))
        said = await self.batches.said(found)
        return _json(listed([batch_object(batch, one) for batch, one in zip(found, said, strict=True)], more))

    async def batch(self, request: Request) -> Response:
        principal = await self._principal(request)
        return _json(batch_object(*await self.batches.get(owner_of(principal), request.path_params["id"])))

    async def cancel_batch(self, request: Request) -> Response:
        principal = await self._principal(request)
        return _json(batch_object(*await self.batches.cancel(principal, request.path_params["id"])))

    async def _principal(self, request: Request) -> Principal:
        address = caller_address(request.scope)
        principal = await self.authenticator.authenticate(headers_of(request.scope), address)
        request.state.principal = principal
        name_caller(request.scope, principal.tenant)
        return principal


def _check_upload(request: Request, most: int) -> None:
    """Before a byte of it is read. Raises UnsupportedEncoding, RequestTooLarge, InvalidRequest."""
    headers = request.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise UnsupportedEncoding("The body is compressed; send it as it is, without Content-Encoding")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise RequestTooLarge(f"The body is larger than {most} bytes, the limit of this gateway; divide the file")
    if SUBJECT_HEADER in headers:
        raise InvalidRequest(
            f"{SUBJECT_HEADER} is of one call, and a file has many; name the person by user in the body of each line",
            param=SUBJECT_HEADER,
            code="invalid_subject",
        )


def _json(value: object) -> Response:
    return Response(to_json(value), headers={"content-type": "application/json"})
