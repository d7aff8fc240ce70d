"""One client connection: uvicorn's protocol class, strict about HTTP framing and bounded in time and size.

The parser (llhttp, through httptools) finds where a message ends. Around it this class enforces what RFC 9110 and
RFC 9112 ask of a server and what neither uvicorn nor httptools does:

* An ``Upgrade`` that is not taken is ignored and the body is read (RFC 9110 §7.8). httptools ends such a message at its
  head, so the head is parsed once more without the fields of the upgrade.
* Trailer fields are not header fields (RFC 9110 §6.5.1). They are counted and dropped.
* HTTP/1.1 needs exactly one valid ``Host`` (RFC 9112 §3.2); any other version than 1.0 and 1.1 is 505.
* ``Transfer-Encoding`` is ``chunked`` once or the request is refused (RFC 9112 §6.1, §6.3), and so is it in HTTP/1.0.
* An ``Expect`` other than ``100-continue`` is 417 (RFC 9110 §10.1.1).
* Whatever cannot be parsed is answered with 400 before the connection closes, in its turn, and never inside or after
  the answer to the same message (RFC 9112 §11.2).

What one connection sends is parsed in small pieces, and none while requests of it wait for their answers. `Turns`
bounds what all connections together have the event loop do in one turn, and gives what goes on beyond one request half
of its time at most.

Time and size are bounded here because the pipeline bounds a body only once the caller is known: no application code
runs before a head is complete, and after a refusal none reads the rest of the body (CWE-400; RFC 9112 §9.5, RFC 6585
§5).
"""

import re
from asyncio import Event, TimerHandle, Transport, get_running_loop
from collections import deque
from collections.abc import Callable, Hashable
from http import HTTPStatus
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools
from pydantic_core import to_json
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.openai.asgi_client import SERVER_SIDE

HEAD_S = 10.0
"""For a whole head, from its first byte or, on a new connection, from the connection's beginning."""
BODY_MARGIN_S = 15.0
"""Beyond what the gateway itself gives a body: by then the request has been answered."""
MAX_HEAD = 64 << 10
"""Bytes of a request's head; also of what stands around a body that is chunked, extensions and trailers, which nobody
reads. Each chunk has CHUNK_FRAME free."""
CHUNK_FRAME = 24  # its size in hexadecimal, and two line ends
FIELD_FRAME = 256
"""Bytes that a header field counts beside its name and value, as 32 in HTTP/2 (RFC 9113 §6.5.2), since each costs what
no byte of it does: a head has 250 fields at most. Apache httpd and HAProxy take 100."""
PIECE = 1 << 10
"""Bytes that are parsed in a row: the head of most requests, and at most 40 requests that were sent ahead of an answer
(RFC 9112 §9.3.2). What a Content-Length says of a body is one piece of any size, since it costs no time."""
PIECES_S = 0.001
"""For the pieces of one read, before the rest of it waits for a turn."""
BURST_S, REST_S = 0.002, 0.002
"""For what waits for a turn, and for all else before it goes on: the event loop and the threads that it waits for."""
AT_ONCE = 8
"""Inputs that are parsed in one turn of the event loop, each of a request most often, whose first step follows in the
next one. libuv would read up to 1,024 connections in one turn."""
WRITE_BUFFER = 16 << 10
"""Bytes of an answer that may wait for a client who does not read, before the backend is no longer read."""
MAX_DISCARDED = 32 << 20
"""Bytes of a body that are read and dropped after the answer, so that the client gets to see it (RFC 9112 §9.6: a
close with unread data would reset the connection, and the answer with it); then the connection is closed."""
DISCARD_PAUSE_S = 0.01
"""Between two reads of what is dropped, of at most 256 kB each: an upload that was refused is not read at the speed of
the network, which would take the event loop from the other connections."""

LINGER_S = 2.0
"""For a client to take a refusal of what it is still sending, for the same reason."""

UNREAD_S = 120.0
"""A client who takes no byte of its answer for so long is cut off, as by nginx's send_timeout (of 60 s): a whole answer
that waits is up to 64 MB of memory, and a stream holds a place at its backend."""


