"""HTTP/1.1 to one backend (RFC 9112): a pool of kept connections, one request at a time on each.

As little as the way to a backend needs: POST with a body, GET without, no redirects, no cookies, no proxies, no
compression. httptools parses, as on the server's side. Bytes of an answer are handed on as they arrive; a reader that
is slow stops the connection from being read.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import NamedTuple, Protocol, cast
from urllib.parse import quote, urlsplit

import httptools

HIGH_WATER = 16 << 10
"""Bytes that may wait for their reader before the connection is no longer read."""
READ_SIZE = 16 << 10
"""Bytes read at once. With HIGH_WATER it bounds what a client who does not read costs (docs/operations.md)."""
MAX_HEAD = 64 << 10
LATE_S = 0.25  # a timer that fires this much after its time was held up by ourselves
IDLE_S = 30.0  # a kept connection older than this is not used again: the other side may be about to close it


class ConnectError(Exception):
    """No connection: nothing was sent. `identity`: the peer could not prove who it is."""

    def __init__(self, identity: bool = False) -> None:
        super().__init__("no connection")
        self.identity = identity


class ConnectionLost(Exception):
    """The connection ended; `answered` tells whether an answer had begun."""

    def __init__(self, answered: bool) -> None:
        super().__init__("the connection was lost")
        self.answered = answered


class ProtocolError(Exception):
    """What came is not HTTP/1.1."""


class Peer(NamedTuple):
    """The other end of a connection as it showed itself: address and port, SHA-256 of its certificate (DER) in hex, the
    URI in that, the version of TLS, the certificate itself. All but the address are None without TLS; the URI also
    where there is none."""

    address: str
    certificate_sha256: str | None
    uri: str | None
    tls_version: str | None
    certificate: bytes | None = None


class Silence(Protocol):
    """What is to happen while a backend sends nothing."""

    @property
    def every_s(self) -> float:
        """How long nothing has to come before each call of `silent`."""

    async def silent(self, for_s: float = 0.0) -> None:
        """Nothing has come for `for_s` seconds; what this raises ends the wait."""


class Response:
    """An answer whose head is here."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        return self._connection.status

    def header(self, name: str) -> str:
        """The value of a field by its lower-case name; empty if absent."""
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
    ) -> AsyncIterator[bytes]:
        """The body as it comes; `silence` is called meanwhile. Raises TimeoutError after `silence_s` seconds without a
        byte, ConnectionLost, ProtocolError; or what `as_error` makes of them, which saves the caller a generator
        around this one."""
        connection = self._connection
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
                    silent_s += wait_s
                    if silence is None or silent_s >= silence_s:
                        raise
                    await silence.silent(wait_s)
        except (TimeoutError, ConnectionLost, ProtocolError) as error:
            if as_error is None:
                raise
            raise as_error(error) from error


class Connection(asyncio.BufferedProtocol):
    """One TCP or TLS connection. Only `Pool` makes them."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: dict[bytes, bytes] = {}
        self.pending = bytearray()  # one buffer: a small object for each HTTP chunk would fragment the heap
        self.complete = True
        self.head_here = False
        self.usable = False
        self.idle_since = 0.0
        self._head_size = self._arrived = 0
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0  # when what is waited for is overdue
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(READ_SIZE))  # TLS fills slices of it, which must not be copies

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
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

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.complete:  # there is no request, so this connection is not to be trusted with the next one
            self.close()
            return
        if not self.head_here:
            self._arrived += nbytes
        try:
            self._parser.feed_data(bytes(self._buffer[:nbytes]))
            if not self.head_here and self._arrived > MAX_HEAD:  # a field without end, or interim answers
                self._fail(ProtocolError("the answer's head is too long"))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ProtocolError("the answer is not HTTP/1.1"))
        self._wake()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if not self.complete:
            self._fail(ConnectionLost(self.head_here))
        self._stop_timer()
        self._wake()

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_here:  # a trailer, which is no header field (RFC 9110 §6.5.1)
            return
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD:
            self._fail(ProtocolError("the answer's head is too long"))
        if self.complete or self._head_size > MAX_HEAD:
            return
        self.fields[name.lower()] = value

    def on_message_begin(self) -> None:
        if self.complete:  # a second answer at once: to a request that was not made
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
        if self.status < 200:  # an interim answer (RFC 9110 §15.2); the real one follows
            self.fields.clear()
            return
        self.complete = True
        self.usable = self.usable and self._parser.should_keep_alive()

    # What the pool and the response call

    async def request(self, head: bytes, body: bytes, head_s: float, silence: Silence | None = None) -> Response:
        """Send one request and wait for the answer's head: `head_s` seconds for all of it, however often a part of it
        or an interim answer arrives; `silence` is called meanwhile. Raises TimeoutError, ConnectionLost, ProtocolError,
        and what `silence` raises."""
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.fields, self._head_size, self._arrived = 0, {}, 0, 0
        self.complete, self.head_here, self._failure = False, False, None
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
        """All of the body that has arrived."""
        data = bytes(self.pending)
        self.pending.clear()
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    def progress(self, silence_s: float) -> "asyncio.Future[None]":
        """Done when anything happens. Raises what ended the connection; awaiting it raises TimeoutError."""
        if self._failure is not None:
            raise self._failure
        self._waiter = waiter = self._loop.create_future()
        self._until = until = self._loop.time() + silence_s
        if (timer := self._timer) is None or timer.when() > until:  # mostly the one of an earlier wait still runs
            self._stop_timer()
            self._timer = self._loop.call_at(until, self._look)
        return waiter

    def _look(self) -> None:
        """The timer: end the wait if it is overdue. One timer serves many waits, so it may come before its time."""
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
        """Close at once, also during an exchange: the backend sees its client disconnect."""
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
    """Connections to one address. `tls`: made once, used for all of them, for `server_name` (by default the host).
    `bearer`: sent as token with each request."""

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
        """Request line and fields. `path`, `request_id` and `more`, whole lines, are ours, never a caller's words;
        `project` lets a backend share its queue fairly between projects."""
        of_project = f"x-domicile-project: {quote(project, safe='')}\r\n" if project else ""
        return (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nhost: {self._authority}\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\nx-request-id: {request_id}\r\n"
            f"{of_project}{self._more}{more}\r\n"
        ).encode("latin-1")

    async def acquire(self, before_connect: Callable[[], None] = lambda: None) -> tuple[Connection, bool]:
        """An idle connection, and whether it has been used before. `before_connect` is called immediately before each
        new connection is opened; what it raises prevents that. Raises ConnectError, TimeoutError."""
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
            except OSError as error:  # TimeoutError is one; nothing was sent in any case
                late = isinstance(error, TimeoutError) and loop.time() - until >= LATE_S
                if again or not late:  # this process stood still: the backend may have answered all the while
                    raise ConnectError from error
        self._all.add(made)
        return made, False

    def release(self, connection: Connection) -> None:
        """Give a connection back; one with an unfinished answer is closed."""
        if not self._retired and connection.usable and connection.complete and not connection.pending:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def close_idle(self) -> None:
        """Keep none any more; those in use are closed when they are given back."""
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
