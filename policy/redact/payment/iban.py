"""IBAN (ISO 13616): length by country, check digits by ISO 7064 mod 97-10. Registry release 101."""

import re
from collections.abc import Iterator
from functools import cache

from stdnum import numdb

from policy.redact.text.reading import Reading

LENGTHS: dict[str, int] = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR":
    29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20,
    "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR":
    27, "GT": 28, "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30,
    "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD":
    24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23,
    "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD":
    18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26,
    "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip

# Letters that look like digits are read as digits where the country's account number has a digit (`_structure`).
_HEAD = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z]{2}[ .-]?[0-9OoIl|][ .-]?[0-9OoIl|](?=[ .-]?[A-Za-z0-9|])(?=[^;]{0,12}[0-9])"
)
_BODIES = {
    length: re.compile(rf"(?:(?:[ .-]|\r?\n[> ]{{0,2}})?[A-Za-z0-9|]){{{length - 4}}}")
    for length in set(LENGTHS.values())
}
# First characters of the word that begins an account, for ASCII text.
_INITIALS = frozenset(country.lower() + sign for country in LENGTHS for sign in ("", "o", "i", "l"))
_DIGIT_LIKE = str.maketrans("OoIl|", "00111")
_LETTER_LIKE = str.maketrans("01|", "OII")
_PIECE = re.compile("([0-9]+)!([nac])")
_TABLE = {c: str(v) for v, c in enumerate("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")}


def has_valid_check_digits(compact: str) -> bool:
    """Return whether the check digits of an IBAN are valid.

    ``compact``: upper-case letters and digits without separators, country first.
    """
    return int("".join(_TABLE[c] for c in compact[4:] + compact[:4])) % 97 == 1


@cache
def _structure(country: str) -> str:
    """Return the type of each character after the check digits: n a digit, a a letter, c either.

    From the registry in `python-stdnum`; empty for an unknown country.
    """
    known = numdb.get("iban").info(country)
    pieces = _PIECE.findall(known[0][1].get("bban", "")) if known else []
    return "".join(kind * int(length) for length, kind in pieces)


def load_structures() -> None:
    """Load the data that `find_ibans` would otherwise load with the first account of a country."""
    for country in LENGTHS:
        _structure(country)


def find_ibans(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of valid IBANs from `start` on, grouped or not.

    The length of the country determines the end, so a following word does not matter.
    """
    if isinstance(text, Reading) and text.isascii() and _INITIALS.isdisjoint(text.initials):
        return
    at = start
    while head := _HEAD.search(text, at):
        at = head.start() + 1
        length = LENGTHS.get(head[0][:2].upper())
        body = _BODIES[length].match(text, head.end()) if length else None
        if body is None or body[0].count("\n") > 1:  # a letter may wrap it once
            continue
        end = body.end()
        if end < len(text) and text[end].isascii() and text[end].isalnum():
            continue
        if _is_valid("".join(sign for sign in head[0] + body[0] if sign not in " .->\r\n")):
            yield head.start(), end
            at = end


def _has_a_word(body: str, structure: str) -> bool:
    """Return whether a letter stands where the country has a digit.

    One number in a hundred passes the check by chance, including one made of words.
    """
    return not body.isdigit() and any(
        kind == "n" and sign.isalpha() and sign not in "OIL" for sign, kind in zip(body, structure, strict=False)
    )


def _is_valid(compact: str) -> bool:
    plain = compact.upper()
    country, structure = plain[:2], _structure(plain[:2])
    if "|" not in plain and plain[2:4].isdigit() and has_valid_check_digits(plain):
        return not _has_a_word(plain[4:], structure)
    if len(structure) != len(compact) - 4:
        return False
    check, body = compact[2:4].translate(_DIGIT_LIKE), compact[4:]
    read = "".join(
        sign.translate(_DIGIT_LIKE) if kind == "n" else sign.translate(_LETTER_LIKE) if kind == "a" else sign
        for sign, kind in zip(body, structure, strict=True)
    )
    as_digits = "".join(
        sign.translate(_DIGIT_LIKE) if kind == "c" else sign for sign, kind in zip(read, structure, strict=True)
    )
    return any(
        "|" not in each
        and has_valid_check_digits(country + check + each.upper())
        and not _has_a_word(each.upper(), structure)
        for each in (read, as_digits)
    )
