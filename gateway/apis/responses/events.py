"""The events of a streamed response, from filtered chat chunks.

Each item is announced, grows by deltas and is repeated whole when it is done, and the last event repeats all of them:
the text of an answer is therefore held until its end, up to MAX_TEXT characters.
"""

from io import StringIO
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from backend.wire import Usage
from gateway.apis.chat_answer import MAX_ITEMS, MAX_TEXT, first_choice, mark_in, said_in, thought_in
from gateway.apis.responses.response_object import (
    INCOMPLETE,
    ResponseObject,
    ended,
    logprobs_in,
    output_text,
    reasoning_text,
    refusal,
)
from gateway.errors import BackendFailed, GatewayError
from gateway.openai.finish import announces_end
from gateway.openai.shape import position_of

ERROR_CODES: Final = {429: "rate_limit_exceeded", 400: "invalid_prompt", 422: "invalid_prompt"}
"""By status, the code of a failed response; ``server_error`` for any other."""

LOGPROB_CHARACTERS: Final = 200
"""That one log probability counts as, about what it takes when it is written."""


class _Kind(NamedTuple):
    """What is said in one text. `item`: the type of its item; `name`: of its events; `member`: of what is done."""

    item: str
    name: str
    member: str

    def part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        if self is _TEXT:
            return output_text(text, logprobs)
        return reasoning_text(text) if self is _THOUGHT else refusal(text)


_TEXT: Final = _Kind("message", "output_text", "text")
_THOUGHT: Final = _Kind("reasoning", "reasoning_text", "text")
_REFUSAL: Final = _Kind("message", "refusal", "refusal")
_KINDS: Final = {"content": _TEXT, "text": _TEXT, "refusal": _REFUSAL, "reasoning": _THOUGHT,
                 "reasoning_content": _THOUGHT}  # fmt: skip


class _TextItem:
    """An item that grows by text. `before`: what its deltas begin with."""

    __slots__ = ("before", "held", "identifier", "kind", "logprobs", "position")

    def __init__(self, kind: _Kind, position: int, identifier: str) -> None:
        self.kind, self.position, self.identifier = kind, position, identifier
        self.held = StringIO()
        self.logprobs: list[dict[str, Any]] = []
        name = f"response.{kind.name}.delta"
        more = ',"logprobs":[]' if kind is _TEXT else ""
        self.before = (
            f'event: {name}\ndata: {{"type":"{name}","item_id":"{identifier}","output_index":{position},'
            f'"content_index":0{more},"delta":'
        ).encode()


class _Call:
    """A function call. `item`: as it was announced; None until its name is known."""

    __slots__ = ("arguments", "identifier", "item", "name", "position")

    def __init__(self, identifier: str | None) -> None:
        self.identifier, self.name = identifier, ""
        self.arguments = StringIO()
        self.position = -1
        self.item: dict[str, Any] | None = None


