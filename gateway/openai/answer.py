"""What the model said, on its way to the client: every string of it goes through the output filter.

The filter restores pseudonyms and acts on personal data that the model brought up itself. One filter a stream of text:
each choice, and inside it content, reasoning, refusal and every tool call's arguments, has its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pydantic_core import to_json

TEXT_FIELDS = ("content", "reasoning_content", "refusal")
# A field that is not known may hold text that nobody has looked at: it does not pass (fail closed).
SAYING_FIELDS = frozenset({*TEXT_FIELDS, "role", "tool_calls"})
CHOICE_FIELDS = frozenset(
    {"index", "text", "message", "delta", "finish_reason", "stop_reason", "logprobs", "prompt_logprobs"}
)
BODY_FIELDS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
# What a tool call says, and whether that is itself JSON: a function's arguments are, a custom tool's input is not.
CALL_TEXTS = (("function", "arguments", True), ("custom", "input", False))
_HOLDERS = {field: kind for kind, field, _ in CALL_TEXTS}
CALL_FIELDS = frozenset({"id", "index", "type", *(kind for kind, _, _ in CALL_TEXTS)})
TELLING_FIELDS = frozenset({"logprobs", "prompt_logprobs"})  # their tokens would tell what the filter hides


class TextFilter(Protocol):
    """`policy.redact.StreamFilter`: the same result whatever the pieces are."""

    def feed(self, text: str) -> str: ...

    def flush(self) -> str: ...


FilterFactory = Callable[[bool], TextFilter]
"""Makes a filter; True for text that is itself JSON (tool-call arguments)."""


def rewrite_body(body: dict[str, Any], make_filter: FilterFactory) -> None:
    """Filter a whole answer in place: every choice's text, chat or completion."""
    _drop_unknown(body, BODY_FIELDS)
    for choice in body.get("choices") or []:
        _drop_unknown(choice, CHOICE_FIELDS)
        for field in choice.keys() & TELLING_FIELDS:
            choice[field] = None
        if choice.get("text") is not None:
            choice["text"] = _whole(_as_text(choice["text"]), make_filter(False))
        message = choice.get("message")
        if not isinstance(message, dict):
            choice.pop("message", None)
            continue
        _drop_unknown(message, SAYING_FIELDS)
        for field in TEXT_FIELDS:
            if message.get(field) is not None:
                message[field] = _whole(_as_text(message[field]), make_filter(False))
        for call in message.get("tool_calls") or []:
            _put_right(call)
            for holder, field, is_json in _said_by(call):
                holder[field] = _whole(holder[field], make_filter(is_json))


def _drop_unknown(holder: dict[str, Any], known: frozenset[str]) -> bool:
    """Take out what may hold text that nobody has looked at; whether there was any."""
    if holder.keys() <= known:
        return False
    for field in holder.keys() - known:
        del holder[field]
    return True


def _as_text(value: Any) -> str:
    """A text, or the text of a list's parts: some servers send their thoughts as parts. Anything else says nothing."""
    if isinstance(value, list):
        parts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _put_right(call: dict[str, Any]) -> bool:
    """Leave of a tool call what is known; arguments that came as an object become the text that they stand for.
    Whether anything had to be done."""
    changed = _drop_unknown(call, CALL_FIELDS)
    for kind, field, _ in CALL_TEXTS:
        holder = call.get(kind)
        if holder is None:
            continue
        if not isinstance(holder, dict):
            del call[kind]
            changed = True
            continue
        changed = _drop_unknown(holder, frozenset({"name", field})) or changed
        if holder.get(field) is not None and not isinstance(holder[field], str):
            holder[field] = to_json(holder[field]).decode()
            changed = True
    return changed


