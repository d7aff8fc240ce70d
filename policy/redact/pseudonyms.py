"""Placeholders such as ``<EMAIL_1_k7f3>`` and the way back from them.

Grammar: ``<LABEL_NUMBER_NONCE>``. The nonce belongs to one request, so nothing a user typed and no other request's
placeholder is ever taken for one of ours; the bracket ends it, so number 1 never eats number 10. Models bend what they
repeat: another case, blanks or hyphens at the joints, backslashes before brackets and underscores are read as the same.
Small models drop the brackets too. A *bare* placeholder counts where it stands as a whole word, because the nonce
shows that it is ours.
"""

import hmac
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from policy.errors import RedactionError
from policy.redact.alphabet import ALNUM

LITERAL = "LITERAL"  # label of what a user typed that looks like a placeholder; it comes back as typed

_JOINT = r"(?: ?\\?[_-] ?| )"
PLACEHOLDER = re.compile(rf"\\?< ?([A-Za-z]{{2,16}}){_JOINT}([0-9]{{1,5}}){_JOINT}([A-Za-z0-9]{{4,12}}) ?\\?>")
# Everything that could still become a placeholder when the text goes on.
OPEN_PLACEHOLDER = re.compile(
    rf"\\?(?:< ?(?:[A-Za-z]{{0,16}} ?\\?|[A-Za-z]{{2,16}}{_JOINT}(?:[0-9]{{0,5}} ?\\?|"
    rf"[0-9]{{1,5}}{_JOINT}[A-Za-z0-9]{{0,12}} ?\\?)))?"
)
LONGEST_PLACEHOLDER = 2 + 1 + 16 + 4 + 5 + 4 + 12 + 3

# Underscores around it are Markdown's, unless a word stands behind them.
_WORD_BEGINS = rf"(?<![{ALNUM}])(?<![{ALNUM}]_)"
_BARE = re.compile(
    rf"{_WORD_BEGINS}([A-Za-z]{{2,16}}){_JOINT}([0-9]{{1,5}}){_JOINT}([A-Za-z0-9]{{4,12}})(?!_?[{ALNUM}])"
)
_OPEN_JOINT = r" ?\\?(?:[_-] ?)?"
_OPEN_BARE = re.compile(
    rf"{_WORD_BEGINS}([A-Za-z]{{1,16}})(?:({_OPEN_JOINT})|{_JOINT}[0-9]{{1,5}}(?:{_OPEN_JOINT}|"
    rf"{_JOINT}([A-Za-z0-9]{{1,12}})_?))\Z"
)

_NONCE = re.compile(r"[a-z0-9]{4,12}")
_NONCE_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters, none that is read as another

_MOST = 99_999
LONGEST_SUFFIX = 4  # letters of an inflected form behind a placeholder without brackets

Key = tuple[str, int, str]


def nonce_from(random_bytes: bytes) -> str:
    """A nonce of one character (5 bits) a byte. The caller brings the randomness; 6 bytes are enough."""
    nonce = "".join(_NONCE_ALPHABET[byte & 31] for byte in random_bytes)
    if not _NONCE.fullmatch(nonce):
        raise RedactionError("a nonce is made of 4 to 12 random bytes")
    return nonce


def key_of(match: re.Match[str]) -> Key:
    """What a match of `PLACEHOLDER` stands for, however it was bent."""
    return match[1].upper(), int(match[2]), match[3].lower()


class Bare(NamedTuple):
    """A placeholder without brackets, at ``text[start:end]``."""

    start: int
    end: int
    key: Key


class Pseudonyms:
    """The placeholders of one request and their values. Its repr shows how many there are, never the values.

    With a ``key`` that several requests of a conversation share, a value's number follows from the value: the same in
    each of them, whatever stands before it and however much of the history is sent again.
    """

    __slots__ = ("_by_value", "_counts", "_key", "_nonce", "_values")

    def __init__(self, nonce: str, key: bytes | None = None) -> None:
        if not _NONCE.fullmatch(nonce):
            raise RedactionError("a nonce is 4 to 12 lower-case letters and digits")
        self._nonce = nonce
        self._key = key
        self._values: dict[Key, str] = {}
        self._by_value: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def placeholder(self, label: str, value: str) -> str:
        """The placeholder for `value`: the same one for every spelling of it in this request.

        What is restored is the spelling that came first.
        """
        name = label.partition(".")[0].replace("_", "").upper()
        canonical = value if label == LITERAL else "".join(filter(str.isalnum, value)).lower()
        if (known := self._by_value.get((name, canonical))) is not None:
            return known
        self._counts[name] = self._counts.get(name, 0) + 1
        number = self._counts[name] if self._key is None else self._derived(name, canonical, self._key)
        placeholder = f"<{name}_{number}_{self._nonce}>"
        self._by_value[name, canonical] = placeholder
        self._values[name, number, self._nonce] = value
        return placeholder

    def _derived(self, name: str, canonical: str, key: bytes) -> int:
        digest = hmac.digest(key, f"{name}|{canonical}".encode("utf-8", "surrogatepass"), "sha256")
        number = int.from_bytes(digest[:8]) % _MOST + 1
        while (name, number, self._nonce) in self._values:
            number = number % _MOST + 1
        return number

    def value(self, key: Key) -> str | None:
        return self._values.get(key)

    def find_bare(self, text: str, start: int) -> Iterator[Bare]:
        """Every word of `text` that is a placeholder of this request without its brackets."""
        if self._nonce not in text.lower():
            return
        while match := _BARE.search(text, start):
            start = match.end(1)  # a word further on may be the label
            label, number, nonce = key_of(match)
            if self._is_nonce(nonce):  # what goes on from it is an inflected form's ending, and stays
                yield Bare(match.start(), match.start(3) + len(self._nonce), (label, number, self._nonce))
                start = match.end()

    def _is_nonce(self, written: str) -> bool:
        ending = written[len(self._nonce) :]
        return written.startswith(self._nonce) and (not ending or (ending.isalpha() and len(ending) <= LONGEST_SUFFIX))

    def open_bare(self, text: str, start: int) -> int:
        """Where the end of `text` begins that may become a bare placeholder when the text goes on, or its length."""
        start = max(start, len(text) - LONGEST_PLACEHOLDER)
        while match := _OPEN_BARE.search(text, start):
            label, joint, nonce = match.groups()
            whole_label = joint != ""
            name = label.upper()
            fits = name in self._counts if whole_label else any(known.startswith(name) for known in self._counts)
            if fits and (self._nonce.startswith(written := (nonce or "").lower()) or self._is_nonce(written)):
                return match.start()
            start = match.end(1)
        return len(text)

    @property
    def counts(self) -> Mapping[str, int]:
        """Distinct values by placeholder name."""
        return MappingProxyType(self._counts)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Pseudonyms({len(self)})"
