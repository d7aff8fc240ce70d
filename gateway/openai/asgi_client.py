"""The client's side of one exchange, over raw ASGI: read the body within bounds, answer, notice when it leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Protocol

from gateway.errors import InvalidRequest, RequestTooLarge

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
_NONE: Final[dict[str, Any]] = {}


SERVER_SIDE: Final = "domicile.server_side"
"""ASGI extension of our own connections (`gateway.server.connection`): a ServerSide."""


class ServerSide(Protocol):
    """What a server can tell of a request without a turn of the event loop.

    `caller`: the tenant whose key the request has shown, once that is known; the server shares its time among them.
    """

    caller: str | None

    def arrived(self) -> bytes | None:
        """The body, where all of it came with the head; then `receive` has no more of it. None where the client still
        sends, or waits to be asked (RFC 9110 §10.1.1)."""

    def watch(self, gone: Callable[[], None] | None) -> None:
        """Call `gone` once if the client leaves before its answer is complete. None: no more."""

    def keeps_up(self) -> bool:
        """Whether an answer has begun whose client is there and has read what was sent."""

    def write_now(self, piece: bytes) -> None:
        """Send a piece of the body, in the same step of the event loop in which the client keeps up."""


class ClientGone(Exception):
    """The client closed its connection before it had sent its request."""


def name_caller(scope: MutableMapping[str, Any], tenant: str) -> None:
    """Tell the server whose request it is, where it shares its time among callers."""
    server: ServerSide | None = scope.get("extensions", _NONE).get(SERVER_SIDE)
    if server is not None:
        server.caller = tenant


def caller_address(scope: MutableMapping[str, Any]) -> IPv4Address | IPv6Address | None:
    """Where the connection comes from: a proxy's address, if one is in front. None if the server does not know."""
    try:
        return _address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return None


@lru_cache(4096)  # a connection sends many requests
def _address(written: str) -> IPv4Address | IPv6Address:
    return ip_address(written)


def headers_of(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """By lower-case name. One that came twice is one with a comma (RFC 9110 §5.3): no two readers may differ on it."""
    sent = scope["headers"]
    flat = b"\n".join([part for header in sent for part in header]).decode("latin-1").split("\n")
    if len(flat) != 2 * len(sent):  # one has a line break, as none from a connection has
        flat = [part.decode("latin-1") for header in sent for part in header]
    headers = dict(zip(flat[::2], flat[1::2], strict=True))
    if len(headers) != len(sent):
        for name in headers:
            headers[name] = ", ".join(v.decode("latin-1") for k, v in sent if k.decode("latin-1") == name)
    return headers


@dataclass(frozen=True, slots=True)
class BatchLine:
    """The line of a batch that a call answers, where it is one.

    `number` counts the lines of the input file from 1. `custom_id`: the application's own name for the line, which
    may be personal data. `key_id`: the API key that made the batch, whose principal the call acts for. `response`: the
    queued response that the call answers, a batch of one line by itself; None for a line of a file.
    """

    batch: str
    number: int
    custom_id: str
    key_id: str
    response: str | None = None


class Client:
    """One request's sender. `started` tells whether status and headers are out; then only the body can say more.
    `held`: nothing of the answer is. `server`: its connection, where that is ours. `batch`: the line that a worker of
    batches sends; None for all others. `shared`: headers of every answer to it, for the page that it is of."""

    __slots__ = ("_more_body", "_receive", "_send", "_watch", "address", "batch", "gone", "headers", "held",
                 "server", "shared", "started", "status")  # fmt: skip

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send, batch: BatchLine | None = None
    ) -> None:
        self.batch = batch
        self.shared: tuple[Header, ...] = ()
        self.headers = headers_of(scope)
        self.address = caller_address(scope)
        self._receive = receive
        self._send = send
        self.server: ServerSide | None = scope.get("extensions", _NONE).get(SERVER_SIDE)
        self._more_body = True
        self._watch: asyncio.Task[None] | None = None
        self.started = False
        self.held = False
        self.gone = False
        self.status = 0

    async def body(self, max_bytes: int, timeout_s: float) -> bytes:
        """The whole request body, as it was sent (`gateway.content.encoded_body` unpacks it).

        Raises RequestTooLarge above `max_bytes`, InvalidRequest when it takes longer than
        `timeout_s` seconds, ClientGone when the connection closes first.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:  # before the client is asked for it with a 100
            raise _too_large(max_bytes)
        if self.server is not None and (whole := self.server.arrived()) is not None:
            self._more_body = False
            if len(whole) > max_bytes:
                raise _too_large(max_bytes)
            return whole
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while self._more_body:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    piece = message.get("body", b"")
                    size += len(piece)
                    self._more_body = message.get("more_body", False)
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    pieces.append(piece)
        except TimeoutError:
            raise InvalidRequest(
                f"The body did not arrive within {timeout_s:g} seconds; send it faster, or a smaller one",
                code="body_timeout",
            ) from None
        return b"".join(pieces)

    def cancel_when_gone(self) -> None:
        """From now on, cancel the current task as soon as the client disconnects."""
        task = asyncio.current_task()

        def leave() -> None:
            self.gone = True
            if task is not None:
                task.cancel()

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            leave()

        if self.server is not None:
            self.server.watch(leave)
        else:
            self._watch = asyncio.ensure_future(watch())

    def stop_watching(self) -> None:
        if self.server is not None:
            self.server.watch(None)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def hold(self, headers: Iterable[Header], comment: bytes) -> None:
        """Keep a stream open that has nothing to say yet; `headers` go out the first time. Nothing of the answer is
        sent by that: what it will begin with, `start`, can still be anything."""
        if not self.started:
            await self.start(200, headers)
            self.held = True
        await self.write(comment)

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """The headers of a stream that was held are already sent; ours follow as comments."""
        if self.held:
            self.held = False
            ours = (b": %s: %s\n" % header for header in headers if header[0].startswith(b"x-domicile-"))
            await self.write(b"".join(ours) + b"\n")
            return
        self.started, self.status = True, status
        sent = [*headers, *self.shared]
        if self._more_body and "expect" in self.headers:  # whether the body still comes is up to the client
            sent.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    def write(self, data: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        self.stop_watching()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def _too_large(max_bytes: int) -> RequestTooLarge:
    """The rest of the body is read and dropped by the connection (`gateway.server.connection`)."""
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes, the limit of this gateway; send less at once")
