"""Placeholders such as ``<EMAIL_1_k7f3>`` and the values they stand for.

Grammar: ``<LABEL_NUMBER_NONCE>``. The nonce belongs to one request, so text typed by a user and placeholders of other
requests are never mistaken for ours. `policy.redact.actions.placeholder_forms` handles the variations that models
introduce.
"""

import hmac
import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from policy.errors import RedactionError
from policy.redact.actions.placeholder_forms import MOST_DIGITS

LITERAL = "LITERAL"  # label of user text that looks like a placeholder; it is restored as typed

_JOINT = r"(?: ?\\?[_-] ?| )"
PLACEHOLDER = re.compile(
    rf"\\?< ?([A-Za-z]{{2,16}}){_JOINT}([0-9]{{1,{MOST_DIGITS}}}){_JOINT}([A-Za-z0-9]{{4,16}}) ?\\?>"
)
"""Matches text that looks like a placeholder of any request."""

_NONCE = re.compile(r"[a-z0-9]{4,12}")
_NONCE_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters without look-alikes
_NONCE_CHARACTERS = bytes(ord(_NONCE_ALPHABET[byte & 31]) for byte in range(256))  # a table for `bytes.translate`
_NONCE_BEGINS = "ghijkmpqsvwxyz"

_MOST = 10**12 - 1  # large enough that collisions in a conversation are rare and the order of values does not matter
_MOST_SPELLINGS = 9_999


def nonce_from(random_bytes: bytes) -> str:
    r"""Return a nonce with one character (5 bits) per byte of `random_bytes`; 4 to 12 bytes, 6 are enough.

    The first letter cannot form an escape with a preceding digit or backslash (`%3a`, `\n`), so a number that lost its
    separator still ends before the nonce. Raises RedactionError for another number of bytes.
    """
    first = random_bytes[0] if random_bytes else 0
    nonce = _NONCE_BEGINS[first % len(_NONCE_BEGINS)] + random_bytes[1:].translate(_NONCE_CHARACTERS).decode("ascii")
    if not _NONCE.fullmatch(nonce):
        raise RedactionError("a nonce is made of 4 to 12 random bytes")
    return nonce


def _derived(key: bytes, text: str, most: int) -> int:
    """Return a number from 1 to `most` derived from the key and `text` with HMAC-SHA256."""
    digest = hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")
    return int.from_bytes(digest[:8]) % most + 1


class Pseudonyms:
    """The placeholders of one request and their values. ``repr`` shows only their number, never the values.

    A number identifies one value regardless of the label, so a label that a model translates or drops does not matter.
    Each spelling of a value has its own placeholder with the value's number: the first is ``<IBAN_1_k7f3>``, another
    ``<IBAN_1_k7f32>``, with digits after the nonce. The restored text therefore has the spelling that was sent.

    With a ``key`` shared by the requests of a conversation, number and digits depend only on value and spelling. They
    are the same in each request, whatever precedes them and however much history is repeated.
    """

    __slots__ = ("_begun", "_counts", "_key", "_names", "_nonce", "_numbers", "_placeholders", "_values")

    def __init__(self, nonce: str, key: bytes | None = None) -> None:
        if not _NONCE.fullmatch(nonce):
            raise RedactionError("a nonce is 4 to 12 lower-case letters and digits")
        self._nonce = nonce
        self._key = key
        self._values: dict[int, dict[str, str]] = {}  # number -> digits after the nonce -> spelling
        self._numbers: dict[tuple[str, str], int] = {}
        self._placeholders: dict[tuple[str, str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._begun: set[str] = set()

    def placeholder(self, label: str, written: str, canonical: str | None = None) -> str:
        """Return the placeholder for `written`, the text that will be restored.

        ``canonical``: the identity shared by all spellings of the value (see `policy.redact.text.value_identity`);
        defaults to `written`.
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
        while number in self._values:  # with 10,000 values, two collide in 1 of 20,000 conversations
            number = number % _MOST + 1
        return number

    def _new_spelling(self, number: int, canonical: str, written: str) -> str:
        """Return digits not used by another spelling of the value.

        Empty for the first spelling or, in a conversation, for the canonical one.
        """
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
        """Return the value to restore for a number and the word after it (nonce and digits of the spelling).

        None if this request did not issue it. Without digits, which a model may drop, the result is the first spelling.
        """
        spellings = self._values.get(number)
        if spellings is None or not word.startswith(self._nonce):
            return None
        spelling = word[len(self._nonce) :]
        return spellings.get(spelling) if spelling else spellings.get("", next(iter(spellings.values())))

    @property
    def nonce(self) -> str:
        """The nonce of these placeholders."""
        return self._nonce

    @property
    def names(self) -> Mapping[str, int]:
        """The labels issued so far, with their counts."""
        return self._counts

    @property
    def begun(self) -> Container[str]:
        """Every prefix of every number issued so far."""
        return self._begun

    def name_of(self, number: int) -> str | None:
        """Return the label with which a number was issued; None for an unknown number."""
        return self._names.get(number)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of distinct values by placeholder label."""
        return MappingProxyType(self._counts)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Pseudonyms({len(self)})"
