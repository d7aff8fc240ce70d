"""IBAN by ISO 13616: length by country, check digits by ISO 7064 mod 97-10. Registry release 101."""

import re
from collections.abc import Iterator

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

_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[ -]?[0-9][ -]?[0-9](?=[ -]?[A-Za-z0-9])")
_NEXT = re.compile(r"[ -]?([A-Za-z0-9])")
_TABLE = {c: str(v) for v, c in enumerate("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")}


def has_valid_check_digits(compact: str) -> bool:
    """`compact`: upper-case letters and digits without separators, country first."""
    return int("".join(_TABLE[c] for c in compact[4:] + compact[:4])) % 97 == 1


def find_ibans(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of valid IBANs from `start` on, grouped or not. The country's length decides where one ends, so a word
    behind it changes nothing."""
    at = start
    while head := _HEAD.search(text, at):
        at = head.start() + 1
        length = LENGTHS.get(head[0][:2].upper())
        if length is None:
            continue
        compact, end = "".join(filter(str.isalnum, head[0])).upper(), head.end()
        while len(compact) < length and (step := _NEXT.match(text, end)):
            compact += step[1].upper()
            end = step.end()
        ends_here = end == len(text) or not (text[end].isascii() and text[end].isalnum())
        if len(compact) == length and ends_here and has_valid_check_digits(compact):
            yield head.start(), end
            at = end
