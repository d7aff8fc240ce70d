"""Server-sent events cut out of a byte stream, whatever the pieces it arrives in (WHATWG HTML §9.2).

Works on bytes and never on text, so a piece that ends inside a character is no special case.
"""

from backend.wire import SSE_DONE, sse_data
from gateway.errors import BackendFailed

__all__ = ["DONE", "MAX_EVENT_BYTES", "SSE_DONE", "EventSplitter", "sse_data"]

DONE = b"[DONE]"
MAX_EVENT_BYTES = 8 << 20  # one event larger than this is a fault, not an answer


class EventSplitter:
    """Feed bytes, get the payloads of the `data` fields of complete events, in order.

    Comments and other fields (`event`, `id`, `retry`) are dropped; several data lines of one event are joined by a
    newline, as the standard says.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads completed by `data`. Raises BackendFailed if an event grows beyond MAX_EVENT_BYTES."""
        buffer = self._pending + data if self._pending else data
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):  # the line feed that belongs to it may be on its way
                self._pending = buffer
                return []
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._pending = buffer.split(b"\n\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise BackendFailed("The backend sent an event without end")
        payloads = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:  # the shape every OpenAI server sends
                payloads.append(event[6:])
            elif (payload := _data_of(event)) is not None:
                payloads.append(payload)
        return payloads

    @property
    def empty(self) -> bool:
        """False while an event is incomplete: a stream that ends here was cut."""
        return not self._pending.strip()


def _data_of(event: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
