"""What an answer's text is made of, in the order it was written. Put together, the texts of a kind are its whole."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """For the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a function; the `Arguments` that follow are its."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments, as the model wrote them: JSON, if it kept to it."""

    text: str


Part = Content | Reasoning | CallStart | Arguments


def merged(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of a kind put together, empty ones left out."""
    whole: list[Part] = []
    for part in parts:
        if isinstance(part, CallStart):
            whole.append(part)
        elif whole and type(whole[-1]) is type(part):
            whole[-1] = type(part)(whole[-1].text + part.text)
        elif part.text:
            whole.append(part)
    return whole
