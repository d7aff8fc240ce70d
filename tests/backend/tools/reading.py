"""Feeding a script in pieces, and what came of it."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hypothesis import strategies as st

from backend.tools.parts import Arguments, CallStart, Content, Part, Reasoning, merged


class Reader(Protocol):
    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


def read(make: Callable[[], Reader], pieces: Sequence[str]) -> list[Part]:
    reader = make()
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.feed(piece)
    return merged([*parts, *reader.finish()])


def content(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def thoughts(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def calls(parts: list[Part]) -> list[tuple[str, Any]]:
    """(name, arguments) of each call; arguments parsed, or the text where it is no JSON."""
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallStart):
            found.append((part.name, ""))
        elif isinstance(part, Arguments):
            found[-1] = (found[-1][0], found[-1][1] + part.text)
    return [(name, parsed(text)) for name, text in found]


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def cut(text: str) -> st.SearchStrategy[list[str]]:
    """`text` in pieces."""
    return st.lists(st.integers(0, len(text)), max_size=12).map(
        lambda at: [text[a:b] for a, b in zip([0, *sorted(at)], [*sorted(at), len(text)], strict=True)]
    )
