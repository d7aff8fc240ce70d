"""The message object of ``/v1/messages``. Source: Anthropic's API reference, Messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backend.wire import Usage
from gateway.apis.chat_answer import cached_tokens, detail, mark_in, measured

_REASONS: Final = {
    "length": "max_tokens",
    "model_length": "model_context_window_exceeded",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "stop_sequence": "stop_sequence",
}
"""By a chat's finish_reason; ``end_turn`` for any other."""


@dataclass(frozen=True, slots=True)
class MessageObject:
    """`stops`: its stop sequences. `shows_thinking`: whether thoughts are shown."""

    identifier: str
    model: str
    stops: frozenset[str] = frozenset()
    shows_thinking: bool = True

    def begun(self, usage: Usage | None = None) -> dict[str, Any]:
        """The message before anything is said."""
        return {
            "id": self.identifier, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage_of(usage),
        }  # fmt: skip

    def ending(self, choice: Mapping[str, Any], *, calls: bool) -> dict[str, Any]:
        """Why it ended, by a chat's choice, and what came of its mark. `calls`: whether it calls tools."""
        stop = choice.get("stop_reason")
        if isinstance(stop, str) and stop in self.stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop, **mark_in(choice)}
        reason = _REASONS.get(str(choice.get("finish_reason")), "end_turn")
        if calls and reason == "end_turn":
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None, **mark_in(choice)}


def usage_of(usage: Usage | None) -> dict[str, Any]:
    """Zeros where it is not known."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = cached_tokens(usage)
    told: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        **measured(usage),
    }
    if thought := detail(usage, "completion_tokens_details", "reasoning_tokens"):
        told["output_tokens_details"] = {"thinking_tokens": thought}
    return told


def tool_id(call: Mapping[str, Any], number: int) -> str:
    return str(call.get("id") or f"call_{number}")
