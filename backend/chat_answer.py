"""Chat answers of models that call tools or think aloud: OpenAI's ``tool_calls`` and the ``reasoning_content`` beside
``content`` that DeepSeek's API began and vLLM has."""

from collections.abc import Callable
from dataclasses import dataclass, field

from backend.answers import Answer, ChatAnswer
from backend.conversation import Turn
from backend.interpreter import Interpreter
from backend.tools.parts import Arguments, CallStart, Content, Part, Reasoning
from backend.wire import JsonObject, Usage


@dataclass(slots=True)
class _Message:
    content: str = ""
    reasoning: str = ""
    calls: list[JsonObject] = field(default_factory=list)


def chat_answer(request_id: str, model: str, turn: Turn, *, usage_in_chunks: bool) -> Answer:
    if turn.interpreter is None:
        return ChatAnswer(request_id, model, usage_in_chunks=usage_in_chunks)
    return InterpretedAnswer(request_id, model, turn.interpreter, turn.call_id, usage_in_chunks=usage_in_chunks)


class InterpretedAnswer(ChatAnswer):
    """A `ChatAnswer` whose text an interpreter reads."""

    def __init__(
        self, request_id: str, model: str, interpreter: Callable[[], Interpreter], call_id: Callable[[], str], *,
        usage_in_chunks: bool,
    ) -> None:  # fmt: skip
        super().__init__(request_id, model, usage_in_chunks=usage_in_chunks)
        self._make = interpreter
        self._call_id = call_id
        self._reading: dict[int, Interpreter] = {}

    def chunk(self, index: int, text: str, finish_reason: str | None) -> bytes:
        reading = self._reading.setdefault(index, self._make())
        called = reading.calls
        parts = reading.feed(text)
        if finish_reason is not None:
            parts += reading.finish()
        deltas = []
        for part in parts:
            called += isinstance(part, CallStart)
            deltas.append(self._delta(part, called - 1))
        frames = [self._frame([_choice(index, {"delta": delta}, None)]) for delta in deltas]
        if finish_reason is not None:
            frames.append(self._frame([_choice(index, {"delta": {}}, _reason(finish_reason, reading))]))
        return b"".join(frames)

    def _delta(self, part: Part, call: int) -> JsonObject:
        match part:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallStart(name):
                function = {"name": name, "arguments": ""}
                return {
                    "tool_calls": [{"index": call, "id": self._call_id(), "type": "function", "function": function}]
                }
            case Arguments(text):
                return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}

    def body(self, choices: list[tuple[str, str | None]], usage: Usage) -> bytes:
        bodies = []
        for index, (text, reason) in enumerate(choices):
            reading = self._make()
            message = self._message([*reading.feed(text), *reading.finish()])
            bodies.append(_choice(index, {"message": message}, _reason(reason, reading)))
        return self._body(bodies, usage)

    def _message(self, parts: list[Part]) -> JsonObject:
        whole = _Message()
        for part in parts:
            match part:
                case Content(text):
                    whole.content += text
                case Reasoning(text):
                    whole.reasoning += text
                case CallStart(name):
                    function = {"name": name, "arguments": ""}
                    whole.calls.append({"id": self._call_id(), "type": "function", "function": function})
                case Arguments(text):
                    whole.calls[-1]["function"]["arguments"] += text
        said: JsonObject = {"role": "assistant", "content": whole.content or None, "refusal": None}
        if whole.reasoning:
            said["reasoning_content"] = whole.reasoning
        if whole.calls:
            said["tool_calls"] = whole.calls
        elif not whole.reasoning:
            said["content"] = whole.content
        return said


def _reason(reason: str | None, reading: Interpreter) -> str | None:
    return "tool_calls" if reason == "stop" and reading.calls else reason


def _choice(index: int, content: JsonObject, finish_reason: str | None) -> JsonObject:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
