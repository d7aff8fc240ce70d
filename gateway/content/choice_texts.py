"""The content of an answer, by choice, in the form in which it is stored: texts, tool calls and token probabilities."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from gateway.openai.answer import TEXT_FIELDS

ChoiceTexts = dict[int, dict[str, Any]]


def choice_texts_of(body: Mapping[str, Any]) -> ChoiceTexts:
    """Return the content of a complete answer, as the client receives it."""
    texts: ChoiceTexts = {}
    for choice in body.get("choices") or ():
        add_choice(texts, choice, choice.get("message"))
    return texts


def add_choice(known: ChoiceTexts, choice: Mapping[str, Any], message: object) -> None:
    """Add the content of one choice to `known`.

    ``choice``: a complete choice, or a chunk of a stream; ``message`` is then its delta.
    """
    index = choice["index"] if isinstance(choice.get("index"), int) else 0
    texts = known.setdefault(index, {"index": index})
    _add(texts, "text", choice)
    if tokens := _tokens(choice.get("logprobs")):
        texts.setdefault("logprobs", []).extend(tokens)
    if isinstance(message, Mapping):
        for field in TEXT_FIELDS:
            _add(texts, field, message)
        for position, call in enumerate(message.get("tool_calls") or ()):
            calls = texts.setdefault("tool_calls", {})
            kept = calls.setdefault(str(call.get("index", position)), {})
            function = call.get("function") or {}
            _add(kept, "name", function)
            _add(kept, "arguments", function)
    if choice.get("finish_reason"):
        texts["finish_reason"] = str(choice["finish_reason"])


def _tokens(logprobs: object) -> list[list[Any]]:
    """Return each token with its log probability (nats), from the format of chats or completions.

    The alternatives to a token are not stored.
    """
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(entries := logprobs.get("content"), list):
        return [[str(one.get("token")), _number(one.get("logprob"))] for one in entries if isinstance(one, Mapping)]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if isinstance(tokens, list) and isinstance(values, list):
        return [[str(token), _number(value)] for token, value in zip(tokens, values, strict=False)]
    return []


def _number(value: object) -> float | None:
    """Return `value` as a float; None if it is not a number, or is one that canonical JSON cannot represent."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _add(texts: dict[str, Any], field: str, source: Mapping[str, Any]) -> None:
    piece = source.get(field)
    if isinstance(piece, str) and piece:
        texts[field] = texts.get(field, "") + piece
