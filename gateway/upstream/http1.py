"""HTTP/1.1 client for one backend (RFC 9112): a pool of persistent connections, one request at a time on each.

It supports what calls to a backend need: POST with a body and GET without, no redirects, cookies, proxies or
compression. The parser is httptools, as in the server. Bytes of a response are forwarded as they arrive, and a slow
reader pauses reading from the connection.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Protocol, cast
from urllib.parse import quote, urlsplit

import httptools

HIGH_WATER = 16 << 10
"""Buffered bytes at which reading from the connection is paused."""
READ_SIZE = 16 << 10
"""Bytes per read. With HIGH_WATER it bounds the memory for a client that does not read (docs/operations.md)."""
TLS_BUFFER = 16 << 10
"""Bytes, not yet decrypted, at which TLS stops reading for a paused connection; asyncio's and uvloop's 256 kB are more
than a client that does not read may cost."""
MAX_HEAD = 64 << 10
LATE_S = 0.25  # a timer this late was delayed by this process
IDLE_S = 30.0  # an idle connection older than this is not reused: the peer may be about to close it


@lru_cache(4096)
def quoted(project: str) -> str:
    """`project` as header fields and request tokens have it."""
    return quote(project, safe="")


class ConnectError(Exception):
    """No connection was made and nothing was sent. `identity`: the peer could not prove its identity."""

    def __init__(self, identity: bool = False) -> None:
        super().__init__("no connection")
        self.identity = identity


class ConnectionLost(Exception):
    """The connection ended. `answered`: whether a response had begun."""

    def __init__(self, answered: bool) -> None:
        super().__init__("the connection was lost")
        self.answered = answered


class ProtocolError(Exception):
    """The received bytes are not valid HTTP/1.1."""


class Peer(NamedTuple):
    """Identity of a connection's peer: address and port, SHA-256 of its certificate (DER) in hexadecimal, URI in the
    certificate, TLS version and certificate. All but the address are None without TLS; the URI is None if absent."""

    address: str
    certificate_sha256: str | None
    uri: str | None
    tls_version: str | None
    certificate: bytes | None = None


class Silence(Protocol):
    """Callback for the time in which a backend sends nothing."""

    @property
    def every_s(self) -> float:
        """Seconds without a byte before each call of `silent`."""

    async def silent(self, for_s: float = 0.0) -> None:
        """Called after `for_s` seconds without a byte. An exception ends the wait."""


Taker = Callable[[bytes], bool]
"""Takes what arrived of a body while its reader waits, at once and in the transport's callback. False: it did not, and
has changed nothing, so the reader gets it. An exception is raised in the reader."""


class Response:
    """A response whose head has been received."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        return self._connection.status

    def header(self, name: str) -> str:
        """Return the value of a header field by its lower-case name, empty if absent."""
        return self._connection.fields.get(name.encode("latin-1"), b"").decode("latin-1")

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived and been read."""
        return self._connection.complete and not self._connection.pending

    async def pieces(
        self,
        silence_s: float,
        as_error: Callable[[Exception], Exception] | None = None,
        silence: Silence | None = None,
        taker: Taker | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, except what `taker` takes. `silence` is called while nothing arrives.

        Raises TimeoutError after `silence_s` seconds without a byte, ConnectionLost and ProtocolError. `as_error` maps
        them to other exceptions, so that the caller needs no wrapping generator.
        """
        connection = self._connection
        connection.taker = taker
        wait_s = silence_s if silence is None else min(silence_s, silence.every_s)
        silent_s = 0.0
        try:
            while True:
                if connection.pending:
                    silent_s = 0.0
                    yield connection.take()
                    continue
                if connection.complete:
                    return
                try:
                    await connection.progress(wait_s)
                except TimeoutError:
                    silent_s = wait_s if connection.has_given() else silent_s + wait_s
                    if silence is None or silent_s >= silence_s:
                        raise
                    await silence.silent(wait_s)
        except (TimeoutError, ConnectionLost, ProtocolError) as error:
            if as_error is None:
                raise
            raise as_error(error) from error


