"""Character normalisation for detectors, with offsets into the original text.

Each character is replaced by its NFKC form (full-width and mathematical digits, no-break and thin spaces, ligatures,
circled numbers; Unicode UAX #15). Every dash becomes a plain hyphen; zero-width characters and soft hyphens are
removed. Each character is normalised on its own, so a text cut anywhere gives the same result as the whole.
"""

import re
import unicodedata
from typing import NamedTuple

from policy.redact.text.alphabet import WORD

ZERO_WIDTH = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u200b\u200c\u200d"
    "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064\u2066\u2067"
    "\u2068\u2069\ufe0e\ufe0f\ufeff"
    + "".join(map(chr, (*range(0x20DD, 0x20E1), *range(0x20E2, 0x20E5), *range(0xE0000, 0xE0080))))
)
"""Invisible characters, also enclosing marks (keycaps, `1` U+20E3) and tag characters."""
_GONE = frozenset(ZERO_WIDTH)
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\ufe58\ufe63\uff0d"

# Upper- and lower-case Cyrillic and Greek letters that look like Latin ones (Unicode TR 39, confusables).
LOOK_ALIKES = str.maketrans("АВЕКМНОРСТУХасеорхуіјЅѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧον", "ABEKMHOPCTYXaceopxyijSsABEZHIKMNOPTYXov")


_WORD = re.compile(f"[{WORD}]")
_NOT_PLAIN = re.compile(r"[^\x00-\x7f]")
_SLASHES = str.maketrans("\u2044\u2215", "//")  # fraction slashes


class _Table(dict[int, str | None]):
    """A `str.translate` table that computes and caches the entry of a character at its first use.

    ``same``: characters seen so far that map to themselves. ``longer``: those that map to several characters.
    """

    def __init__(self, known: dict[int, str | None]) -> None:
        super().__init__(known)
        self.same: set[str] = set()
        self.longer: set[str] = set()

    def __missing__(self, code: int) -> str:
        character = chr(code)
        form = unicodedata.normalize("NFKC", character)
        if len(form) > 1:
            form = _spelled(form)
        digit = unicodedata.decimal(
            form if len(form) == 1 else character, None
        )  # digits of other scripts have no NFKC form
        seen = str(digit) if digit is not None else form
        if len(seen) > 1:
            self.longer.add(character)
        elif seen == character:
            self.same.add(character)
        self[code] = seen
        return seen


def _spelled(form: str) -> str:
    """Reduce an NFKC form of several characters so that all of them are word characters or none is.

    `policy.redact.stream` therefore never has to cut between them.
    """
    form = form.translate(_SLASHES)
    inside = "".join(_WORD.findall(form))
    return inside if inside and not unicodedata.combining(inside[0]) else form if not inside else form[0]


_TABLE = _Table({ord(c): None for c in ZERO_WIDTH} | {ord(c): "-" for c in DASHES})


def lowered(text: str) -> str:
    """Return `text` in lower case with the same length. `İ`, whose lower case has two characters, loses its dot."""
    return text.lower() if text.isascii() else text.replace("İ", "I").lower()


def contains_any(text: str, words: tuple[str, ...]) -> bool:
    """Return whether any of `words` occurs in `text`. A plain loop, because this runs for every text."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


class View(NamedTuple):
    """A transformed text with offsets into the original.

    ``text``: what detectors see. Character i of it comes from ``original[starts[i]:ends[i]]``; if ``starts`` and
    ``ends`` are None, from character i. Consecutive characters that come from one original character have the same
    offsets.
    """

    text: str
    starts: list[int] | None = None
    ends: list[int] | None = None

    def start(self, index: int, written: int) -> int:
        """Return the offset of character `index` in the original, whose length is `written`."""
        if self.starts is None:
            return index
        return self.starts[index] if index < len(self.starts) else written

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end in the original of the non-empty slice ``text[start:end]``."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def normalise(text: str) -> View:
    """Return the normalised view of a text. If no character changes, the view holds the same string object."""
    if text.isascii() or _TABLE.same.issuperset(odd := _NOT_PLAIN.findall(text)):
        return View(text)
    seen = text.translate(_TABLE)
    longer = _TABLE.longer
    if longer and not longer.isdisjoint(odd):
        starts = [i for i, c in enumerate(text) for _ in _TABLE[ord(c)] or ""]
    elif len(seen) == len(text):
        return View(seen)
    else:
        starts = [i for i, c in enumerate(text) if c not in _GONE]
    return View(seen, starts, [i + 1 for i in starts])
