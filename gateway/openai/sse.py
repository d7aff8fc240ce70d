"""Server-sent events parsed from a byte stream in pieces of any size (WHATWG HTML §9.2).

Works on bytes and never on text, so a piece that ends inside a character is no special case. The work is linear in the
bytes received, and what is kept of an incomplete event is bounded for any input.
"""

from codecs import BOM_UTF8

from gateway.errors import BackendFailed

DONE = b"[DONE]"
MAX_EVENT_BYTES = 8 << 20
"""A larger event is a fault of the server."""


class EventSplitter:
    """Feed bytes, get the payloads of the `data` fields of complete events, in order.

    Comments, other fields (`event`, `id`, `retry`) and events without data are dropped; several data lines of one event
    are joined by a newline, as the standard says.
    """

    __slots__ = ("_after_cr", "_begun", "_mark", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()  # of the incomplete event, with line feeds only
        self._after_cr = False  # the last byte was a carriage return: the line feed that belongs to it may follow
        self._begun = False
        self._mark = b""  # what may be the first bytes of a byte order mark

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads completed by `data`. Raises BackendFailed if an event grows beyond MAX_EVENT_BYTES."""
        if not self._begun:
            data = self._without_mark(data)
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if pending := self._pending:
            searched = max(len(pending) - 1, 0)
            pending += data
            if pending.find(b"\n\n", searched) < 0:
                self._check_size()
                return []
            data = bytes(pending)
            pending.clear()
        *events, rest = data.split(b"\n\n")
        if rest:
            self._pending += rest
            self._check_size()
        payloads = []
        for event in events:
            is_usual = event.startswith(b"data: ") and b"\n" not in event  # the shape every OpenAI server sends
            if payload := event[6:] if is_usual else _data_of(event):
                payloads.append(payload)
        return payloads

    @property
    def is_between(self) -> bool:
        """Whether the next byte begins an event, and nothing of the ones before is held."""
        return self._begun and not self._pending and not self._after_cr

    @property
    def held(self) -> int:
        """Bytes of the incomplete event."""
        return len(self._pending)

    @property
    def empty(self) -> bool:
        """False while an event is incomplete: a stream that ends here was cut."""
        return not self._pending.strip() and not self._mark

    @property
    def unfinished(self) -> bytes:
        """The payload of an event that no blank line has ended."""
        return _data_of(bytes(self._pending))

    def _without_mark(self, data: bytes) -> bytes:
        """The stream's first bytes without the one byte order mark that it may begin with."""
        data = self._mark + data
        if len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data):
            self._mark = data
            return b""
        self._begun, self._mark = True, b""
        return data.removeprefix(BOM_UTF8)

    def _with_line_feeds(self, data: bytes) -> bytes:
        if not data:
            return b""
        after_cr, self._after_cr = self._after_cr, data.endswith(b"\r")
        if after_cr:
            data = data.removeprefix(b"\n")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_size(self) -> None:
        if len(self._pending) > MAX_EVENT_BYTES:
            self._pending.clear()
            raise BackendFailed("The backend sent an event without end")


def _data_of(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
