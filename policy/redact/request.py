"""Every string of a request body, whatever it is for: redacted, or the body does not pass.

One string is exempt: the top-level ``model``, which the caller has matched against a list. Numbers of a known name at
the top level are sampling parameters; anywhere else a long number may be a card or a phone, and is searched as text.
What cannot be read as text (images, audio, token ids, embeddings) is refused: it cannot be inspected.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from policy.errors import UNREADABLE, Finding, RedactionBlocked, RedactionError
from policy.redact.text.json_text import digits_of, is_json, map_values

Endpoint = Literal["chat", "completions", "embeddings", "responses"]

MAX_DEPTH = 64

# Names of the wire format: they hold nothing personal and may stand in an error's position. Any other is shown as `*`.
_WIRE_NAMES = frozenset({
    "messages", "prompt", "role", "content", "name", "type", "text", "refusal", "tool_calls", "tool_call_id",
    "function", "function_call", "arguments", "id", "tools", "description", "parameters", "properties",
    "tool_choice", "user", "metadata", "stop", "suffix", "prediction", "response_format", "json_schema",
    "schema", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "include_usage", "n", "seed", "logprobs", "top_logprobs", "frequency_penalty",
    "presence_penalty", "logit_bias", "safety_identifier", "input", "instructions", "output", "summary", "call_id",
    "custom_id", "method", "url", "body", "dimensions", "encoding_format",
})  # fmt: skip
_EXEMPT = "model"
_UNREADABLE_FIELDS = frozenset({"prompt_token_ids", "input_ids", "prompt_embeds", "image_url", "video_url", "audio_url",
                                "input_audio", "file", "encrypted_content", "file_data", "file_id", "image_data",
                                "audio_data", "video_data", "multi_modal_data"})  # fmt: skip
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text", "summary_text", "reasoning_text"})
_MEDIA_PARTS = {
    "image": "images",
    "image_url": "images",
    "image_embeds": "images",
    "image_pil": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "audio_embeds": "audio",
    "video": "videos",
    "video_url": "videos",
    "document": "files",
    "file": "files",
    "input_file": "files",
}
# What a Responses input may be made of; a type that is not here may hold what nobody can read.
_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "item_reference"})
_BATCH_URLS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
_LONG_NUMBER = 10**6  # seven digits; shorter numbers identify nobody


class Rewrite(Protocol):
    def __call__(self, text: str, position: str, *, escaped: bool = False) -> str:
        """`text` redacted. ``escaped``: its JSON escapes count as what they spell."""


def rewrite_body(body: dict[str, Any], endpoint: Endpoint, rewrite: Rewrite) -> dict[str, Any]:
    """A copy of `body` with every string put through `rewrite`.

    Raises RedactionBlocked for what cannot be read as text, RedactionError for a body that is too deep, is no JSON, or
    has names that are the same once redacted.
    """
    result: dict[str, Any] = {}
    for name, value in body.items():
        items_of = _ITEM_READERS.get((name, endpoint))
        if (name == _EXEMPT and isinstance(value, str)) or (name in _WIRE_NAMES and isinstance(value, (int, float))):
            result[name] = value
        elif items_of is not None and isinstance(value, list):
            result[name] = [items_of(item, f"{name}[{i}]", rewrite) for i, item in enumerate(value)]
        elif (name, endpoint) in (("prompt", "completions"), ("input", "embeddings")):
            result[name] = _prompt(value, name, rewrite)
        elif name == "prediction" and isinstance(value, dict):
            result[name] = _message(value, name, rewrite)
        else:
            key, position = _entry(name, value, "", rewrite)
            result[key] = _value(value, position, rewrite, 1)
    return _same_size(result, body, "the body")


def rewrite_batch_line(line: dict[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    """One line of a batch file: `custom_id` and all of `body`, which the line's `url` says how to read.

    Raises as `rewrite_body`, and RedactionBlocked for a URL whose bodies nobody can read.
    """
    endpoint = _BATCH_URLS.get(str(line.get("url")))
    body = line.get("body")
    if endpoint is None or not isinstance(body, dict):
        raise _unreadable("url", "a batch line for that URL cannot be inspected while redaction is on")
    result: dict[str, Any] = {}
    for name, value in line.items():
        if name in ("url", "method"):
            result[name] = value
        elif name == "body":
            result[name] = rewrite_body(body, endpoint, rewrite)
        else:
            key, position = _entry(name, value, "", rewrite)
            result[key] = _value(value, position, rewrite, 1)
    return _same_size(result, line, "the line")


def _item(item: Any, position: str, rewrite: Rewrite) -> Any:
    """One item of a Responses input: a message, or a call and what came of it."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if isinstance(item, dict) and kind not in _ITEMS:
        raise _unreadable(position, "an input item of that type cannot be inspected while redaction is on")
    if kind == "function_call_output" and isinstance(item.get("output"), str):
        output = _perhaps_json(item["output"], f"{position}.output", rewrite)
        return {**_message({**item, "output": ""}, position, rewrite), "output": output}
    return _message(item, position, rewrite)