class ResponseEvents:
    """An EventWriter."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._sent = 0
        self._items: list[dict[str, Any]] = []  # in order; one that is not done as it was announced
        self._text: _TextItem | None = None  # that is not done
        self._calls: dict[int, _Call] = {}  # that are not done
        self._reason: str | None = None
        self._mark: dict[str, str] = {}
        self._characters = 0
        self._whole = b""

    def text(self, field: str, text: str) -> bytes:
        item, kind = self._text, _KINDS[field]
        if item is None or item.kind is not kind:
            return self._begun() + self._say(kind, text, [])
        return self._delta(item, text)

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        sent = [self._begun()]
        if (choice := first_choice(chunk)) is not None:
            said = said_in(choice, "delta")
            if (thought := thought_in(said)) is not None:
                sent.append(self._say(_THOUGHT, thought, []))
            if text := said.get("content"):
                sent.append(self._say(_TEXT, text, logprobs_in(choice)))
            if text := said.get("refusal"):
                sent.append(self._say(_REFUSAL, text, []))
            for place, call in enumerate(said.get("tool_calls") or ()):
                sent.append(self._call(position_of(call, place), call))
            if announces_end(reason := choice.get("finish_reason")):
                self._reason, self._mark = INCOMPLETE.get(str(reason)), mark_in(choice)
        return b"".join(sent)

    def end(self, usage: Usage | None) -> bytes:
        begun, done = self._begun(), self._done("incomplete" if self._reason else "completed")
        name = "response.incomplete" if self._reason else "response.completed"
        if self._response.is_kept:
            self._whole = self._response.written(ended(self._reason, self._mark), self._items, usage)
        return begun + done + self._response_event(name, ended(self._reason, self._mark), usage)

    def whole(self) -> bytes:
        return self._whole

    def failed(self, error: GatewayError) -> bytes:
        begun, done = self._begun(), self._done("incomplete")
        told = self._event("error", code=error.code, message=error.message, param=error.param)
        code = ERROR_CODES.get(error.http_status, "server_error")
        state = {"status": "failed", "error": {"code": code, "message": error.message}}
        return begun + done + told + self._response_event("response.failed", state)

    def _event(self, kind: str, **members: Any) -> bytes:
        data = to_json({"type": kind, **members, "sequence_number": self._sent}, inf_nan_mode="null")
        self._sent += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _response_event(self, kind: str, state: dict[str, Any], usage: Usage | None = None) -> bytes:
        """An event with the response as it is now."""
        response = self._response.written(state, self._items, usage)
        number, name = self._sent, kind.encode()
        self._sent += 1
        event = b'event: %b\ndata: {"type":"%b","response":%b,"sequence_number":%d}\n\n'
        return event % (name, name, response, number)

    def _begun(self) -> bytes:
        if self._sent:
            return b""
        state = {"status": "in_progress"}
        created = self._response_event("response.created", state)
        return created + self._response_event("response.in_progress", state)

    def _hold(self, held: StringIO, text: str) -> None:
        held.write(text)
        self._count(len(text))

    def _count(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MAX_TEXT:
            raise BackendFailed(f"The backend's answer is longer than {MAX_TEXT} characters")

    def _add(self, item: dict[str, Any]) -> None:
        if len(self._items) >= MAX_ITEMS:
            raise BackendFailed(f"The backend's answer has more than {MAX_ITEMS} texts and calls")
        self._items.append(item)

    def _say(self, kind: _Kind, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        item, begun = self._text, b""
        if item is None or item.kind is not kind:
            done = self._done("completed")
            item = self._text = self._new_text(kind)
            begun = done + self._announced(item)
        if not logprobs:
            return begun + self._delta(item, text)
        self._hold(item.held, text)
        item.logprobs += logprobs
        self._count(LOGPROB_CHARACTERS * sum(1 + len(each["top_logprobs"]) for each in logprobs))
        return begun + self._part_event(item, f"response.{kind.name}.delta", delta=text, logprobs=logprobs)

    def _delta(self, item: _TextItem, text: str) -> bytes:
        self._hold(item.held, text)
        number = self._sent
        self._sent += 1
        return b'%b%b,"sequence_number":%d}\n\n' % (item.before, to_json(text), number)

    def _new_text(self, kind: _Kind) -> _TextItem:
        position, response = len(self._items), self._response
        if kind is _THOUGHT:
            empty = {**response.reasoning(position, "", "in_progress"), "content": []}
            empty.pop("encrypted_content", None)
        else:
            empty = response.message(position, [], "in_progress")
        self._add(empty)
        return _TextItem(kind, position, empty["id"])

    def _announced(self, item: _TextItem) -> bytes:
        added = self._event("response.output_item.added", output_index=item.position, item=self._items[item.position])
        return added + self._part_event(item, "response.content_part.added", part=item.kind.part("", []))

    def _part_event(self, item: _TextItem, kind: str, **members: Any) -> bytes:
        place = {"item_id": item.identifier, "output_index": item.position, "content_index": 0}
        return self._event(kind, **place, **members)

    def _done(self, status: str) -> bytes:
        """The ends of all items that are not done."""
        sent = []
        if (item := self._text) is not None:
            self._text = None
            sent.append(self._text_done(item, status))
        calls, self._calls = self._calls, {}
        sent += [self._call_done(call, status) for call in calls.values()]
        return b"".join(sent)

    def _text_done(self, item: _TextItem, status: str) -> bytes:
        text, kind = item.held.getvalue(), item.kind
        part = kind.part(text, item.logprobs)
        told = {kind.member: text, **({"logprobs": item.logprobs} if kind is _TEXT else {})}
        done = self._part_event(item, f"response.{kind.name}.done", **told)
        done += self._part_event(item, "response.content_part.done", part=part)
        if kind is _THOUGHT:
            whole = self._response.reasoning(item.position, text, status)
        else:
            whole = self._response.message(item.position, [part], status)
        return done + self._item_done(item.position, whole)

    def _item_done(self, position: int, item: dict[str, Any]) -> bytes:
        self._items[position] = item
        return self._event("response.output_item.done", output_index=position, item=item)

    def _call(self, number: int, told: dict[str, Any]) -> bytes:
        """A piece of a call; a continuation may have no id."""
        sent = b""
        call, identifier = self._calls.get(number), told.get("id")
        if call is None or (identifier and call.identifier and identifier != call.identifier):
            if self._text is not None or call is not None:
                sent += self._done("completed")
            if len(self._calls) >= MAX_ITEMS:
                raise BackendFailed(f"The backend's answer has more than {MAX_ITEMS} calls")
            call = self._calls[number] = _Call(identifier)
        function = told.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        call.name += name
        self._count(len(name))
        self._hold(call.arguments, arguments)
        if call.item is None:
            if not call.name:
                return sent
            call.position = len(self._items)
            call.item = self._response.function_call(call.position, call.identifier, call.name, "", "in_progress")
            sent += self._call_added(call, call.item)
            arguments = call.arguments.getvalue()
        return sent + (self._call_event(call, call.item, "delta", delta=arguments) if arguments else b"")

    def _call_added(self, call: _Call, item: dict[str, Any]) -> bytes:
        self._add(item)
        return self._event("response.output_item.added", output_index=call.position, item=item)

    def _call_event(self, call: _Call, item: dict[str, Any], step: str, **members: Any) -> bytes:
        kind = f"response.function_call_arguments.{step}"
        return self._event(kind, item_id=item["id"], output_index=call.position, **members)

    def _call_done(self, call: _Call, status: str) -> bytes:
        if call.item is None:  # without a name nothing was called
            return b""
        arguments = call.arguments.getvalue()
        done = self._call_event(call, call.item, "done", name=call.name, arguments=arguments)
        whole = self._response.function_call(call.position, call.identifier, call.name, arguments, status)
        return done + self._item_done(call.position, whole)
