"""In-process client of the admin API that authenticates with the user's session.

Requests are handled by the application mounted at ``/admin/v1``, with the same permissions, records and error messages.
"""

import json
from asyncio import Event
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.calls.schemas import MAX_SEGMENT


class Refused(Exception):
    """The API returned an error. `detail` is a sentence for people, `errors` lists the invalid fields."""

    def __init__(self, status: int, detail: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, dict(errors or {})


@dataclass(frozen=True, slots=True)
class Answer:
    """`body`: JSON as Python values, or the text of another media type; None if there is none."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """Client with a bearer `token`. `client`: the browser's address, for the record of refusals."""

    admin: ASGIApp
    token: str = field(repr=False)
    client: tuple[str, int] | None = None

    async def get(self, *segments: object, **query: Any) -> Any:
        """Return the body of ``GET /<segment>/...``. Raises Refused."""
        return (await self.call("GET", segments, query=query)).body

    def passed_on(self, *segments: object) -> Response:
        """Return a response that passes on the answer of ``GET /<segment>/...`` as it comes, such as a large file."""
        path = "".join(f"/{_segment(each)}" for each in segments)
        headers = {"authorization": f"Bearer {self.token}", "host": "console"}
        return PassedOn(self.admin, scope_of("GET", path, headers, self.client))

    async def call(
        self,
        method: str,
        segments: tuple[object, ...],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request. Query parameters that are None or empty are omitted. Raises Refused."""
        path = "".join(f"/{_segment(each)}" for each in segments)
        sent = {"authorization": f"Bearer {self.token}", "host": "console", **(headers or {})}
        content = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            sent |= {"content-type": "application/json", "content-length": str(len(content))}
        asked = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        status, received, answered = await exchange(self.admin, method, path, sent, content, self.client, asked)
        is_json = "json" in received.get("content-type", "")
        said = json.loads(answered) if is_json and answered else answered.decode() or None
        if status >= 400:
            problem = said if isinstance(said, dict) else {}
            raise Refused(status, problem.get("detail", ""), problem.get("errors"))
        return Answer(status, received, said)


def _segment(value: object) -> str:
    """Quote one path segment. Raises Refused if it could be read as several segments."""
    text = str(value)
    if not text or "/" in text or len(text) > MAX_SEGMENT or not text.isprintable() or not text.isascii():
        raise Refused(404, "nothing has this name; check the names in the URL")
    return text


async def exchange(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Mapping[str, str],
    content: bytes,
    client: tuple[str, int] | None,
    query: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[int, dict[str, str], bytes]:
    """Send one request to `app`. Returns status, headers (lower-case names) and body."""
    scope = scope_of(method, path, headers, client, query)
    status, received, body = 500, dict[str, str](), bytearray()
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if not waiting:
            await Event().wait()  # the caller stays until the answer is whole, and is cancelled with its own client
        return waiting.pop()

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            received.update((name.decode().lower(), value.decode("latin-1")) for name, value in message["headers"])
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, received, bytes(body)


class PassedOn(Response):
    """The answer of `app` to a request of ours, part by part."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        super().__init__()
        self._app, self._scope = app, scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(self._scope, receive, send)


def scope_of(
    method: str,
    path: str,
    headers: Mapping[str, str],
    client: tuple[str, int] | None,
    query: Mapping[str, Any] = MappingProxyType({}),
) -> Scope:
    """Return the ASGI scope of a request of ours."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": urlencode(query, doseq=True).encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": client,
        "server": None,
        "state": {},
    }
