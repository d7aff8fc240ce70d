"""The client's side of a call that is a line of a batch: the body is there, the answer is collected."""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.openai.asgi_client import SERVER_SIDE, BatchLine, Client, Header
from gateway.openai.endpoints import Endpoint


@dataclass(slots=True)
class Collected:
    """What the pipeline answered. `status` 0: nothing yet."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")


class _Here:
    """`gateway.openai.asgi_client.ServerSide`: the whole body came with the request, and its sender does not leave."""

    __slots__ = ("_body", "caller")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.caller: str | None = None

    def arrived(self) -> bytes | None:
        return self._body

    def watch(self, gone: Callable[[], None] | None) -> None:
        """The worker cancels the task itself."""

    def keeps_up(self) -> bool:
        return False

    def write_now(self, piece: bytes) -> None:
        raise AssertionError("what never keeps up is not written to")


async def _never() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def line_client(
    endpoint: Endpoint, body: bytes, line: BatchLine, headers: Sequence[Header] = ()
) -> tuple[Client, Collected]:
    """A client that sends `body` for `line`, and what it will have received."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": endpoint.path,
        "headers": [(b"content-type", b"application/json"), *headers],
        "extensions": {SERVER_SIDE: _Here(body)},
    }
    collected = Collected()
    return Client(scope, _never, collected.send, line), collected
