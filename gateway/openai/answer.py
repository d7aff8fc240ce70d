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
TELLING_FIELDS = frozenset({"logprobs", "prompt_logprobs"})  # their tokens would tell what the filter hides


class TextFilter(Protocol):
    """`policy.redact.StreamFilter`: the same result whatever the pieces are."""

    def feed(self, text: str) -> str: ...

    def flush(self) -> str: ...


FilterFactory = Callable[[bool], TextFilter]
"""Makes a filter; True for text that is itself JSON (tool-call arguments)."""


def rewrite_body(body: dict[str, Any], make_filter: FilterFactory) -> None:
    """Filter a whole answer in place: every choice's text, chat or completion."""
    body.pop("prompt_logprobs", None)
    for choice in body.get("choices") or []:
        for field in choice.keys() & TELLING_FIELDS:
            choice[field] = None
        if isinstance(choice.get("text"), str):
            choice["text"] = _whole(choice["text"], make_filter(False))
        message = choice.get("message")
        if not isinstance(message, dict):
            continue
        for field in TEXT_FIELDS:
            if isinstance(message.get(field), str):
                message[field] = _whole(message[field], make_filter(False))
        for unknown in message.keys() - SAYING_FIELDS:
            del message[unknown]
        for call in message.get("tool_calls") or []:
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = _whole(function["arguments"], make_filter(True))


class StreamRewriter:
    """Filters the chunks of one streamed answer."""

    def __init__(self, make_filter: FilterFactory) -> None:
        self._make_filter = make_filter
        self._filters: dict[tuple[int, str, int], TextFilter] = {}

    def rewrite(self, chunk: dict[str, Any], payload: bytes) -> list[bytes]:
        """The payloads to send in place of `payload`, which `chunk` is the parsed form of.

        None while the text is held back; two when a choice ends and a held-back rest goes out before its end.
        """
        changed, says_something = False, not chunk.get("choices")
        tails: list[dict[str, Any]] = []
        for choice in chunk.get("choices") or []:
            index = choice.get("index", 0)
            for field in choice.keys() & TELLING_FIELDS:
                changed = changed or choice[field] is not None
                choice[field] = None
            delta = choice.get("delta")
            if delta and (unknown := delta.keys() - SAYING_FIELDS):
                for field in unknown:
                    del delta[field]
                changed = True
            for holder, field, key in _texts(choice, index):
                before = holder[field]
                holder[field] = after = self._filter(key).feed(before)
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
            if field == "arguments":
                said.setdefault("tool_calls", []).append({"index": call, "function": {"arguments": rest}})
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
        function = call.get("function")
        if isinstance(function, dict) and function.get("arguments"):
            yield function, "arguments", (index, "arguments", call.get("index", position))


def _says_more_than_text(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") is not None:
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    if delta.get("role"):
        return True
    return any(call.get("id") or (call.get("function") or {}).get("name") for call in delta.get("tool_calls") or [])


def _whole(text: str, text_filter: TextFilter) -> str:
    return text_filter.feed(text) + text_filter.flush()
