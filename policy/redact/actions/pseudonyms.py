"""Placeholders such as ``<EMAIL_1_k7f3>`` and the values they stand for.

Grammar: ``<LABEL_NUMBER_NONCE>``. The nonce belongs to one request, so nothing a user typed and no other request's
placeholder is ever taken for one of ours. How models bend what they repeat, see
`policy.redact.actions.placeholder_forms`.
"""

import hmac
import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from policy.errors import RedactionError
from policy.redact.actions.placeholder_forms import MOST_DIGITS

LITERAL = "LITERAL"  # label of what a user typed that looks like a placeholder; it comes back as typed

_JOINT = r"(?: ?\\?[_-] ?| )"
PLACEHOLDER = re.compile(
    rf"\\?< ?([A-Za-z]{{2,16}}){_JOINT}([0-9]{{1,{MOST_DIGITS}}}){_JOINT}([A-Za-z0-9]{{4,16}}) ?\\?>"
)
"""What looks like a placeholder, of whichever request."""

_NONCE = re.compile(r"[a-z0-9]{4,12}")
_NONCE_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters, none that is read as another
_NONCE_CHARACTERS = bytes(ord(_NONCE_ALPHABET[byte & 31]) for byte in range(256))  # a table for `bytes.translate`
_NONCE_BEGINS = "ghijkmpqsvwxyz"

_MOST = 10**12 - 1  # so many numbers that no two values of a conversation meet, and the order would not count
_MOST_SPELLINGS = 9_999


def nonce_from(random_bytes: bytes) -> str:
    """A nonce of one character (5 bits) a byte. The caller brings the randomness; 6 bytes are enough.

    It begins with a letter that no digit and no backslash before it makes an escape of (`%3a`, `\\n`), so that a number
    that lost its joint ends before it.
    """
    first = random_bytes[0] if random_bytes else 0
    nonce = _NONCE_BEGINS[first % len(_NONCE_BEGINS)] + random_bytes[1:].translate(_NONCE_CHARACTERS).decode("ascii")
    if not _NONCE.fullmatch(nonce):
        raise RedactionError("a nonce is made of 4 to 12 random bytes")
    return nonce


def _derived(key: bytes, text: str, most: int) -> int:
    digest = hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")
    return int.from_bytes(digest[:8]) % most + 1


class Pseudonyms:
    """The placeholders of one request and their values. Its repr shows how many there are, never the values.

    A number stands for one value whatever its label, so that a label which a model translates or drops is not missed.
    Each spelling of a value has a placeholder of its own with the value's number: the first is ``<IBAN_1_k7f3>``,
    another ``<IBAN_1_k7f32>``, with digits behind the nonce. So the text that comes back is the spelling that was sent.

    With a ``key`` that several requests of a conversation share, number and digits follow from value and spelling
    alone: the same in each of them, whatever stands before and however much of the history is sent again.
    """

    __slots__ = ("_begun", "_counts", "_key", "_names", "_nonce", "_numbers", "_placeholders", "_values")

    def __init__(self, nonce: str, key: bytes | None = None) -> None:
        if not _NONCE.fullmatch(nonce):
            raise RedactionError("a nonce is 4 to 12 lower-case letters and digits")
        self._nonce = nonce
        self._key = key
        self._values: dict[int, dict[str, str]] = {}  # of each number, its spellings by the digits behind the nonce
        self._numbers: dict[tuple[str, str], int] = {}
        self._placeholders: dict[tuple[str, str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._begun: set[str] = set()

    def placeholder(self, label: str, written: str, canonical: str | None = None) -> str:
        """The placeholder for `written`, which is what it is restored to.

        ``canonical``: what all spellings of the value share (see `policy.redact.text.value_identity`); none: `written`
        alone.
        """
        name = label.partition(".")[0].replace("_", "").upper()
        canonical = written if canonical is None else canonical
        if (known := self._placeholders.get((name, canonical, written))) is not None:
            return known
        number = self._numbers.get((name, canonical))
        if number is None:
            number = self._numbers[name, canonical] = self._new_number(name, canonical)
            self._values[number] = {}
            self._names[number] = name
            written_number = str(number)
            self._begun.update(written_number[:end] for end in range(1, len(written_number) + 1))
            self._counts[name] = self._counts.get(name, 0) + 1
        spelling = self._new_spelling(number, canonical, written)
        self._values[number][spelling] = written
        placeholder = self._placeholders[name, canonical, written] = f"<{name}_{number}_{self._nonce}{spelling}>"
        return placeholder

    def _new_number(self, name: str, canonical: str) -> int:
        if self._key is None:
            return len(self._values) + 1
        number = _derived(self._key, f"{name}|{canonical}", _MOST)
        while number in self._values:  # of 10,000 values, two meet in one conversation of 20,000
            number = number % _MOST + 1
        return number

    def _new_spelling(self, number: int, canonical: str, written: str) -> str:
        """Digits that no other spelling of the value has: none for the first, in a conversation for the canonical."""
        taken = self._values[number]
        if self._key is None:
            return str(len(taken) + 1) if taken else ""
        if written == canonical:
            return ""
        spelling = _derived(self._key, f"{number}|{written}", _MOST_SPELLINGS)
        while str(spelling) in taken:
            spelling = spelling % _MOST_SPELLINGS + 1
        return str(spelling)

    def value(self, number: int, word: str) -> str | None:
        """What is restored for a number and the word behind it: this request's nonce and digits of a spelling.

        A model that drops those digits gets the spelling that came first.
        """
        spellings = self._values.get(number)
        if spellings is None or not word.startswith(self._nonce):
            return None
        spelling = word[len(self._nonce) :]
        return spellings.get(spelling) if spelling else spellings.get("", next(iter(spellings.values())))

    @property
    def nonce(self) -> str:
        return self._nonce

    @property
    def names(self) -> Mapping[str, int]:
        """The labels of placeholders given so far."""
        return self._counts

    @property
    def begun(self) -> Container[str]:
        """Every beginning of every number given so far."""
        return self._begun

    def name_of(self, number: int) -> str | None:
        """The label a number was given with; None for a number that is not this request's."""
        return self._names.get(number)

    @property
    def counts(self) -> Mapping[str, int]:
        """Distinct values by placeholder name."""
        return MappingProxyType(self._counts)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Pseudonyms({len(self)})"
