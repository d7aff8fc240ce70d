"""Filtering of answers: every string of the model's output goes through the output filter.

The filter restores pseudonyms and acts on personal data that the model brought up itself. This module holds the table
of what an answer may say, and the rewriting of a whole answer; `gateway.openai.stream_filter` rewrites streams by the
same table. A member that is not in the table is removed, because it may hold text that was not inspected (fail closed).
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from pydantic_core import to_json

from backend.wire import Usage
from gateway.openai.finish import watermark_of
from gateway.openai.shape import MESSAGE, choices_of
from gateway.openai.usage import usage_of

THOUGHT_FIELDS: Final = ("reasoning", "reasoning_content")
"""Two names for the same text: newer vLLM, Ollama and LiteLLM's peers use the first, SGLang, DeepSeek, llama.cpp the
second, and some servers send both."""
TEXT_FIELDS: Final = (*THOUGHT_FIELDS, "content", "refusal")
"""In the order in which a client reads them where one delta has several."""
SAYING_FIELDS: Final = frozenset({*TEXT_FIELDS, "role", "tool_calls", "function_call"})
CHOICE_FIELDS: Final = frozenset(
    {"index", "text", "message", "delta", "finish_reason", "stop_reason", "watermark", "logprobs", "prompt_logprobs"}
)
END_FIELDS: Final = ("finish_reason", "stop_reason", "watermark")
"""Fields of a choice, in its last chunk: why it ended, and what our engine says of its mark."""
BODY_FIELDS: Final = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"}
)
CALL_TEXTS: Final = (("function", "arguments", True), ("custom", "input", False))
"""What a tool call says, and whether that is itself JSON: a function's arguments are, a custom tool's input is not."""
SIGNED: Final = "extra_content"
CALL_FIELDS: Final = frozenset({"id", "index", "type", SIGNED, *(kind for kind, _, _ in CALL_TEXTS)})
MAX_SIGNATURE: Final = 64 << 10
"""Characters of the signature of one tool call; Gemini's have some hundred to some thousand."""
TELLING_FIELDS: Final = frozenset({"logprobs", "prompt_logprobs"})  # their tokens would reveal what the filter hides