class Connection(asyncio.BufferedProtocol):
    """One TCP or TLS connection. Created by `Pool` only."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: dict[bytes, bytes] = {}
        self.pending = bytearray()  # one buffer: a small object per HTTP chunk would fragment the heap
        self.complete = True
        self.head_here = False
        self.usable = False
        self.idle_since = 0.0
        self.taker: Taker | None = None
        self._given = False  # whether the taker took something since `has_given` was asked
        self._wait_s = 0.0  # how long the current wait was to last
        self._head_size = self._arrived = 0
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0  # deadline of the current wait
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(READ_SIZE))  # TLS fills slices of it, which must not be copies

    @property
    def peer(self) -> Peer:
        """Identity of the peer."""
        transport = self._transport
        address = transport.get_extra_info("peername") if transport is not None else None
        tls = transport.get_extra_info("ssl_object") if transport is not None else None
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        said = tls.getpeercert() if tls is not None else None
        uris = [value for kind, value in (said or {}).get("subjectAltName", ()) if kind == "URI"]
        return Peer(
            address=f"{address[0]}:{address[1]}" if address else "",
            certificate_sha256=sha256(certificate).hexdigest() if certificate else None,
            uri=uris[0] if uris else None,
            tls_version=tls.version() if tls is not None else None,
            certificate=certificate,
        )

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "set_read_buffer_limits"):  # over TLS
            transport.set_read_buffer_limits(high=TLS_BUFFER)
        self.usable = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.complete:  # bytes without a request: do not reuse this connection
            self.close()
            return
        if not self.head_here:
            self._arrived += nbytes
        try:
            self._parser.feed_data(bytes(self._buffer[:nbytes]))
            if not self.head_here and self._arrived > MAX_HEAD:  # an endless field, or interim responses
                self._fail(ProtocolError("the answer's head is too long"))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ProtocolError("the answer is not HTTP/1.1"))
        if self.taker is None or not self.pending or self.complete or not self._give(self.taker):
            self._wake()

    def eof_received(self) -> None:
        return None

    @property
    def _ends_with_connection(self) -> bool:
        """Whether the body has no length of its own and ends where the connection does (RFC 9112 §6.3, rule 8), as of
        servers that speak HTTP/1.0. Readers of the body see for themselves whether it is whole."""
        lengths = (b"content-length", b"transfer-encoding")
        return self.head_here and not any(name in self.fields for name in lengths)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._transport = None  # the buffers of TLS go now, and not when garbage is collected next
        if not self.complete:
            if exc is None and self._failure is None and self._ends_with_connection:
                self.complete = True
            else:
                self._fail(ConnectionLost(self.head_here))
        self._stop_timer()
        self._wake()

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_here:  # a trailer field, not a header field (RFC 9110 §6.5.1)
            return
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD:
            self._fail(ProtocolError("the answer's head is too long"))
        if self.complete or self._head_size > MAX_HEAD:
            return
        self.fields[name.lower()] = value

    def on_message_begin(self) -> None:
        if self.complete:  # a second response without a request
            self._fail(ProtocolError("there are two answers to one request"))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.head_here = True

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self.pending += body
        if len(self.pending) > HIGH_WATER and not self._paused:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.complete:
            return
        if self.status < 200:  # an interim response (RFC 9110 §15.2); the final one follows
            self.fields.clear()
            return
        self.complete = True
        self.usable = self.usable and self._parser.should_keep_alive()

    # Called by the pool and the response

    async def request(self, head: bytes, body: bytes, head_s: float, silence: Silence | None = None) -> Response:
        """Send a request and wait for the head of the response. `silence` is called during the wait.

        `head_s`: seconds for the whole head; parts of it and interim responses do not extend the time. Raises
        TimeoutError, ConnectionLost, ProtocolError, and the exceptions of `silence`.
        """
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.fields, self._head_size, self._arrived = 0, {}, 0, 0
        self.complete, self.head_here, self._failure, self.taker = False, False, None, None
        if self._transport is None or not self.usable:
            raise ConnectionLost(False)
        self._transport.writelines((head, body))
        until = self._loop.time() + head_s
        while not self.head_here:
            left = max(0.0, until - self._loop.time())
            if silence is None or left <= silence.every_s:
                await self.progress(left)
                continue
            try:
                await self.progress(silence.every_s)
            except TimeoutError:
                await silence.silent(silence.every_s)
        return Response(self)

    def take(self) -> bytes:
        """Return and clear the buffered part of the body."""
        data = bytes(self.pending)
        self.pending.clear()
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    def has_given(self) -> bool:
        """Whether the taker took part of the body since this was asked last."""
        given, self._given = self._given, False
        return given

    def _give(self, taker: Taker) -> bool:
        """Offer the buffered part of the body to the taker, if the reader has read all before it and waits for more."""
        if self._waiter is None or self._waiter.done() or self._failure is not None:
            return False
        try:
            if not taker(bytes(self.pending)):
                return False
        except Exception as error:  # whatever it is, the reader raises it
            self._fail(error)
            return False
        self.pending.clear()
        self._given, self._until = True, self._loop.time() + self._wait_s
        return True

    def progress(self, silence_s: float) -> "asyncio.Future[None]":
        """Return a future that completes at the next event of the connection.

        Raises the error that ended the connection. Awaiting the future raises TimeoutError after `silence_s` seconds.
        """
        if self._failure is not None:
            raise self._failure
        self._waiter = waiter = self._loop.create_future()
        self._wait_s, self._until = silence_s, (until := self._loop.time() + silence_s)
        if (timer := self._timer) is None or timer.when() > until:  # usually the timer of an earlier wait still runs
            self._stop_timer()
            self._timer = self._loop.call_at(until, self._look)
        return waiter

    def _look(self) -> None:
        """Timer callback: end the wait if its deadline has passed. One timer serves many waits and may fire early."""
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
        else:
            waiter.set_exception(TimeoutError())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close at once, even during an exchange; the backend then sees that its client disconnected."""
        self.usable = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self.usable = False
        if self._transport is not None and isinstance(error, ProtocolError):
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pool:
    """Connections to one address. `tls`: context for all of them, with `server_name` (default: the host). `bearer`:
    token sent with each request."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        connect_s: float,
        *,
        server_name: str | None = None,
        bearer: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._tls = tls
        self._server_name = (server_name or self._host) if tls else None
        self._more = f"authorization: Bearer {bearer}\r\n" if bearer else ""
        self._connect_s = connect_s
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._retired = False

    def head(self, method: str, path: str, length: int, request_id: str, more: str = "", *, project: str = "") -> bytes:
        """Return the request line and the header fields. `path`, `request_id` and `more` (whole lines) come from the
        gateway and never from a caller. `project` lets a backend share its queue fairly between projects."""
        of_project = f"x-domicile-project: {quoted(project)}\r\n" if project else ""
        return (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nhost: {self._authority}\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\nx-request-id: {request_id}\r\n"
            f"{of_project}{self._more}{more}\r\n"
        ).encode("latin-1")

    async def acquire(self, before_connect: Callable[[], None] = lambda: None) -> tuple[Connection, bool]:
        """Return a connection, and whether it has been used before.

        `before_connect` is called immediately before a new connection is opened; if it raises, none is opened. Raises
        ConnectError and TimeoutError.
        """
        loop = asyncio.get_running_loop()
        while self._idle:
            kept = self._idle.pop()
            if kept.usable and loop.time() - kept.idle_since < IDLE_S:
                return kept, True
            self._drop(kept)
        for again in (False, True):
            before_connect()
            until = loop.time() + self._connect_s
            try:
                async with asyncio.timeout_at(until):
                    _, made = await loop.create_connection(
                        Connection, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
                    )
                break
            except ssl.SSLError as error:
                raise ConnectError(identity=True) from error
            except OSError as error:  # includes TimeoutError; nothing was sent
                late = isinstance(error, TimeoutError) and loop.time() - until >= LATE_S
                if again or not late:  # this process was stalled: the backend may have accepted in time
                    raise ConnectError from error
        self._all.add(made)
        return made, False

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool. A connection with an unfinished response is closed."""
        if not self._retired and connection.usable and connection.complete and not connection.pending:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def close_idle(self) -> None:
        """Close the idle connections and stop pooling; connections in use are closed when they are released."""
        self._retired = True
        while self._idle:
            self._drop(self._idle.pop())

    def close(self) -> None:
        for connection in list(self._all):
            self._drop(connection)
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)
