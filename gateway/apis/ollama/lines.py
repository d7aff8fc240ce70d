"""The lines of Ollama's streams and the objects of its whole answers. Source: docs/api.md of Ollama."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import to_json

from backend.wire import Usage
from gateway.apis.chat_answer import (
    MAX_ITEMS,
    MAX_TEXT,
    arguments_of,
    first_choice,
    mark_in,
    said_in,
    thought_in,
)
from gateway.errors import BackendFailed, GatewayError
from gateway.openai.answer import END_FIELDS
from gateway.openai.finish import announces_end
from gateway.openai.shape import position_of

_THOUGHTS: Final = frozenset({"reasoning", "reasoning_content"})


def error_line(error: GatewayError) -> bytes:
    """Ollama's clients read ``error`` as a sentence."""
    told = {"error": error.message, "code": error.code, "param": error.param, **error.details}
    return to_json({name: value for name, value in told.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Form:
    """Form of the answer of one call. `made_at`: when, in ISO 8601. `of_chat`: messages, else ``response``."""

    model: str
    made_at: str
    of_chat: bool
    shows_thinking: bool = True

    @property
    def head(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": self.made_at}

    def says(self, text: str, thought: str | None = None, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The members that say something."""
        more = {"thinking": thought, "tool_calls": calls}
        more = {name: value for name, value in more.items() if value}
        if self.of_chat:
            return {"message": {"role": "assistant", "content": text, **more}}
        return {"response": text, **more}

    def ending(self, choice: Mapping[str, Any], usage: Usage | None) -> dict[str, Any]:
        """By a chat's choice."""
        reason = "length" if choice.get("finish_reason") == "length" else "stop"
        told: dict[str, Any] = {"done": True, "done_reason": reason, **mark_in(choice)}
        if usage is not None:
            told |= {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        return told


def call_of(identifier: object, name: object, arguments: object) -> dict[str, Any]:
    """A tool call. Its arguments are an object; under ``arguments`` as they are where a model wrote none."""
    function = {"name": str(name or ""), "arguments": arguments_of(arguments)}
    return {"id": str(identifier), "function": function} if identifier else {"function": function}


class OllamaLines:
    """An EventWriter. Calls are held until the end, since a line has the whole of one."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._parts: dict[bool, tuple[bytes, bytes]] = {}  # around a text, by whether it is a thought
        self._calls: dict[int, dict[str, str]] = {}
        self._held = 0
        self._end: dict[str, Any] = {}

    def text(self, field: str, text: str) -> bytes:
        thought = field in _THOUGHTS
        if thought and not self._form.shows_thinking:
            return b""
        before, after = self._parts.get(thought) or self._around(thought)
        return b"%b%b%b" % (before, to_json(text), after)

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        if (choice := first_choice(chunk)) is None:
            return b""
        said, sent = said_in(choice, "delta"), []
        if (thought := thought_in(said)) is not None:
            sent.append(self.text("reasoning", thought))
        sent += (self.text("content", text) for name in ("content", "refusal") if (text := said.get(name)))
        for at, call in enumerate(said.get("tool_calls") or ()):
            self._hold(position_of(call, at), call)
        if announces_end(choice.get("finish_reason")):
            self._end = {name: choice.get(name) for name in END_FIELDS}
        return b"".join(sent)

    def end(self, usage: Usage | None) -> bytes:
        calls = [call_of(held["id"], held["name"], held["arguments"]) for held in self._calls.values()]
        form = self._form
        called = _line({**form.head, **form.says("", calls=calls), "done": False}) if calls else b""
        return called + _line({**form.head, **form.says(""), **form.ending(self._end, usage)})

    def whole(self) -> bytes:
        return b""

    def failed(self, error: GatewayError) -> bytes:
        return error_line(error) + b"\n"

    def _around(self, thought: bool) -> tuple[bytes, bytes]:
        """The bytes before and after a text in its line."""
        mark = "\0"
        says = self._form.says("", mark) if thought else self._form.says(mark)
        before, after = _line({**self._form.head, **says, "done": False}).split(to_json(mark))
        self._parts[thought] = before, after
        return before, after

    def _hold(self, number: int, told: Mapping[str, Any]) -> None:
        """Raises BackendFailed for more than may be held."""
        held = self._calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
        function = told.get("function") or {}
        held["id"] = held["id"] or str(told.get("id") or "")
        for member in ("name", "arguments"):
            piece = str(function.get(member) or "")
            held[member] += piece
            self._held += len(piece)
        if len(self._calls) > MAX_ITEMS or self._held > MAX_TEXT:
            raise BackendFailed("The backend's answer has more calls than one may have")


def _line(told: dict[str, Any]) -> bytes:
    return to_json(told, inf_nan_mode="null") + b"\n"
