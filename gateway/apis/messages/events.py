"""Events of a streamed message, from filtered chat chunks. No text is kept."""

from typing import Any, Final

from pydantic_core import to_json

from backend.wire import Usage
from gateway.apis.chat_answer import MAX_ITEMS, MAX_TEXT, first_choice, said_in, thought_in
from gateway.apis.messages.errors import error_event
from gateway.apis.messages.message_object import MessageObject, tool_id, usage_of
from gateway.errors import BackendFailed, GatewayError
from gateway.openai.answer import END_FIELDS
from gateway.openai.finish import announces_end
from gateway.openai.shape import position_of

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_TEXT, _THOUGHT = "text", "thinking"
_KINDS: Final = {"content": _TEXT, "text": _TEXT, "refusal": _TEXT, "reasoning": _THOUGHT,
                 "reasoning_content": _THOUGHT}  # fmt: skip
_EMPTY: Final[dict[str, dict[str, Any]]] = {
    _TEXT: {"type": "text", "text": ""},
    _THOUGHT: {"type": "thinking", "thinking": "", "signature": ""},
}


class _Call:
    """A tool call. `held`: of its arguments, while its name is not known; `block`: its index, -1 before that."""

    __slots__ = ("block", "held", "identifier", "name")

    def __init__(self, identifier: str | None) -> None:
        self.identifier, self.name, self.held, self.block = identifier, "", "", -1


class MessageEvents:
    """An EventWriter."""

    def __init__(self, message: MessageObject) -> None:
        self._message = message
        self._begun = False
        self._blocks = 0
        self._open: str | int | None = None  # the kind of the text, or the number of the call, of the current block
        self._before = b""  # what deltas of that text begin with
        self._calls: dict[int, _Call] = {}
        self._called = False
        self._end: dict[str, Any] = {}

    def text(self, field: str, text: str) -> bytes:
        kind = _KINDS[field]
        if kind != self._open:
            return self._start() + self._say(kind, text)
        return b"%b%b}}\n\n" % (self._before, to_json(text))

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        sent = [self._start()]
        if (choice := first_choice(chunk)) is not None:
            said = said_in(choice, "delta")
            if (thought := thought_in(said)) is not None:
                sent.append(self._say(_THOUGHT, thought))
            sent += (self._say(_TEXT, text) for name in ("content", "refusal") if (text := said.get(name)))
            sent += (self._call(position_of(call, at), call) for at, call in enumerate(said.get("tool_calls") or ()))
            if announces_end(choice.get("finish_reason")):
                self._end = {name: choice.get(name) for name in END_FIELDS}
        return b"".join(sent)

    def end(self, usage: Usage | None) -> bytes:
        ending = self._message.ending(self._end, calls=self._called)
        return b"".join((
            self._start(), self._stop(), _event("message_delta", delta=ending, usage=usage_of(usage)),
            _event("message_stop"),
        ))  # fmt: skip

    def whole(self) -> bytes:
        return b""

    def failed(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return _event("message_start", message=self._message.begun()) + PING

    def _say(self, kind: str, text: str) -> bytes:
        if kind == _THOUGHT and not self._message.shows_thinking:
            return b""
        begun = b""
        if kind != self._open:
            begun = self._block(kind, _EMPTY[kind])
            self._before = (
                'event: content_block_delta\ndata: {"type":"content_block_delta",'
                f'"index":{self._blocks - 1},"delta":{{"type":"{kind}_delta","{kind}":'
            ).encode()
        return b"%b%b%b}}\n\n" % (begun, self._before, to_json(text))

    def _block(self, kind: str | int, empty: dict[str, Any]) -> bytes:
        """Begin a block."""
        stopped = self._stop()
        self._open, self._blocks = kind, self._blocks + 1
        return stopped + _event("content_block_start", index=self._blocks - 1, content_block=empty)

    def _stop(self) -> bytes:
        """End the current block."""
        if self._open is None:
            return b""
        last, self._open = self._open, None
        stopped = _event("content_block_stop", index=self._blocks - 1)
        if last != _THOUGHT:
            return stopped
        signed = {"type": "signature_delta", "signature": ""}
        return _event("content_block_delta", index=self._blocks - 1, delta=signed) + stopped

    def _call(self, number: int, told: dict[str, Any]) -> bytes:
        """A piece of a call; a continuation may have no id. Raises BackendFailed for a piece of one that
        another one followed: a block that has ended cannot be continued."""
        call, identifier = self._calls.get(number), told.get("id")
        if call is None or (identifier and call.identifier and identifier != call.identifier):
            if len(self._calls) >= MAX_ITEMS:
                raise BackendFailed(f"The backend's answer has more than {MAX_ITEMS} calls")
            call = self._calls[number] = _Call(identifier)
        function = told.get("function") or {}
        call.name += function.get("name") or ""
        call.held += function.get("arguments") or ""
        if len(call.name) + len(call.held) > MAX_TEXT:
            raise BackendFailed(f"The backend's tool call is longer than {MAX_TEXT} characters")
        if not call.name:
            return b""
        begun = b""
        if call.block < 0:
            use = {"type": "tool_use", "id": tool_id(told, number), "name": call.name, "input": {}}
            begun = self._block(number, use)
            call.block, self._called = self._blocks - 1, True
        if not call.held:
            return begun
        if self._open != number or call.block != self._blocks - 1:
            raise BackendFailed("The backend's tool calls are mixed")
        piece, call.held = call.held, ""
        delta = {"type": "input_json_delta", "partial_json": piece}
        return begun + _event("content_block_delta", index=call.block, delta=delta)


def _event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind, **members}, inf_nan_mode="null"))
