"""A text with derived data that several detectors share. Each item is computed on first access and cached."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from operator import itemgetter
from typing import Any, Generic, TypeVar

from policy.redact.text.hints import countries_of
from policy.redact.text.normalise import LOOK_ALIKES, lowered
from policy.redact.text.tables import Column, columns_of

_MIXED = re.compile(
    r"(?<![^\W\d_])(?<!0(?=o[0-7]))(?!0o[0-7]+(?![0-9A-Za-z]|[ ./-][0-9]))"  # no octal: `0o17`
    r"(?=[A-Za-z]{0,4}[OoIl|]{0,8}[0-9])[0-9A-Za-z|]{2,40}(?![^\W\d_])|(?<=\()O(?=\))"
    r"|(?<=[0-9][ ./-])[OoIl]{1,3}(?=[ ./-][0-9])"
)
_BESIDE = re.compile(r"(?<=[0-9])[OoIl|]+|[OoIl|]+(?=[0-9])")
_LOOK_ALIKE = re.compile(f"[{''.join(map(chr, LOOK_ALIKES))}]")
_UNLIKE = re.compile(r"[0-9](?:(?<=[OoIl|][0-9])|(?=[OoIl|]|[ ./-][OoIl]{1,3}[ ./-][0-9]))")
_BETWEEN_DIGITS = 6  # maximum number of characters between two digits that make letters between them count as digits
# A bar that separates table cells: between words, or beside a numeric cell: `Step_LSC|30002312|onStandStepChanged`.
_BAR_OF_TABLE = re.compile(r"[^\W\d_]{2}[\"' ]{0,2}\|[\"' ]{0,2}[^\W\d_]{2}|\| ?-{3}|[^\W\d_]\|[0-9]{1,12}\|[^\W\d_]")
_PADDED = re.compile(r"[^\s|] \| [^\s|]")
_TIGHT = re.compile(r"[^\W\d_]{2}\||\|[^\W\d_]{2}")
# `| 49 06 75 234 345 89`: with this grouping, a leading bar is the first digit of a French NIR.
_FIRST_OF_A_NIR = re.compile(r"(?<!\S)\|(?=(?: [0-9OoIl]{2}){3}(?: [0-9OoIl]{3}){2} [0-9OoIl]{2}(?![0-9A-Za-z]| ?\|))")
_PARTING_BAR = re.compile(r"(?<![0-9OoIl|])\||\|(?![0-9OoIl|])")
_DIGIT_LIKE = str.maketrans("OoIl|", "00111")
_DIGITS = re.compile("[0-9]")
_WORD, _PLAIN_WORD = re.compile(r"([^\W\d_]+)"), re.compile("([a-z][a-z]*)")
_INNER = re.compile(r"[A-Z](?<=[a-z\u00df-\u00ff][A-Z])(?=([A-Za-z]{1,40}))")
_HEAD = itemgetter(slice(3))
_NOT_PLAIN = re.compile(r"[^\x00-\x7f]")
_FEW = 9
_FEW_MARKS = 8


class _Folded(dict[int, int]):
    """A `str.translate` table that maps letters with diacritics to base letters, one to one; filled on first use."""

    def __missing__(self, code: int) -> int:
        base = unicodedata.normalize("NFD", chr(code))[0]
        self[code] = ord(base) if base.isalpha() else code
        return self[code]


_FOLDED = _Folded({ord(marked): ord(plain) for marked, plain in zip("łøđħŧıßæœðþ", "lodhtisaodt", strict=True)})


T = TypeVar("T")


class _Once(Generic[T]):
    """`functools.cached_property` without its lock, which costs more than computing most of the values here."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find
        self._name = find.__name__

    def __get__(self, reading: Any, owner: object = None) -> T:
        value = reading.__dict__[self._name] = self._find(reading)
        return value