def _said_by(call: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Where a tool call says something: its holder, its field, whether it is JSON."""
    for kind, field, is_json in CALL_TEXTS:
        if (holder := call.get(kind)) and holder.get(field):
            yield holder, field, is_json


class StreamRewriter:
    """Filters the chunks of one streamed answer."""

    def __init__(self, make_filter: FilterFactory) -> None:
        self._make_filter = make_filter
        self._filters: dict[tuple[int, str, int], TextFilter] = {}

    def rewrite(self, chunk: dict[str, Any], payload: bytes) -> list[bytes]:
        """The payloads to send in place of `payload`, which `chunk` is the parsed form of.

        None while the text is held back; two when a choice ends and a held-back rest goes out before its end.
        """
        changed, says_something = _drop_unknown(chunk, BODY_FIELDS), not chunk.get("choices")
        tails: list[dict[str, Any]] = []
        for choice in chunk.get("choices") or []:
            index = choice.get("index", 0)
            changed = _drop_unknown(choice, CHOICE_FIELDS) or changed
            for field in choice.keys() & TELLING_FIELDS:
                changed = changed or choice[field] is not None
                choice[field] = None
            delta = choice.get("delta")
            if isinstance(delta, dict):
                changed = _drop_unknown(delta, SAYING_FIELDS) or changed
                for call in delta.get("tool_calls") or []:
                    changed = _put_right(call) or changed
            elif delta is not None:
                del choice["delta"]
                changed = True
            for holder, field, key in _texts(choice, index):
                before = holder[field]
                text = before if isinstance(before, str) else _as_text(before)
                holder[field] = after = self._filter(key).feed(text)
                changed = changed or after != before
                says_something = says_something or bool(after)
            if choice.get("finish_reason") is not None:
                tails += self._end_of_choice(index, is_chat="delta" in choice)
            says_something = says_something or _says_more_than_text(choice)
        sent = [to_json({**chunk, "choices": tails, "usage": None})] if tails else []
        if says_something:
            sent.append(to_json(chunk) if changed else payload)
        return sent

    def end(self, template: dict[str, Any]) -> list[bytes]:
        """What is still held back when the stream stops without having ended; shaped like `template`, a chunk."""
        is_chat = template.get("object") == "chat.completion.chunk"
        open_choices = sorted({index for index, _, _ in self._filters})
        tails = [tail for index in open_choices for tail in self._end_of_choice(index, is_chat=is_chat)]
        return [to_json({**template, "choices": tails, "usage": None})] if tails else []

    def _filter(self, key: tuple[int, str, int]) -> TextFilter:
        if key not in self._filters:
            self._filters[key] = self._make_filter(key[1] == "arguments")
        return self._filters[key]

    def _end_of_choice(self, index: int, *, is_chat: bool) -> list[dict[str, Any]]:
        said: dict[str, Any] = {}
        for key in [key for key in self._filters if key[0] == index]:
            rest = self._filters.pop(key).flush()
            if not rest:
                continue
            _, field, call = key
            if holder := _HOLDERS.get(field):
                said.setdefault("tool_calls", []).append({"index": call, holder: {field: rest}})
            else:
                said[field] = rest
        if not said:
            return []
        return [{"index": index, **({"delta": said} if is_chat else said), "finish_reason": None}]


def _texts(choice: dict[str, Any], index: int) -> Iterator[tuple[dict[str, Any], str, tuple[int, str, int]]]:
    """Every non-empty piece of text in a chunk's choice: its holder, its field, and the stream it belongs to."""
    if choice.get("text"):
        yield choice, "text", (index, "text", 0)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return
    for field in TEXT_FIELDS:
        if delta.get(field):
            yield delta, field, (index, field, 0)
    for position, call in enumerate(delta.get("tool_calls") or []):
        for holder, field, _ in _said_by(call):
            yield holder, field, (index, field, call.get("index", position))


def _says_more_than_text(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") is not None:
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    if delta.get("role"):
        return True
    return any(
        call.get("id") or any((call.get(kind) or {}).get("name") for kind, _, _ in CALL_TEXTS)
        for call in delta.get("tool_calls") or []
    )


def _whole(text: str, text_filter: TextFilter) -> str:
    return text_filter.feed(text) + text_filter.flush()
