"""Identity of values: when two spellings are the same value for a placeholder or a hash.

Each kind declares one `Identity` (`Detector.identity`, `IdKind.identity`). The default is `EXACT`, so two values are
never merged because a declaration is missing. Identity does not affect restoring: every spelling has its own
placeholder that refers to the same value (`policy.redact.actions.pseudonyms`).
"""

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from policy.redact.text.normalise import lowered

_SIGNIFICANT = "+*#"  # a phone's country prefix; Irish VAT numbers may have a letter, `+` or `*` at one position


class Identity(NamedTuple):
    """Spelling rules of a kind.

    Attributes:
        name: name in rule files.
        reduce: called with the value as detectors read it (see `json_text.as_read`) and as it was written. Returns a
            text that is equal for two spellings exactly when they are the same value.
    """

    name: str
    reduce: Callable[[str, str], str]


def _exact(seen: str, written: str) -> str:
    return unicodedata.normalize("NFC", written)


def _number(seen: str, written: str) -> str:
    return "".join(sign for sign in lowered(seen) if sign.isalnum() or sign in _SIGNIFICANT)


def _signed(seen: str, written: str) -> str:
    return "".join(lowered(seen).split())


def _mail(seen: str, written: str) -> str:
    return lowered(seen)


EXACT = Identity("exact", _exact)
"""Every character counts. Composed and decomposed letters are one spelling (Unicode UAX #15, NFC)."""

NUMBER = Identity("number", _number)
"""Separators and case are ignored: digits and letters alone identify an IBAN, a card, a phone or an ID."""

SIGNED = Identity("signed", _signed)
"""Spaces and case are ignored. Other separators count, because one denotes the century or the state."""

MAIL = Identity("mail", _mail)
"""Case is ignored. For the domain this is RFC 1035 §2.3.3. For the local part it is a choice: RFC 5321 §2.4 lets a
server distinguish `John` from `john`, but no common provider does.
"""

IDENTITIES = {each.name: each for each in (EXACT, NUMBER, SIGNED, MAIL)}