def _message(message: Any, position: str, rewrite: Rewrite) -> Any:
    if not isinstance(message, dict):
        return _value(message, position, rewrite, 2)
    result: dict[str, Any] = {}
    for name, value in message.items():
        key, at = _entry(name, value, position, rewrite)
        if name in ("content", "output", "summary") and isinstance(value, list):
            result[name] = [_part(part, f"{at}[{i}]", rewrite) for i, part in enumerate(value)]
        elif name == "content" and isinstance(value, str) and message.get("role") in ("tool", "function"):
            result[name] = _perhaps_json(value, at, rewrite)
        else:
            result[key] = _value(value, at, rewrite, 3)
    return _same_size(result, message, position)


def _part(part: Any, position: str, rewrite: Rewrite) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, str) and kind not in _TEXT_PARTS:
        what = _MEDIA_PARTS.get(kind if isinstance(kind, str) else "", "content parts of an unknown type")
        raise _unreadable(position, f"{what} cannot be inspected while redaction is on; send text")
    return _value(part, position, rewrite, 4)


def _prompt(prompt: Any, name: str, rewrite: Rewrite) -> Any:
    if isinstance(prompt, str):
        return rewrite(prompt, name)
    if isinstance(prompt, list) and all(isinstance(item, str) for item in prompt):
        return [rewrite(item, f"{name}[{i}]") for i, item in enumerate(prompt)]
    raise _unreadable(name, "token ids cannot be inspected while redaction is on; send text")


def _value(value: Any, position: str, rewrite: Rewrite, depth: int) -> Any:
    if isinstance(value, str):
        return rewrite(value, position)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value, position, rewrite)
    if depth > MAX_DEPTH:
        raise RedactionError(f"{position[:40]}... is nested too deeply to be searched")
    if isinstance(value, list):
        return [_value(item, f"{position}[{i}]", rewrite, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for name, item in value.items():
            key, at = _entry(name, item, position, rewrite)
            if name == "arguments" and isinstance(item, str):
                result[key] = _perhaps_json(item, at, rewrite)
            else:
                result[key] = _value(item, at, rewrite, depth + 1)
        return _same_size(result, value, position)
    raise RedactionError(f"{position} is no JSON value")


def _entry(name: str, value: Any, position: str, rewrite: Rewrite) -> tuple[str, str]:
    """A member's name, redacted unless it is the wire format's, and its position in words that tell nothing."""
    if name in _WIRE_NAMES:
        return name, f"{position}.{name}" if position else name
    at = f"{position}.*" if position else "*"
    if name in _UNREADABLE_FIELDS and value is not None:
        raise _unreadable(f"{position}.{name}" if position else name, "it cannot be inspected while redaction is on")
    return rewrite(name, f"{at} (its name)"), at


def _perhaps_json(text: str, position: str, rewrite: Rewrite) -> str:
    """A tool's arguments or result: where it is JSON it stays JSON, and its escapes hide nothing."""
    if is_json(text):
        return map_values(text, lambda value: rewrite(value, position))
    return rewrite(text, position, escaped=True)


def _number(value: int | float, position: str, rewrite: Rewrite) -> int | float | str:
    if -_LONG_NUMBER < value < _LONG_NUMBER:
        return value
    text = digits_of(repr(value))
    changed = rewrite(text, position)
    return value if changed == text else changed


def _same_size(result: dict[str, Any], original: dict[str, Any], position: str) -> dict[str, Any]:
    if len(result) != len(original):
        raise RedactionError(f"two names at {position} are the same once redacted")
    return result


def _unreadable(position: str, hint: str) -> RedactionBlocked:
    return RedactionBlocked(Finding(UNREADABLE, position), hint=hint)


_ITEM_READERS: dict[tuple[str, Endpoint], Callable[[Any, str, Rewrite], Any]] = {
    ("messages", "chat"): _message,
    ("input", "responses"): _item,
}
"""What rewrites each item of a list at the top level, by the list's name and the endpoint."""
