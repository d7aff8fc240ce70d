"""How a conversation reaches a model through its chat template: every message, or a refusal that names the one that
would not.

Templates drop what they do not know: Qwen's shows no ``developer`` message, Llama's refuses two calls in one message,
Gemma's a system message. So a conversation is rendered once with a sentinel behind the content of each message. Where
one is missing, or the template refuses, the conversation is written in another way that says the same; if none reaches
the model whole, the request is refused.
"""

import re
from collections import deque
from collections.abc import Callable
from itertools import groupby
from secrets import token_hex
from typing import Any

from backend.errors import InvalidRequest
from backend.models.checkpoints.chat_template import ChatTemplate, text_of, with_suffix
from backend.wire import JsonObject

Messages = list[JsonObject]
Render = Callable[[Messages], str]
_MARK = re.compile(r"(?=(x[0-9a-f]{16}x))")
"""Each sentinel, also where the text before it could be taken for the beginning of one."""
DEVELOPER, SYSTEM, USER, ASSISTANT, TOOL = "developer", "system", "user", "assistant", "tool"


def reads_parts(template: ChatTemplate) -> bool:
    """Whether the template writes each text part of a content, rather than a content that is one string."""
    first, second = (f"x{token_hex(8)}x" for _ in range(2))
    parts = [{"type": "text", "text": text} for text in (first, second)]
    try:
        rendered = template.render([{"role": USER, "content": parts}])
    except InvalidRequest:
        return False
    return first in rendered and second in rendered and "'type'" not in rendered and '"type"' not in rendered


def whole(messages: Messages, render: Render, source: str) -> Messages:
    """The conversation as the template takes it, every message of it shown.

    render: makes the prompt's text, raises InvalidRequest with ``param="messages"`` where the template refuses.
    source: the template. Raises InvalidRequest, naming the message that it does not show, or as `render` does.
    """
    written = messages
    refusal: InvalidRequest | None = None
    for rewrite in (_known_developer(source), _first_system, _one_call_each, _merged_neighbours):
        changed = rewrite(written)
        if refusal is not None and changed == written:
            continue
        written = changed
        try:
            _require_shown(written, render)
        except InvalidRequest as error:
            if error.param is not None and not error.param.startswith("messages"):
                raise
            refusal = refusal or error
        else:
            return written
    assert refusal is not None  # noqa: S101 -- the first way is always tried
    raise refusal


def _require_shown(messages: Messages, render: Render) -> None:
    """Raises InvalidRequest naming the first message that the template leaves out, or as `render` does."""
    marks = [f"x{token_hex(8)}x" for _ in messages]
    rendered = render([_marked(message, mark) for message, mark in zip(messages, marks, strict=True)])
    shown = set(_MARK.findall(rendered))  # one pass: a search for each mark would cost messages times characters
    for i, (message, mark) in enumerate(zip(messages, marks, strict=True)):
        if mark not in shown and (message.get("content") or message.get("tool_calls")):
            raise InvalidRequest(
                f"the model's chat template does not show a message of role {message['role']!r} here; "
                "send its text in a system or user message",
                param=f"messages[{i}].role",
            )


def _marked(message: JsonObject, mark: str) -> JsonObject:
    """The message with a sentinel behind its content, or in the name of its first call where it has no content."""
    content = message.get("content")
    if content:
        return {**message, "content": with_suffix(content, mark)}
    if calls := message.get("tool_calls"):
        function = calls[0].get("function") or {}
        named = {**calls[0], "function": {**function, "name": f"{function.get('name') or ''}{mark}"}}
        return {**message, "tool_calls": [named, *calls[1:]]}
    return message


def _known_developer(source: str) -> Callable[[Messages], Messages]:
    """``developer`` messages as ``system`` where the template does not name the role (as vLLM and llama.cpp do)."""

    def rewrite(messages: Messages) -> Messages:
        if DEVELOPER in source:
            return messages
        return [{**m, "role": SYSTEM} if m["role"] == DEVELOPER else m for m in messages]

    return rewrite


def _first_system(messages: Messages) -> Messages:
    """Several system messages before the first other one as a single one."""
    lead = 0
    while lead < len(messages) and messages[lead]["role"] in (SYSTEM, DEVELOPER):
        lead += 1
    if lead < 2:
        return messages
    text = "\n\n".join(text_of(message.get("content")) for message in messages[:lead])
    return [{**messages[0], "role": SYSTEM, "content": text}, *messages[lead:]]


def _one_call_each(messages: Messages) -> Messages:
    """A message with several calls as one message for each, followed by its result."""
    written: Messages = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            written.append(message)
            continue
        first = at
        while at < len(messages) and messages[at]["role"] == TOOL:
            at += 1
        results = _Results(messages[first:at])
        for i, call in enumerate(calls):
            alone = message if i == 0 else {**message, "content": ""}
            written += [{**alone, "tool_calls": [call]}, *results.take(call, i)]
        written += results.rest()
    return written


class _Results:
    """The results of one message's calls, each taken once."""

    def __init__(self, results: Messages) -> None:
        self._left: dict[int, JsonObject] = dict(enumerate(results))
        self._places: dict[Any, deque[int]] = {}
        for place, result in enumerate(results):
            if name := result.get("tool_call_id"):
                self._places.setdefault(name, deque()).append(place)

    def take(self, call: JsonObject, index: int) -> Messages:
        """The result that names the call; without names, the result at the call's position. Empty if it has none."""
        if places := self._places.get(call.get("id")):
            return [self._left.pop(places.popleft())]
        placed = self._left.get(index)
        return [] if placed is None or placed.get("tool_call_id") else [self._left.pop(index)]

    def rest(self) -> Messages:
        return list(self._left.values())


def _merged_neighbours(messages: Messages) -> Messages:
    """Neighbouring user messages as one: results of calls are written as such where a template knows no tools."""
    written: Messages = []
    for role, neighbours in groupby(messages, key=lambda message: message["role"]):
        same = list(neighbours)
        if role == USER and len(same) > 1:
            joined = "\n".join(text_of(message.get("content")) for message in same)
            same = [{**same[0], "content": joined}]
        written += same
    return written