class Spans:
    """Disjoint spans of a text, merged from those given as (start, end)."""

    def __init__(self, found: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(found):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def covers(self, start: int, end: int) -> bool:
        """Return whether any character of ``text[start:end]`` belongs to one of the spans."""
        at = bisect_right(self._starts, end - 1)
        return at > 0 and self._ends[at - 1] > start


class Reading(str):
    """A text with cached derived data. ``Reading(text)`` itself computes nothing."""

    @_Once
    def taken(self) -> list[tuple[int, int, str]]:
        """Findings so far as (start, end, label). Weaker detectors skip these spans."""
        return []

    def is_taken(self, at: int) -> bool:
        """Return whether the character at `at` belongs to a finding."""
        taken = self.taken
        if len(taken) < _FEW:
            for start, end, _ in taken:  # noqa: SIM110  # called for every number; a generator takes twice the time
                if start <= at < end:
                    return True
            return False
        known: tuple[int, Spans] | None = self.__dict__.get("taken_spans")
        if known is None or known[0] != len(self.taken):
            known = self.__dict__["taken_spans"] = (len(self.taken), Spans((s, e) for s, e, _ in self.taken))
        return known[1].covers(at, at + 1)

    @_Once
    def folded(self) -> str:
        """The text in lower case without diacritics, with the same length."""
        small = lowered(self)
        if small.isascii():
            return small
        marked = set(_NOT_PLAIN.findall(small))
        if len(marked) > _FEW_MARKS:
            return small.translate(_FOLDED)
        for sign in marked:  # cheaper than translating every character
            small = small.replace(sign, chr(_FOLDED[ord(sign)]))
        return small

    @_Once
    def latin(self) -> str:
        """The text with Cyrillic and Greek look-alike letters replaced by Latin ones, with the same length."""
        if self.isascii() or not _LOOK_ALIKE.search(self):
            return self
        return self.translate(LOOK_ALIKES)

    @_Once
    def words(self) -> list[str]:
        """The words of `folded` in order. The inner words of camel case are added: `dateOfBirth` gives two more.

        Their offsets are in `starts`.
        """
        small = self.folded
        pieces = (_PLAIN_WORD if small.isascii() else _WORD).split(small)  # cheaper than one match per word
        words, starts = pieces[1::2], list(accumulate(map(len, pieces)))[:-1:2]
        if _INNER.search(self):
            inner = [(word.start(), small[word.start() : word.end(1)]) for word in _INNER.finditer(self)]
            both = sorted([*zip(starts, words, strict=True), *inner], key=itemgetter(0))
            starts, words = list(map(itemgetter(0), both)), list(map(itemgetter(1), both))
        known = self.__dict__
        known["starts"], known["heads"] = starts, (heads := list(map(_HEAD, words)))
        known["initials"] = frozenset(heads)
        return words

    @_Once
    def starts(self) -> list[int]:
        """The offset of each of `words`."""
        found: list[int] = self._beside_words("starts")
        return found

    @_Once
    def heads(self) -> list[str]:
        """The first three letters of each of `words`."""
        found: list[str] = self._beside_words("heads")
        return found

    @_Once
    def initials(self) -> frozenset[str]:
        """The set of `heads`, to rule out quickly that a text contains certain words."""
        found: frozenset[str] = self._beside_words("initials")
        return found

    def _beside_words(self, name: str) -> Any:
        _ = self.words
        return self.__dict__[name]

    def words_from(self, initials: frozenset[str]) -> list[int]:
        """Return the offsets of words whose first three letters are in `initials`."""
        if initials.isdisjoint(self.initials):
            return []
        return [start for head, start in zip(self.heads, self.starts, strict=True) if head in initials]

    @_Once
    def countries(self) -> frozenset[str]:
        """Countries that the text's language or numbers indicate, as ISO 3166 codes in lower case; see `hints`."""
        return countries_of(self, self.folded, self.words, self.starts)

    @_Once
    def columns(self) -> tuple[Column, ...]:
        """Columns of the tables in the text, see `tables`."""
        return columns_of(self)

    def is_below(self, at: int, kind: str, heads: Callable[[Column], bool]) -> bool:
        """Return whether `at` is in a cell of a column for which `heads` returns True.

        ``kind`` identifies that predicate: the cells found are cached under it.
        """
        if not self.columns:
            return False
        known: Spans | None = self.__dict__.get(f"cells of {kind}")
        if known is None:
            known = self.__dict__[f"cells of {kind}"] = Spans(
                cell for column in self.columns if heads(column) for cell in column.cells if cell[0] < cell[1]
            )
        return known.covers(at, at + 1)

    @_Once
    def with_plain_digits(self) -> "Reading | None":
        """The text with O, o, I, l and | next to digits replaced by 0 and 1, of equal length; None if nothing changes.

        Look-alike letters are treated as Latin for this. Characters that do not change keep their script, for names in
        Greek and Cyrillic.
        """
        latin: str = self.latin
        text = latin
        if "|" in latin:
            text = _FIRST_OF_A_NIR.sub("1", latin)
            text = text if "\0" in text else _without_parting_bars(text)
        changed = _with_plain_digits(text)
        if text != latin:
            changed = changed.replace("\0", "|")
        if changed == latin:
            return None
        if latin is not self:
            changed = "".join(own if was == new else new for own, was, new in zip(self, latin, changed, strict=True))
        return Reading(changed)


def _with_plain_digits(text: str) -> str:
    first, last = 0, len(text)
    if "(O)" not in text:
        unlike = _UNLIKE.search(text)
        if unlike is None:
            return text
        # Only text from the end of the preceding word to the following space can change.
        first = max(0, text.rfind(" ", 0, unlike.start()) - 1)
        *_, unlike = _UNLIKE.finditer(text, unlike.start())
        last = text.find(" ", unlike.end() + _BETWEEN_DIGITS)
        last = len(text) if last < 0 else last
    return text[:first] + _MIXED.sub(_plain_digits, text[first:last]) + text[last:]


def _without_parting_bars(text: str) -> str:
    """Return `text` with NUL for the bars that separate cells.

    Where cells are padded with spaces, a bar directly between digits is a digit and stays.
    """
    if _BAR_OF_TABLE.search(text) is None:
        return text
    return _PARTING_BAR.sub("\0", text) if _PADDED.search(text) and not _TIGHT.search(text) else text.replace("|", "\0")


def _plain_digits(match: re.Match[str]) -> str:
    word = match[0]
    digits, like = len(_DIGITS.findall(word)), sum(map(word.count, "OoIl|"))
    if digits + like == len(word):  # `lO223`, and `ll` or `O` between digits
        return word.translate(_DIGIT_LIKE)
    if not like or digits < 2 or (digits + like) * 3 < len(word) * 2 - 8:
        return word
    return _BESIDE.sub(lambda letters: letters[0].translate(_DIGIT_LIKE), word)
