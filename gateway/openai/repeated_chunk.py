"""Stream chunks that differ in one text only, recognised by their bytes.

A server sends the same members around every token. Once one chunk was parsed and checked, another one with the same
bytes before and after its text is the same chunk with another text, so only that text is parsed and filtered. Anything
else (an end, usage, another field, another spelling) is no repetition and takes the whole way again.

The bytes around the text are sent as they came. So a chunk with a member twice, of which parsers take the first or the
last (RFC 8259 §4), is no repetition either: what the filter did not see would be sent.
"""

import json
import re
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from gateway.openai.answer import BODY_FIELDS, CHOICE_FIELDS, TEXT_FIELDS

_DATA: Final = b"data: "
_EMPTY_IN_CHOICE: Final = CHOICE_FIELDS - {"index", "text", "delta", "message"}
_VALUE: Final = {
    field: re.compile(rb'"%b"\s*:\s*("(?:[^"\\]|\\.)*+")' % field.encode()) for field in (*TEXT_FIELDS, "text")
}


class RepeatedChunk(NamedTuple):
    """A chunk with one choice that says one text and nothing else. `choice`: its index; `field`: the text's; `before`
    and `after`: the bytes of the event around the text, which is a JSON string; `first` and `last`: from where to where
    that is in an event without its blank line."""

    choice: int
    field: str
    before: bytes
    after: bytes
    first: int
    last: int

    @classmethod
    def of(cls, payload: bytes) -> "RepeatedChunk | None":
        """What `payload` repeats; None where it says more than one text, has a member twice, or where its text is
        is not certain."""
        chunk = from_json(payload, allow_inf_nan=False)
        if (found := _only_text(chunk)) is None or _has_a_member_twice(payload):
            return None
        index, holder, field = found
        other = holder[field] = f"{holder[field]}."
        for value in _VALUE[field].finditer(payload):
            before, after = payload[: value.start(1)], payload[value.end(1) :]
            try:
                if from_json(b"".join((before, to_json(other), after)), allow_inf_nan=False) == chunk:
                    before = _DATA + before
                    return cls(index, field, before, after, len(before), -len(after))
            except ValueError:
                continue
        return None

    def text_in(self, event: bytes) -> str | None:
        """The text of an event ``data: …`` of one line; None where that is no repetition, or says nothing."""
        if not (event.startswith(self.before) and event.endswith(self.after)):
            return None
        try:  # a slice that parses is one JSON string and nothing behind it; one with too few bytes does not parse
            text = from_json(event[self.first : self.last])
        except ValueError:
            return None
        return text if type(text) is str and text else None

    def texts_in(self, events: list[bytes]) -> list[str] | None:
        """The text of each event; None where one is no repetition."""
        texts = []
        for event in events:
            if b"\n" in event or (text := self.text_in(event)) is None:
                return None
            texts.append(text)
        return texts

    def with_text(self, text: str) -> bytes:
        """The event, with its blank line."""
        return b"%b%b%b\n\n" % (self.before, to_json(text), self.after)


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a name that is there twice."""
    made = dict(members)
    if len(made) != len(members):
        raise ValueError("a member is there twice")
    return made


def _has_a_member_twice(payload: bytes) -> bool:
    try:
        json.loads(payload, object_pairs_hook=_each_once)
    except ValueError:
        return True
    return False


def _only_text(chunk: Any) -> tuple[int, dict[str, Any], str] | None:
    """Index of the choice, what holds the text, and its field; None where `chunk` says anything else."""
    if (choice := _only_choice(chunk)) is None:
        return None
    delta = choice.get("delta")
    holder: dict[str, Any]
    if delta is None:
        holder, field = choice, "text"
    elif isinstance(delta, dict) and len(delta) == 1 and "text" not in choice:
        holder, (field,) = delta, delta
        if field not in TEXT_FIELDS:
            return None
    else:
        return None
    text = holder.get(field)
    return (choice["index"], holder, field) if isinstance(text, str) and text else None


def _only_choice(chunk: Any) -> dict[str, Any] | None:
    """The choice of a chunk that has one, with a valid index, known members and none that says more than a text."""
    if not isinstance(chunk, dict) or not chunk.keys() <= BODY_FIELDS or chunk.get("usage") is not None:
        return None
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choice := choices[0], dict):
        return None
    index = choice.get("index")
    if type(index) is not int or index < 0 or not choice.keys() <= CHOICE_FIELDS or "message" in choice:
        return None
    if [name for name in _EMPTY_IN_CHOICE if choice.get(name) is not None]:  # any() would cost a call for each name
        return None
    return choice
