"""Characters that a server cut in two: halves of a UTF-16 surrogate pair in two events of a stream.

Servers whose strings are UTF-16 (JavaScript, Java, .NET) may cut one between its halves and write each as an escape:
``"\\ud83d"``, then ``"\\ude42"``. Neither is a character (RFC 8259 §8.2), so a filter cannot read them, and our own
JSON cannot say them. The first half is kept until the second one comes.
"""

import json
import re
from typing import Any, Final

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_FIRST: Final = ("\ud800", "\udbff")


def may_hold_half(payload: bytes) -> bool:
    """Whether `payload` may fail to parse for such a half."""
    return _HALF.search(payload) is not None


class SurrogatePairs:
    """Joins the halves in the chunks of one stream, each text for itself."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], str] = {}

    @property
    def complete(self) -> bool:
        """Whether every first half was followed by its second."""
        return not self._kept

    def parsed(self, payload: bytes) -> Any:
        """The chunk in `payload` with whole characters only. Raises ValueError if it is not JSON, or a half is not one
        of two halves that follow each other in the same text."""
        try:
            return self._joined(json.loads(payload, parse_constant=_refuse), ())
        except RecursionError:
            raise ValueError("the event is nested too deeply; use fewer levels") from None

    def _joined(self, value: Any, place: tuple[object, ...]) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, dict):
            return {_whole(name): self._joined(inner, (*place, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._joined(inner, (*place, _index(inner, at))) for at, inner in enumerate(value)]
        return value

    def _text(self, text: str, place: tuple[object, ...]) -> str:
        if not text:
            return text
        text = self._kept.pop(place, "") + text
        if _FIRST[0] <= text[-1] <= _FIRST[1]:
            self._kept[place] = text[-1]
            text = text[:-1]
        return _whole(text)


def _whole(text: str) -> str:
    """`text` with its pairs joined. Raises UnicodeError, a ValueError, if a half is left."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _index(inner: Any, at: int) -> object:
    """What distinguishes a choice or a tool call from others: its own number, since chunks list only some of them."""
    index = inner.get("index") if isinstance(inner, dict) else None
    return at if index is None else str(index)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON; send a number")
