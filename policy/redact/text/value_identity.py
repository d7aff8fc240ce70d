"""When two spellings are one value: what a placeholder or a hash stands for.

Each kind declares one `Identity` (`Detector.identity`, `IdKind.identity`). A kind that declares none is `EXACT`, so
that two values are never taken for one by omission. Which spelling comes back is not decided here: every spelling has
a placeholder of its own that names the same value (`policy.redact.actions.pseudonyms`).
"""

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from policy.redact.text.normalise import lowered

_SIGNIFICANT = "+*#"  # a phone's country prefix; Irish VAT numbers have all of letters, `+` and `*` at one place


class Identity(NamedTuple):
    """The spelling rules of a kind.

    Attributes:
        name: how a rule file names it.
        reduce: from the value as detectors read it (see `json_text.as_read`) and the value as it was written, to a text
            that two spellings share exactly when they are one value.
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
"""Separators and case do not count: the digits and letters of an IBAN, a card, a phone, an id say all of it."""

SIGNED = Identity("signed", _signed)
"""Blanks and case do not count; other separators do, because one denotes the century or the state."""

MAIL = Identity("mail", _mail)
"""Case does not count. For the domain that is RFC 1035 §2.3.3; for the local part it is a choice: RFC 5321 §2.4 lets a
server distinguish `John` from `john`, and no provider in use does."""

IDENTITIES = {each.name: each for each in (EXACT, NUMBER, SIGNED, MAIL)}
