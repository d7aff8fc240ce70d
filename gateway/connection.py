"""One client's connection: uvicorn's, with bounds on the time and size of what comes before anybody reads it.

The pipeline bounds a body once a caller is known, but nobody is asked before a head is whole, and after a refusal
nobody reads what still comes. A connection that says nothing, trickles its head or drips a refused body would stay for
ever, and a head without end would fill memory (CWE-400; RFC 9112 §9.5, RFC 6585 §5).
"""

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""For a whole head, from the first of its bytes or, on a new connection, from its beginning."""
BODY_MARGIN_S = 15.0
"""Beyond what the gateway itself gives a body: then there has been an answer, which nobody wants to go on after."""
MAX_HEAD = 64 << 10
WRITE_BUFFER = 16 << 10
"""Bytes of an answer that may wait for a client who does not read, before the backend is no longer read."""

INVALID, TIMEOUT, TOO_LARGE = (
    (400, b"Bad Request"),
    (408, b"Request Timeout"),
    (431, b"Request Header Fields Too Large"),
)


class BoundedConnection(HttpToolsProtocol):
    """`head_s`, `body_s`: seconds for the head of a request, and from there to the end of its body."""

    def __init__(self, *args: Any, head_s: float, body_s: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._head_s, self._body_s = head_s, body_s
        self._size = self._fields = 0
        self._in_message = self._in_body = False
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._wait(self._head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self._is_idle:  # also blank lines, which begin no message
            self._wait(self._head_s)
        if not self._in_body:
            self._size += len(data)
        super().data_received(data)
        if not self._in_body and self._size > MAX_HEAD:  # in a field that does not end
            self._refuse(*TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(TOO_LARGE if self._fields > MAX_HEAD else INVALID))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message, self._fields = True, 0
        if self._timer is None:
            self._wait(self._head_s)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_body, self._size = True, 0
        self._wait(self._body_s)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = self._in_body = False
        self._size = 0
        self._stop_waiting()

    @property
    def _is_idle(self) -> bool:
        return not self._in_message and (self.cycle is None or self.cycle.response_complete)

    def _count(self, size: int) -> None:
        """What it raises, the parser turns into a refusal."""
        self._fields += size
        if self._fields > MAX_HEAD:
            raise ValueError("the head is too large")

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
        if self.flow.read_paused or (answering and not self._in_body):  # it is us who do not read on
            self._wait(seconds)
        elif self._in_body or answering or not self._size:
            self.transport.abort()
        else:
            self._refuse(*TIMEOUT)

    def _refuse(self, status: int, reason: bytes) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # otherwise it would be taken for part of an answer
            self.transport.write(b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % (status, reason))
        self.transport.close()


def bounded(body_timeout_s: float, head_s: float = HEAD_S) -> Callable[..., BoundedConnection]:
    """What uvicorn makes its connections with, where the gateway gives a body `body_timeout_s` seconds."""
    return partial(BoundedConnection, head_s=head_s, body_s=body_timeout_s + BODY_MARGIN_S)
