"""Chat answers of models that call tools or think aloud: OpenAI's ``tool_calls``, and the thoughts beside ``content``
as ``reasoning`` (vLLM since 0.12) and as ``reasoning_content`` (DeepSeek's API, and vLLM before)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from backend.answer.answers import AnswerFormat, ChatAnswer, Finish, choice_of
from backend.chat.conversation import Turn
from backend.chat.logprobs import LogprobEntry, chat_logprobs
from backend.tools.parts import Arguments, CallStart, Content, Part, Reasoning
from backend.wire import JsonObject


@dataclass(slots=True)
class _Message:
    content: str = ""
    reasoning: str = ""
    calls: list[JsonObject] = field(default_factory=list)


def chat_answer(
    request_id: str, model: str, turn: Turn, *, usage_in_chunks: bool, fingerprint: str | None = None
) -> AnswerFormat:
    if turn.interpreter is None:
        return ChatAnswer(request_id, model, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint)
    return InterpretedAnswer(request_id, model, turn.call_id, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint)


class InterpretedAnswer(ChatAnswer):
    """A `ChatAnswer` with thoughts and calls."""

    def __init__(
        self,
        request_id: str,
        model: str,
        call_id: Callable[[], str],
        *,
        usage_in_chunks: bool,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(request_id, model, usage_in_chunks=usage_in_chunks, fingerprint=fingerprint)
        self._call_id = call_id
        self._called: dict[int, int] = {}  # calls so far, by choice
        self._entries: dict[int, list[LogprobEntry]] = {}  # log probabilities of what is held back

    def chunk(
        self, index: int, parts: Sequence[Part], finish: Finish | None, entries: Sequence[LogprobEntry] | None = None
    ) -> bytes:
        """Log probabilities go out with the next delta, whatever their tokens were read as (as in vLLM)."""
        if finish is None and not entries and not self._entries.get(index) and len(parts) == 1:
            (part,) = parts
            if isinstance(part, Content):
                return self._text_frame(index, part.text)
        deltas = []
        for part in parts:
            called = self._called[index] = self._called.get(index, 0) + isinstance(part, CallStart)
            deltas.append(self._delta(part, called - 1))
        if finish is not None:
            deltas.append({})
        held = self._entries.setdefault(index, [])
        held += entries or ()
        frames = []
        for delta in deltas:
            logprobs = chat_logprobs(held) if held else None
            frames.append(self._frame([choice_of(index, {"delta": delta}, None if delta else finish, logprobs)]))
            held.clear()
        return b"".join(frames)

    def _delta(self, part: Part, call: int) -> JsonObject:
        match part:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning": text, "reasoning_content": text}
            case CallStart(name):
                function = {"name": name, "arguments": ""}
                return {
                    "tool_calls": [{"index": call, "id": self._call_id(), "type": "function", "function": function}]
                }
            case Arguments(text):
                return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}

    def _message(self, parts: Sequence[Part]) -> JsonObject:
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
            said["reasoning"] = said["reasoning_content"] = whole.reasoning
        if whole.calls:
            said["tool_calls"] = whole.calls
        elif not whole.reasoning:
            said["content"] = whole.content
        return said
