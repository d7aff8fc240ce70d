"""Finish reasons: which values count as an end, and which of them are recorded.

Servers use values beside OpenAI's five: ``eos_token`` and ``stop_sequence`` (TGI), ``abort`` (vLLM, SGLang),
``model_length`` and ``error`` (Mistral), ``timeout`` and ``cancelled`` (TensorRT-LLM), ``load`` (Ollama), ``""`` on
every chunk (older Ollama). The client receives what the server sent. The record, spans and metrics receive only values
of this list: an unknown one may be text.
"""

import re
from typing import Any, Final

from backend.wire import ACTIVATIONS_FIELD

KNOWN: Final = frozenset(
    {
        "stop", "length", "tool_calls", "content_filter", "function_call", "eos_token", "stop_sequence", "abort",
        "error", "model_length", "repetition", "timeout", "cancelled", "load", "unload",
        "insufficient_system_resource",
    }
)  # fmt: skip
OTHER: Final = "other"


def announces_end(reason: Any) -> bool:
    """Whether `reason` says that a choice has ended. None and the empty string do not."""
    return reason is not None and reason != ""


def recorded(reason: Any) -> str | None:
    """The word for the record: `reason` where it is known, ``other`` where it is not, None where none was given."""
    if not announces_end(reason):
        return None
    return reason if isinstance(reason, str) and reason in KNOWN else OTHER


WATERMARKS: Final = frozenset({"marked", "greedy", "short", "form", "low_entropy"})
"""What our engine says of the mark of a choice (`backend.answer.mark_report`)."""


def watermark_of(choice: Any) -> str | None:
    """What a choice says of its watermark, in a word for the record; None where it says nothing."""
    said = choice.get("watermark")
    if said is None:
        return None
    return said if isinstance(said, str) and said in WATERMARKS else OTHER


MAX_ACTIVATIONS: Final = 16 << 20
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")


def take_activations(choice: dict[str, Any]) -> str | None:
    """Remove what a choice commits to, which is for the record, and return it if it has the form of a commitment."""
    said = choice.pop(ACTIVATIONS_FIELD, None)
    return said if isinstance(said, str) and len(said) <= MAX_ACTIVATIONS and _BASE64URL.fullmatch(said) else None