class Refusal(NamedTuple):
    """An answer to a message that reaches no application."""

    status: HTTPStatus
    code: str
    message: str

    def encoded(self) -> bytes:
        """The whole response, with OpenAI's error body; the connection closes after it."""
        error = {"message": self.message, "type": "invalid_request_error", "param": None, "code": self.code}
        body = to_json({"error": error})
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)


def _bad(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, "invalid_http", message)


INVALID = _bad("The request is not valid HTTP/1.1; send it as RFC 9112 says")
NO_HOST = _bad("The request needs exactly one Host field with a valid host name")
BAD_CODING = _bad("Transfer-Encoding must be chunked, once, and HTTP/1.1; or send Content-Length")
TIMEOUT = Refusal(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", "The request's head did not arrive in time")
TOO_LARGE = Refusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "head_too_large",
    f"The request line and header fields are larger than {MAX_HEAD} bytes; send fewer or shorter fields",
)
MUCH_AROUND = _bad(f"The body has more than {MAX_HEAD} bytes of chunk extensions and trailers; send it without them")
EXPECTATION = Refusal(
    HTTPStatus.EXPECTATION_FAILED, "unknown_expectation", "The only Expect that is supported is 100-continue"
)
CODING = Refusal(
    HTTPStatus.NOT_IMPLEMENTED,
    "unsupported_transfer_coding",
    "The only Transfer-Encoding that is supported is chunked; send the body uncompressed",
)
NO_TUNNEL = Refusal(HTTPStatus.NOT_IMPLEMENTED, "method_not_allowed", "CONNECT is not supported; this is no proxy")
VERSION = Refusal(
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    "http_version",
    "Use HTTP version 1.1 or 1.0; other versions are not supported",
)

_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
"""RFC 9110 §7.2, RFC 3986 §3.2.2; empty where the target has no authority. No comma: it would be two fields joined."""
_UPGRADE_TOKENS = frozenset({b"upgrade", b"http2-settings"})
_UPGRADE_FIELDS = frozenset({b"upgrade", b"http2-settings"})


_OF_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_WITHOUT_BODY = frozenset({204, 304})


