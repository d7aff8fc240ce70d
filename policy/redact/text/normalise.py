"""Text as a detector should read it, with the way back to the text as it was written.

Each character stands for its NFKC form (full-width and mathematical digits, no-break and thin spaces, ligatures,
circled numbers; Unicode UAX #15), a plain hyphen for any dash, nothing for zero-width characters and soft hyphens.
Being local to the character, a text cut anywhere reads the same as the whole.
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
"""What is not seen, or only frames what is: also enclosing marks (keycaps, `1` U+20E3) and tag characters."""
_GONE = frozenset(ZERO_WIDTH)
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\ufe58\ufe63\uff0d"

# Capitals and small letters of Cyrillic and Greek that look like Latin ones (Unicode TR 39, confusables).
LOOK_ALIKES = str.maketrans("АВЕКМНОРСТУХасеорхуіјЅѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧον", "ABEKMHOPCTYXaceopxyijSsABEZHIKMNOPTYXov")


_WORD = re.compile(f"[{WORD}]")
_NOT_PLAIN = re.compile(r"[^\x00-\x7f]")
_SLASHES = str.maketrans("\u2044\u2215", "//")  # as fractions are spelled


class _Table(dict[int, str | None]):
    """A `str.translate` table that learns each character when it first meets it.

    ``same``, ``longer``: those met so far that stand for themselves, and for several.
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
    """What one character stands for, where that is several: all inside a word or all outside, so that
    `policy.redact.stream` never has to cut between them."""
    form = form.translate(_SLASHES)
    inside = "".join(_WORD.findall(form))
    return inside if inside and not unicodedata.combining(inside[0]) else form if not inside else form[0]


_TABLE = _Table({ord(c): None for c in ZERO_WIDTH} | {ord(c): "-" for c in DASHES})


def lowered(text: str) -> str:
    """`text` in small letters, character for character: the one that would become two loses its dot."""
    return text.lower() if text.isascii() else text.replace("İ", "I").lower()


def contains_any(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of `words` is in `text`; a plain loop, because this is asked of every text."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


class View(NamedTuple):
    """``text``: what detectors see. Character i of it was written at ``starts[i]:ends[i]``; None is i itself.

    Neighbours that one written character stands for share their place.
    """

    text: str
    starts: list[int] | None = None
    ends: list[int] | None = None

    def start(self, index: int, written: int) -> int:
        """Where character `index` begins in the original, of length `written`."""
        if self.starts is None:
            return index
        return self.starts[index] if index < len(self.starts) else written

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original's slice for a non-empty slice of ``text``."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def normalise(text: str) -> View:
    """A text in which every character stands for itself comes back as the same object."""
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
