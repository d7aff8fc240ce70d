"""Reader of chat answers for other APIs: one choice, whole or in a chunk, from any server."""

from collections.abc import Mapping
from typing import Any, Final

from backend.wire import Usage
from gateway.openai.answer import THOUGHT_FIELDS, clean_saying
from gateway.openai.finish import watermark_of
from gateway.openai.finite_json import read

MAX_TEXT: Final = 64 << 20
"""Characters of one streamed answer that are held for the events that repeat the whole of it."""

MAX_ITEMS: Final = 4096
"""Texts and calls of one streamed answer, as a server may alternate them without end."""


class _AsItIs:
    """The filter of an answer that was filtered before, or that its policy does not filter."""

    def feed(self, text: str) -> str:
        return text

    def rest(self) -> str:
        return ""

    def flush(self, last: str = "") -> str:
        return last


def _as_it_is(_: bool) -> _AsItIs:
    return _AS_IT_IS


_AS_IT_IS: Final = _AsItIs()


def first_choice(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """A translated call asks for one answer; None where a chunk holds none."""
    choices = body.get("choices")
    return choices[0] if choices else None


def said_in(choice: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """A message or delta in the shape that `clean_saying` leaves: texts are texts, calls are objects."""
    said = choice.get(holder) or {}
    clean_saying(said, _as_it_is)
    if (legacy := said.pop("function_call", None)) is not None:
        said["tool_calls"] = [*(said.get("tool_calls") or ()), {"index": 0, "id": "call_0", "function": legacy}]
    return said


def mark_in(choice: Mapping[str, Any]) -> dict[str, str]:
    """What came of the watermark that policy demands, as a member of what ends an answer of any API; none where the
    choice says nothing of it."""
    said = watermark_of(choice)
    return {} if said is None else {"watermark": said}


def thought_in(said: Mapping[str, Any]) -> str | None:
    """The thoughts, which some servers send under two names at once."""
    for field in reversed(THOUGHT_FIELDS):
        if isinstance(text := said.get(field), str) and text:
            return text
    return None


def arguments_of(written: Any) -> dict[str, Any]:
    """The arguments of a call as an object; under ``arguments`` as they are where a model wrote no such JSON."""
    if not written:
        return {}
    try:
        made = read(str(written).encode("utf-8", "surrogatepass"))
    except ValueError:
        made = None
    return made if isinstance(made, dict) else {"arguments": written}


def detail(usage: Usage, holder: str, name: str) -> int:
    """A count that a server may report about a part of its tokens; 0 where it does not."""
    details = (usage.model_extra or {}).get(holder)
    found = details.get(name) if isinstance(details, dict) else None
    return int(found) if isinstance(found, int | float) else 0


def cached_tokens(usage: Usage) -> int:
    return usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0


def measured(usage: Usage) -> dict[str, float]:
    """What our engine reports besides tokens."""
    found = {"energy_joules": usage.energy_joules, "first_token_ms": usage.first_token_ms}
    return {name: value for name, value in found.items() if value is not None}