class ServedExchange(RequestResponseCycle):
    """One request and its answer: as uvicorn's, and `gateway.openai.asgi_client.ServerSide`. Of an answer's head all
    fields are checked together, and the head is written in one pass."""

    caller: str | None = None
    _gone: Callable[[], None] | None = None

    def arrived(self) -> bytes | None:
        if self.more_body or self.waiting_for_100_continue or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        return body

    def watch(self, gone: Callable[[], None] | None) -> None:
        if self.disconnected and gone is not None:
            gone()
            return
        self._gone = gone
        if gone is not None and self.flow.read_paused:
            self.flow.resume_reading()  # or it would not be seen

    def keeps_up(self) -> bool:
        return self.response_started and not (self.flow.write_paused or self.disconnected or self.response_complete)

    def write_now(self, piece: bytes) -> None:
        self._write_body(piece, more=True)

    def leave(self) -> None:
        """The client has left."""
        self.disconnected = True
        self.message_event.set()
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    async def send(self, message: Any) -> None:
        """ASGI's. Raises RuntimeError for a message out of its order, for a header field that is none, and for a body
        of another length than its Content-Length."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if self.response_complete or kind != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"the ASGI message {kind} is out of its order")
        if self.response_started:
            self._write_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            self.response_started, self.waiting_for_100_continue = True, False
            self.transport.write(self._head(message["status"], [*self.default_headers, *message.get("headers", ())]))

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        named = [name for name, _ in headers]
        values = [value for _, value in headers]
        if HEADER_RE.search(b"-".join(named)) or HEADER_VALUE_RE.search(b" ".join(values)):
            raise RuntimeError("a header field has a character that its name or value must not have")
        names = b" ".join(named).lower().split(b" ")  # none has a space
        fields = list(zip(names, values, strict=True))
        if not _OF_FRAMING.isdisjoint(names):
            for name, value in fields:
                if name in _OF_FRAMING:
                    self._frame(name, value)
        lines = [b"%s: %s\r\n" % field for field in fields]
        if not self.keep_alive and not any(_closes(*field) for field in fields):
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        return b"".join((STATUS_LINE[status], *lines, b"\r\n"))

    def _frame(self, name: bytes, value: bytes) -> None:
        """Take note of a field that says how the answer ends."""
        if name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        elif name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif _closes(name, value):
            self.keep_alive = False

    def _write_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            piece = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            self.transport.write(piece if more else piece + b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the answer is longer than its Content-Length")
            self.transport.write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("the answer is shorter than its Content-Length")
        self.response_complete, self._gone = True, None
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _closes(name: bytes, value: bytes) -> bool:
    return name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]


class _Waiting:
    """Work that waits: of one caller after another, of each in its order."""

    def __init__(self) -> None:
        self._of: dict[Hashable, deque[Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, caller: Hashable, work: Callable[[], None]) -> None:
        self._of.setdefault(caller, deque()).append(work)

    def next(self) -> Callable[[], None]:
        caller = next(iter(self._of))
        works = self._of.pop(caller)
        work = works.popleft()
        if works:
            self._of[caller] = works  # behind all others
        return work


class Turns:
    """Shares the event loop among the connections.

    In a turn of the loop AT_ONCE inputs are parsed as they arrive. Each other one waits: of those AT_ONCE are parsed a
    turn, for BURST_S at most. What a connection has the loop do beyond one request is done piece by piece: one a turn,
    for BURST_S, then none for REST_S. Both go from caller to caller, however many connections each has.
    """

    def __init__(self) -> None:
        self._begun = _Waiting()
        self._going_on = _Waiting()
        self._until = 0.0
        self._room = 0  # of this turn
        self._counts = False

    @property
    def busy(self) -> bool:
        return bool(self._begun or self._going_on)

    def admits(self) -> bool:
        """Whether input that has arrived is to be parsed in this turn of the loop."""
        if self._begun:
            return False
        if not self._counts:
            self._counts, self._room = True, AT_ONCE
            get_running_loop().call_soon(self._end_turn)
        self._room -= 1
        return self._room >= 0

    def _end_turn(self) -> None:
        self._counts = False

    def take(self, work: Callable[[], None], caller: Hashable, *, goes_on: bool) -> None:
        """Call `work` in its turn. `goes_on`: its connection had a turn for the same reason."""
        waiting, await_turn = (self._going_on, self._await_turn) if goes_on else (self._begun, self._await_next_turn)
        if not waiting:
            await_turn()
        waiting.add(caller, work)

    def _await_next_turn(self) -> None:
        get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        until = perf_counter() + BURST_S
        try:
            for _ in range(AT_ONCE):
                self._begun.next()()
                if not self._begun or perf_counter() >= until:
                    break
        finally:
            if self._begun:
                self._await_next_turn()

    def _await_turn(self) -> None:
        now, pause = perf_counter(), 0.0
        if now >= self._until:
            pause = max(0.0, self._until + REST_S - now)
            self._until = now + pause + BURST_S
        get_running_loop().call_later(pause, self._go_on)

    def _go_on(self) -> None:
        work = self._going_on.next()
        if self._going_on:  # before the work, which may take another turn
            self._await_turn()
        work()


def _nothing() -> None:
    """What is called where nobody waits for it any more."""


class _Reading(FlowControl):
    """As uvicorn's, beside others who stop the reading. `resumed` is called where that may go on."""

    def __init__(self, transport: Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resumed = resumed
        self._stopped = False

    def pause_reading(self) -> None:
        self.read_paused = True
        self.stop()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resumed()

    def let_go(self) -> None:
        self._resumed = _nothing

    def stop(self) -> None:
        if not self._stopped and not self._transport.is_closing():
            self._stopped = True
            self._transport.pause_reading()

    def start(self) -> None:
        if self._stopped and not self._transport.is_closing():
            self._stopped = False
            self._transport.resume_reading()


class BoundedConnection(HttpToolsProtocol):
    """`head_s`, `body_s`: seconds for the head of a request, and from there to the end of its body."""

    cycle: ServedExchange
    flow: _Reading

    def __init__(self, *args: Any, turns: Turns, head_s: float, body_s: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._turns = turns
        self._held: bytes | memoryview = b""  # of what was read; not parsed yet
        self._awaits_turn = False
        self._left = 0  # of a body with a Content-Length
        self.parser = httptools.HttpRequestParser(self)  # without uvicorn's leniency for data after the last message
        self._head_s, self._body_s = head_s, body_s
        self._size = self._fields = self._discarded = self._around = 0
        self._in_message = self._in_body = self._body_seen = self._upgrading = self._last = False
        self._framing: list[tuple[bytes, bytes]] = []
        self._fault: Refusal | None = None
        self._postponed: Refusal | None = None
        self._timer: TimerHandle | None = None
        self._discarding: TimerHandle | None = None  # until what is dropped is read on
        self._unread: TimerHandle | None = None  # while an answer waits for its reader
        self._is_proxied = False
        self._proxied_client: tuple[str, int] | None = None

    def speaks_for(self, client: tuple[str, int] | None) -> None:
        """The peer is a proxy, and says who its client is; None where it does not. Call it before the connection is
        made."""
        self._is_proxied, self._proxied_client = True, client

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = _Reading(transport, self._read_on)
        if self._is_proxied:
            self.client = self._proxied_client
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._wait(self._head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        for timer in (self._discarding, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._held = b""
        if self.cycle is not None and self.cycle.disconnected:
            self.cycle.leave()
        self._let_go()

    def _let_go(self) -> None:
        """Refer to nothing that refers to this connection: it is freed now, and not by a collection of garbage, which
        takes the longer the more connections have ended."""
        self.flow.let_go()
        self.pipeline.clear()
        self.cycle = self.parser = None  # type: ignore[assignment]  # nothing arrives any more

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self._look_at_unread, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _look_at_unread(self, before: int) -> None:
        """Close where the client took nothing of the `before` bytes that waited."""
        waiting = self.transport.get_write_buffer_size()
        if waiting >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(UNREAD_S, self._look_at_unread, waiting)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._last:  # the client said that it sends no other request, or what it sent was refused
            self._discard(len(data))
        elif self._held:
            self._hold(b"".join((self._held, data)))
        elif self.pipeline or not self._turns.admits():
            self._hold(data)
        else:
            self._parse(data, goes_on=False)

    def _parse(self, data: bytes | memoryview, *, goes_on: bool) -> None:
        """Parse `data`, piece by piece. What costs more than the connection's share of this turn is held."""
        was_idle = self._is_idle
        size = len(data)
        if size <= PIECE:
            if not self._feed(data, size):
                return
        elif not self._parse_pieces(memoryview(data), goes_on=goes_on):
            return
        if self._timer is None:  # a message that came whole needs none
            if self._in_body:
                self._wait(self._body_s)
            elif self._in_message or (was_idle and self._is_idle):  # also blank lines, which begin no message
                self._wait(self._head_s)

    def _parse_pieces(self, data: memoryview, *, goes_on: bool) -> bool:
        """False where a piece was refused, or was the last that counts."""
        until = perf_counter() + PIECES_S
        while data:
            size = min(max(PIECE, self._left), len(data))
            if not self._feed(data[:size], size):
                return False
            data = data[size:]
            if self._last and data:
                self._discard(len(data))
                return False
            enough = self._left <= 0 and (perf_counter() >= until or (self._turns.busy and not goes_on))
            if data and (enough or self.pipeline):
                self._hold(data, goes_on=goes_on)
                break
        return True

    def _feed(self, data: bytes | memoryview, size: int) -> bool:
        """Have the parser read `data`, of `size` bytes; False where it was refused."""
        if self._in_body:
            self._around = max(0, self._around) + size
        else:
            self._size += size
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._without_upgrade() + bytes(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._last:  # otherwise there is only data behind the last message
                self._refuse(self._fault or INVALID)
            return False
        if (refusal := self._endless()) is not None:
            self._refuse(refusal)
            return False
        return True

    def _hold(self, data: bytes | memoryview, *, goes_on: bool = False) -> None:
        self._held = data
        self.flow.stop()
        self._read_on(goes_on=goes_on)

    def _read_on(self, *, goes_on: bool = True) -> None:
        """Have what is held parsed in its turn, or read where nothing is; unless that is paused, or requests wait."""
        if self.flow.read_paused:
            return
        if self._held:
            if not self._awaits_turn and not self.pipeline:
                self._awaits_turn = True
                self._turns.take(self._parse_held, self._caller, goes_on=goes_on)
        elif self._discarding is None:
            self.flow.start()

    def _parse_held(self) -> None:
        self._awaits_turn = False
        data, self._held = self._held, b""
        if not data or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._parse(data, goes_on=True)
        if not self._held:
            self._read_on()

    def _endless(self) -> Refusal | None:
        """What is said of a field, or of extensions of chunks, without end."""
        if self._in_body:
            return MUCH_AROUND if self._around > MAX_HEAD else None
        return TOO_LARGE if self._size > MAX_HEAD else None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message, self._body_seen, self._fields, self._discarded = True, False, 0, 0
        self._framing.clear()

    def on_url(self, url: bytes) -> None:
        self._fields += len(url)
        if self._fields > MAX_HEAD:
            self._fail(TOO_LARGE)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value) + FIELD_FRAME
        if self._fields > MAX_HEAD:
            self._fail(TOO_LARGE)
        if self._in_body:  # a trailer
            return
        name = name.lower()
        if name in _FRAMING:
            self._framing.append((name, value))
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True
            if self.parser.get_method() == b"CONNECT":
                self._fail(NO_TUNNEL)
            return
        version = self.parser.get_http_version()
        self._check_framing(version)
        self._begin(version)
        self._in_body, self._size, self._around = True, 0, 0
        self._stop_waiting()

    def _begin(self, version: str) -> None:
        """Start the application for the request whose head is here; one that was sent ahead waits for its turn."""
        scope, url = self.scope, httptools.parse_url(self.url)
        raw_path = url.path
        path = raw_path.decode("ascii")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        scope["query_string"] = url.query or b""
        before = self.cycle
        self.cycle = exchange = ServedExchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["extensions"] = {SERVER_SIDE: exchange}  # type: ignore[dict-item]  # ASGI has dicts there
        if before is None or before.response_complete:
            self._start_asgi_task(exchange, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def on_chunk_header(self) -> None:
        self._around -= CHUNK_FRAME

    def on_body(self, body: bytes) -> None:
        self._body_seen = True
        self._around -= len(body)
        self._left -= len(body)
        cycle = self.cycle
        if cycle.response_complete:
            self._discard(len(body))
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrading:  # the same head follows without the upgrade
            return
        self._last = not self.parser.should_keep_alive()
        super().on_message_complete()
        self._in_message = self._in_body = False
        self._size = self._left = 0
        self._stop_waiting()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self.pipeline:
            self._turns.take(self._answer_next, self._caller, goes_on=True)
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        elif self._held:
            self._read_on()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self._postponed is not None:
            self._write(self._postponed)
        elif self.expect_100_continue and self._in_body and self.cycle.response_complete and not self._body_seen:
            self.transport.close()  # whether the body still comes is up to the client (RFC 9110 §10.1.1)

    def _answer_next(self) -> None:
        """Start the application for the first of the requests that were sent ahead."""
        if self.transport.is_closing():
            return
        self._start_asgi_task(*self.pipeline.pop())
        if self._held:  # its body may be there
            self._read_on()

    @property
    def _caller(self) -> Hashable:
        """Who waits for a turn: the tenant of the request before, or the client's address where that has shown no
        key that works."""
        known = None if self.cycle is None else self.cycle.caller
        return known or (self.client and self.client[0])

    @property
    def _is_idle(self) -> bool:
        return not self._in_message and (self.cycle is None or self.cycle.response_complete)

    def _check_framing(self, version: str) -> None:
        if version not in ("1.1", "1.0"):
            self._fail(VERSION)
        hosts = 0
        codings: list[bytes] = []
        for name, value in self._framing:
            if name == b"host":
                hosts += 1
                if _HOST.fullmatch(value) is None:
                    self._fail(NO_HOST)
            elif name == b"content-length":
                self._left = int(value)
            elif name == b"transfer-encoding":
                codings += [each.strip() for each in value.lower().split(b",")]
            elif version == "1.1":  # a server of HTTP/1.0 does not know Expect
                if value.lower() != b"100-continue":
                    self._fail(EXPECTATION)
                self.expect_100_continue = True
        if version == "1.0":
            self.expect_100_continue = False
        if hosts > 1 or (not hosts and version == "1.1"):
            self._fail(NO_HOST)
        if codings:  # seldom: clients send Content-Length
            self._check_codings(codings, version)

    def _check_codings(self, codings: list[bytes], version: str) -> None:
        """Refuse every Transfer-Encoding but ``chunked`` once in HTTP/1.1 (RFC 9112 §6.1): 501 where the end of the
        body is known and only the coding is not, 400 otherwise."""
        if codings == [b"chunked"]:
            if version == "1.0":
                self._fail(BAD_CODING)
            return
        known_end = codings[-1] == b"chunked" and codings.count(b"chunked") == 1 and all(codings)
        self._fail(CODING if known_end and version == "1.1" else BAD_CODING)

    def _without_upgrade(self) -> bytes:
        """The head that was just parsed, without the upgrade, for a parser that has not seen it."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_TOKENS)
            if name not in _UPGRADE_FIELDS and (value or name != b"connection"):
                lines.append(name + b": " + value)
        self._upgrading = False
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join((*lines, b"", b""))

    def _fail(self, refusal: Refusal) -> None:
        """End the parsing of this message. The parser turns the exception into its own."""
        self._fault = refusal
        raise ValueError(refusal.message)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > MAX_DISCARDED:
            self.transport.abort()
        elif self._discarding is None:
            self.flow.stop()
            self._discarding = self.loop.call_later(DISCARD_PAUSE_S, self._discard_on)

    def _discard_on(self) -> None:
        self._discarding = None
        self._read_on()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._time_out, seconds)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self, seconds: float) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.flow.read_paused or self._held or (answering and not self._in_body):  # it is us who do not read on
            self._wait(seconds)
        elif self._in_body or answering or not self._size:
            self.transport.abort()
        else:
            self._refuse(TIMEOUT)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the message that cannot be parsed, once the answers before it are out, and close."""
        self._stop_waiting()
        self._last = True
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and not self._in_body):
            self._write(refusal)
        elif not self._in_body:
            self._postponed = refusal
        elif cycle.response_started or cycle.response_complete:  # a second answer to one request would be another's
            self.transport.close()
        elif self.pipeline:  # its application has not begun
            self.pipeline.popleft()
            self._postponed = refusal
        else:
            cycle.leave()  # to its application the client has left
            self._write(refusal)

    def _write(self, refusal: Refusal) -> None:
        self._postponed = None
        if self.transport.is_closing():
            return
        self.transport.write(refusal.encoded())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # What still arrives is dropped by `data_received`; the client closes, or is closed to.
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)


def bounded(body_timeout_s: Callable[[], float], head_s: float = HEAD_S) -> Callable[..., BoundedConnection]:
    """What uvicorn makes its connections with, where the gateway gives a body `body_timeout_s` seconds."""

    turns = Turns()

    def connection(*args: Any, **named: Any) -> BoundedConnection:
        return BoundedConnection(*args, turns=turns, head_s=head_s, body_s=body_timeout_s() + BODY_MARGIN_S, **named)

    return connection