NAMES: Final = ("id", "object", "model", "system_fingerprint", "service_tier")
_PLAIN_NAME: Final = re.compile(r"[\w ./:+,()\\-]{0,256}")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z_ -]{0,64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")


class TextFilter(Protocol):
    """`policy.redact.StreamFilter`: the same result whatever the pieces are. `rest`: what `flush` would give now.
    `last`: what is fed before that."""

    def feed(self, text: str) -> str: ...

    def rest(self) -> str: ...

    def flush(self, last: str = "") -> str: ...


FilterFactory = Callable[[bool], TextFilter]
"""Makes a filter; True for text that is itself JSON (tool-call arguments)."""


def rewrite_body(body: dict[str, Any], make_filter: FilterFactory) -> None:
    """Filter a whole answer in place: every choice's text, chat or completion.

    Raises BackendFailed where it has not the shape of one, RedactionError where it may not be sent.
    """
    choices = choices_of(body, MESSAGE)
    rewrite_choices(body, choices, usage_of(body.get("usage")), make_filter)


def rewrite_choices(
    body: dict[str, Any], choices: list[dict[str, Any]], usage: Usage | None, make_filter: FilterFactory
) -> None:
    """As `rewrite_body`, of a `body` whose `choices` and `usage` were read before."""
    drop_unknown(body, BODY_FIELDS)
    clean_names(body, make_filter)
    body.pop("usage", None)
    if usage is not None:
        body["usage"] = usage.model_dump(exclude_none=True)
    for choice in choices:
        drop_unknown(choice, CHOICE_FIELDS)
        choice.pop("delta", None)
        for field in choice.keys() & TELLING_FIELDS:
            choice[field] = None
        clean_ends(choice, make_filter)
        if choice.get("text") is not None:
            choice["text"] = whole(as_text(choice["text"]), make_filter(False))
        message = choice.get("message")
        if message is None:
            choice.pop("message", None)
            continue
        clean_saying(message, make_filter)
        for field in TEXT_FIELDS:
            if message.get(field) is not None:
                message[field] = whole(as_text(message[field]), make_filter(False))
        for call in calls_in(message):
            if call.get("name") is not None:
                call["name"] = whole(as_text(call["name"]), make_filter(False))
            for field, is_json in (("arguments", True), ("input", False)):
                if call.get(field):
                    call[field] = whole(call[field], make_filter(is_json))


def whole(text: str, text_filter: TextFilter) -> str:
    """`text` through a filter of its own."""
    return text_filter.flush(text)


def drop_unknown(holder: dict[str, Any], known: frozenset[str]) -> None:
    """Remove what may hold text that was not inspected."""
    if holder.keys() <= known:
        return
    for field in holder.keys() - known:
        del holder[field]


def clean_names(body: dict[str, Any], make_filter: FilterFactory) -> bool:
    """Leave of the names around an answer (id, model, ...) only names; whether one was changed."""
    changed = False
    for field in NAMES:
        if (value := body.get(field)) is not None:
            body[field] = after = _name(value, _PLAIN_NAME, make_filter)
            changed = changed or after != value
    drop_odd_date(body)
    return changed


def drop_odd_date(body: dict[str, Any]) -> None:
    """Remove a `created` that is not a number."""
    if not isinstance(body.get("created"), int | float | None):
        del body["created"]


def clean_ends(choice: dict[str, Any], make_filter: FilterFactory) -> None:
    """The same for why a choice ended. A stop string is the caller's own text, so it is filtered as text is."""
    for field in ("finish_reason", "stop_reason"):
        value = choice.get(field)
        if value is not None and not (field == "stop_reason" and isinstance(value, int)):
            choice[field] = _name(value, _PLAIN_WORD, make_filter)
    if choice.get("watermark") is not None:
        choice["watermark"] = watermark_of(choice)


def _name(value: Any, plain: re.Pattern[str], make_filter: FilterFactory) -> str:
    """`value` if it is a plain name, else what the filter leaves of it; ``other`` for what is no text."""
    if isinstance(value, int | float):
        value = str(value)
    if not isinstance(value, str):
        return "other"
    return value if plain.fullmatch(value) else whole(value, make_filter(False))


def clean_saying(said: dict[str, Any], make_filter: FilterFactory) -> None:
    """Bring a message or delta into the shape of the table."""
    drop_unknown(said, SAYING_FIELDS)
    if (role := said.get("role")) is not None:
        said["role"] = _name(role, _PLAIN_WORD, make_filter)
    if isinstance(said.get("content"), list):
        _spread_parts(said)
    for call in said.get("tool_calls") or ():
        _put_right(call, make_filter)
    if (legacy := said.get("function_call")) is not None:
        _put_right_holder(legacy, "arguments")


def _spread_parts(said: dict[str, Any]) -> None:
    """Content that came as a list of parts becomes text; thoughts among them (Mistral) become `reasoning_content`."""
    thoughts, texts = [], []
    for part in said["content"]:
        if not isinstance(part, dict):
            continue
        thinking = part.get("thinking")
        if thinking is not None or part.get("type") in ("thinking", "reasoning"):
            thoughts.append(as_text(thinking if thinking is not None else part.get("text")))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    said["content"] = "".join(texts)
    if thought := "".join(thoughts):
        said["reasoning_content"] = as_text(said.get("reasoning_content")) + thought


def as_text(value: Any) -> str:
    """A text, or the text of a list's parts. Anything else says nothing."""
    if isinstance(value, list):
        parts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _put_right(call: dict[str, Any], make_filter: FilterFactory) -> None:
    """Leave of a tool call what is known; arguments that came as an object become the text that they stand for."""
    drop_unknown(call, CALL_FIELDS)
    for field in ("id", "type"):
        if (value := call.get(field)) is not None:
            call[field] = _name(value, _PLAIN_NAME, make_filter)
    for kind, field, _ in CALL_TEXTS:
        if (holder := call.get(kind)) is not None:
            _put_right_holder(holder, field)
    if SIGNED in call:
        signed = _signed(call.pop(SIGNED), make_filter)
        if signed is not None:
            call[SIGNED] = signed


def _signed(said: Any, make_filter: FilterFactory) -> dict[str, Any] | None:
    """What Gemini signs a tool call with, and wants back with the call in the next turn or refuses that: its own state,
    encrypted, in base64 (ai.google.dev/gemini-api/docs/thought-signatures). Nothing else of `said`; None where it holds
    no such signature.

    Encrypted bytes say nothing to a filter. What could say something is not passed: what is no base64, and what the
    filter finds something in, as it is written or decoded.
    """
    google = said.get("google") if isinstance(said, dict) else None
    written = google.get("thought_signature") if isinstance(google, dict) else None
    if not isinstance(written, str) or len(written) > MAX_SIGNATURE or not _BASE64.fullmatch(written):
        return None
    try:
        decoded = urlsafe_b64decode(written.rstrip("=").translate(_URL_SAFE) + "=" * (-len(written.rstrip("=")) % 4))
    except ValueError:
        return None
    for text in (written, decoded.decode("utf-8", "replace")):
        if whole(text, make_filter(False)) != text:
            return None
    return {"google": {"thought_signature": written}}


_URL_SAFE: Final = str.maketrans("+/", "-_")


def _put_right_holder(holder: dict[str, Any], field: str) -> None:
    drop_unknown(holder, frozenset({"name", field}))
    if holder.get(field) is not None and not isinstance(holder[field], str):
        holder[field] = to_json(holder[field], inf_nan_mode="null").decode()


def calls_in(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What holds the name and the arguments of each call in a message."""
    if (legacy := said.get("function_call")) is not None:
        yield legacy
    for call in said.get("tool_calls") or ():
        for kind, _, _ in CALL_TEXTS:
            if (holder := call.get(kind)) is not None:
                yield holder


def count_characters(said: dict[str, Any]) -> int:
    """Characters of text in a message, a delta or a completion's choice."""
    size = len(text) if isinstance(text := said.get("text"), str) else 0
    for field in TEXT_FIELDS:
        if text := said.get(field):
            size += len(text) if isinstance(text, str) else sum(map(_part_size, text)) if isinstance(text, list) else 0
    for call in said.get("tool_calls") or ():
        for kind, field, _ in CALL_TEXTS:
            if (holder := call.get(kind)) is not None and isinstance(text := holder.get(field), str):
                size += len(text)
    return size


def count_tool_calls(said: object) -> int:
    """Tool calls that a message holds, or that a piece of one begins: a continuation has no id."""
    calls = said.get("tool_calls") if isinstance(said, dict) else None
    return sum(isinstance(call, dict) and bool(call.get("id")) for call in calls) if isinstance(calls, list) else 0


def _part_size(part: Any) -> int:
    text = part.get("text") if isinstance(part, dict) else None
    return len(text) if isinstance(text, str) else 0
