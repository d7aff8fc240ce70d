"""Redaction of every string in a request body. A body with a part that cannot be inspected is refused.

One string is exempt: the top-level ``model``, which is already checked against a list. Numbers in known top-level
fields are sampling parameters. Elsewhere a long number may be a card or a phone and is inspected as text. Content that
is not text (images, audio, token ids, embeddings) cannot be inspected and is refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from policy.errors import UNREADABLE, Finding, RedactionBlocked, RedactionError
from policy.redact.text.json_text import digits_of, is_json, map_values

MAX_DEPTH = 64

TextShape = Literal["text", "messages", "items"]


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """Structure of the request body of one route, from the route's declaration.

    Attributes:
        fields: all top-level fields of the route's wire model. Their names are not redacted. Numbers in them are
            sampling parameters and are not redacted either.
        prompts: fields that hold the prompt: "text" is a text or a list of texts, "messages" a list of chat messages,
            "items" a list of input items as in OpenAI's Responses. The rest of the body is inspected as generic JSON.
    """

    fields: frozenset[str]
    prompts: Mapping[str, TextShape]


PLAIN_PROMPT = BodyLayout(frozenset({"prompt"}), {"prompt": "text"})
"""Layout of a body with a text in `prompt`, for uses without a route."""

# Field names inside messages, tools and schemas of any route. They contain no personal data and may appear in the
# position of an error; other names are shown as `*`.
_STRUCTURE = frozenset({
    "arguments", "body", "call_id", "content", "custom_id", "description", "function", "function_call", "id", "input",
    "include_usage", "instructions", "json_schema", "messages", "metadata", "method", "name", "output", "parameters",
    "prediction", "prompt", "properties", "refusal", "role", "safety_identifier", "schema", "suffix", "summary", "text",
    "tool_call_id", "tool_calls", "tool_choice", "tools", "type", "url", "user",
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
# Item types of a Responses input. An unlisted type may hold content that cannot be inspected.
_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "item_reference"})
_LONG_NUMBER = 10**6  # seven digits; shorter numbers identify no person


class Rewrite(Protocol):
    """Callback that redacts one string."""

    def __call__(self, text: str, position: str, *, escaped: bool = False) -> str:
        """Return `text` redacted.

        ``position``: path in the body, for error messages. ``escaped``: decode JSON escapes in `text` first.
        """


def rewrite_body(body: dict[str, Any], layout: BodyLayout, rewrite: Rewrite) -> dict[str, Any]:
    """Return a copy of `body` with `rewrite` applied to every string.

    Raises RedactionBlocked for content that cannot be inspected as text, and RedactionError for a body that is nested
    too deeply, contains a non-JSON value, or has two names that are equal after redaction.
    """
    result: dict[str, Any] = {}
    fields = layout.fields
    for name, value in body.items():
        shape = layout.prompts.get(name)
        if (name == _EXEMPT and isinstance(value, str)) or (name in fields and isinstance(value, (int, float))):
            result[name] = value
        elif shape == "text":
            result[name] = _prompt(value, name, rewrite)
        elif shape is not None and isinstance(value, list):
            read = _ITEM_READERS[shape]
            result[name] = [read(item, f"{name}[{i}]", rewrite) for i, item in enumerate(value)]
        elif name == "prediction" and isinstance(value, dict):
            result[name] = _message(value, name, rewrite)
        elif name in fields and name not in _UNREADABLE_FIELDS:
            result[name] = _value(value, name, rewrite, 1)
        else:
            key, position = _entry(name, value, "", rewrite)
            result[key] = _value(value, position, rewrite, 1)
    return _same_size(result, body, "the body")


def rewrite_batch_line(line: dict[str, Any], layouts: Mapping[str, BodyLayout], rewrite: Rewrite) -> dict[str, Any]:
    """Redact one line of a batch file: `custom_id` and all of `body`, with the layout of the line's `url`.

    Raises as `rewrite_body`, and RedactionBlocked for a URL that is not in `layouts`.
    """
    layout = layouts.get(str(line.get("url")))
    body = line.get("body")
    if layout is None or not isinstance(body, dict):
        raise _unreadable(
            "url",
            "a batch line for that URL cannot be inspected while redaction is on; use one of the URLs in docs/api.md",
        )
    result: dict[str, Any] = {}
    for name, value in line.items():
        if name in ("url", "method"):
            result[name] = value
        elif name == "body":
            result[name] = rewrite_body(body, layout, rewrite)
        else:
            key, position = _entry(name, value, "", rewrite)
            result[key] = _value(value, position, rewrite, 1)
    return _same_size(result, line, "the line")


def _item(item: Any, position: str, rewrite: Rewrite) -> Any:
    """Redact one item of a Responses input: a message, a call or the output of a call."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if isinstance(item, dict) and kind not in _ITEMS:
        raise _unreadable(
            position,
            "an input item of that type cannot be inspected while redaction is on; send it as a message with text",
        )
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
    hint = "send text (langchain-openai sends it with check_embedding_ctx_length=False)"
    raise _unreadable(name, f"token ids cannot be inspected while redaction is on; {hint}")


def _value(value: Any, position: str, rewrite: Rewrite, depth: int) -> Any:
    if isinstance(value, str):
        return rewrite(value, position)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value, position, rewrite)
    if depth > MAX_DEPTH:
        raise RedactionError(f"{position[:40]}... is nested too deeply to be searched; use fewer levels")
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
    raise RedactionError(f"{position} is not a JSON value")


def _entry(name: str, value: Any, position: str, rewrite: Rewrite) -> tuple[str, str]:
    """Return a member's name, redacted unless it belongs to the wire format, and its position.

    In the position, names outside the wire format are shown as `*`.
    """
    if name in _STRUCTURE:
        return name, f"{position}.{name}" if position else name
    at = f"{position}.*" if position else "*"
    if name in _UNREADABLE_FIELDS and value is not None and not _is_declared(value, position):
        raise _unreadable(
            f"{position}.{name}" if position else name, "it cannot be inspected while redaction is on; leave it out"
        )
    return rewrite(name, f"{at} (its name)"), at


def _is_declared(value: Any, position: str) -> bool:
    """Return whether `value` declares a property in the schema of a tool or of the answer, such as ``file``.

    No server treats that as a file, and all strings in it are inspected.
    """
    return isinstance(value, dict) and _SCHEMA.fullmatch(position) is not None


_SCHEMA = re.compile(r"(?:tools\[\d+\]|response_format)\..*\.properties")


def _perhaps_json(text: str, position: str, rewrite: Rewrite) -> str:
    """Redact a tool's arguments or result. JSON stays valid JSON, and its escapes are decoded for inspection."""
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
        raise RedactionError(f"two names at {position} are the same once redacted; rename one of them")
    return result


def _unreadable(position: str, hint: str) -> RedactionBlocked:
    return RedactionBlocked(Finding(UNREADABLE, position), hint=hint)


_ITEM_READERS: Mapping[TextShape, Callable[[Any, str, Rewrite], Any]] = {"messages": _message, "items": _item}
"""Function that redacts one item of a top-level list, by the list's shape."""
