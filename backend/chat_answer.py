"""Chat answers of models that call tools or think aloud: OpenAI's ``tool_calls`` and the ``reasoning_content`` beside
``content`` that DeepSeek's API began and vLLM has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from backend.answers import Answer, ChatAnswer, Said, choice_of
from backend.conversation import Turn
from backend.interpreter import Interpreter
from backend.logprobs import Entry, chat_logprobs
from backend.tools.parts import Arguments, CallStart, Content, Part, Reasoning
from backend.wire import JsonObject, Usage

CUT = "length"
"""The finish reason of an answer that was not ended by the model."""


@dataclass(slots=True)
class _Message:
    content: str = ""
    reasoning: str = ""
    calls: list[JsonObject] = field(default_factory=list)


def chat_answer(
    request_id: str, model: str, turn: Turn, *, usage_in_chunks: bool, fingerprint: str | None = None
) -> Answer:
    if turn.interpreter is None:
        return ChatAnswer(request_id, model, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint)
    return InterpretedAnswer(
        request_id, model, turn.interpreter, turn.call_id, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint
    )


class InterpretedAnswer(ChatAnswer):
    """A `ChatAnswer` whose text an interpreter reads."""

    def __init__(
        self, request_id: str, model: str, interpreter: Callable[[], Interpreter], call_id: Callable[[], str], *,
        usage_in_chunks: bool, fingerprint: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(request_id, model, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint)
        self._make = interpreter
        self._call_id = call_id
        self._reading: dict[int, Interpreter] = {}
        self._entries: dict[int, list[Entry]] = {}  # log probabilities of what is held back

    def chunk(self, index: int, text: str, finish_reason: str | None, entries: Sequence[Entry] | None = None) -> bytes:
        """Log probabilities go out with the next delta, whatever their tokens were read as (as vLLM has it)."""
        reading = self._reading.setdefault(index, self._make())
        called = reading.calls
        parts = reading.feed(text)
        if finish_reason is not None:
            parts += reading.finish(cut=finish_reason == CUT)
        deltas = []
        for part in parts:
            called += isinstance(part, CallStart)
            deltas.append(self._delta(part, called - 1))
        if finish_reason is not None:
            deltas.append({})
        held = self._entries.setdefault(index, [])
        held += entries or ()
        frames = []
        for delta in deltas:
            reason = _reason(finish_reason, reading) if not delta else None
            logprobs = chat_logprobs(held) if held else None
            frames.append(self._frame([choice_of(index, {"delta": delta}, reason, logprobs)]))
            held.clear()
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

    def body(self, choices: Sequence[Said], usage: Usage) -> bytes:
        bodies = []
        for index, said in enumerate(choices):
            reading = self._make()
            parts = [*reading.feed(said.text), *reading.finish(cut=said.finish_reason == CUT)]
            message = self._message(parts)
            logprobs = None if said.entries is None else chat_logprobs(said.entries)
            bodies.append(choice_of(index, {"message": message}, _reason(said.finish_reason, reading), logprobs))
        of_prompt = choices[0].prompt
        return self._body(bodies, usage, **({} if of_prompt is None else {"prompt_logprobs": of_prompt}))

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
