"""VAT numbers by their country's prefix and check digits (VIES; Switzerland, Norway and the United Kingdom beside it).

Without the prefix a number counts only where it is called a VAT number in words, and only in Italy: elsewhere the
bare number is a national one, see `policy.redact.national_ids`.
"""

import re
from collections.abc import Iterator
from string import ascii_uppercase

from stdnum.ch import uid as ch_uid
from stdnum.eu import vat as eu_vat
from stdnum.gb import vat as gb_vat
from stdnum.it import iva
from stdnum.no import orgnr

from policy.redact.normalise import lowered
from policy.redact.reading import Reading
from policy.redact.shapes import BEGIN, END, flexible

_SAMPLES = {
    "AT": "U99999999", "BE": "999999999?9", "BG": "999999999?9", "CY": "99999999A", "CZ": "99999999?9?9",
    "DE": "999999999", "DK": "99999999", "EE": "999999999", "EL": "999999999", "GR": "999999999", "ES": "*9999999*",
    "FI": "99999999", "FR": "**999999999", "HR": "99999999999", "HU": "99999999", "IE": "9*99999A?A",
    "IT": "99999999999", "LT": "999999999?9?9?9", "LU": "99999999", "LV": "99999999999", "MT": "99999999",
    "NL": "999999999B99", "PL": "9999999999", "PT": "999999999", "RO": "999999?9?9?9?9", "SE": "999999999999",
    "SI": "99999999", "SK": "9999999999", "CHE": "999999999", "NO": "999999999", "GB": "999999999",
}  # fmt: skip
_VAT: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # by the two letters that it begins with
for _country, _sample in _SAMPLES.items():
    _pattern = re.compile(f"{BEGIN}({_country}[ .-]{{0,2}}{flexible(_sample)})(?: ?(?:MVA|MWST|TVA|IVA))?{END}")
    _VAT.setdefault(_country[:2], []).append((_country, _pattern))
# What the word begins with that a number begins with, in a text of plain letters.
_PREFIXES = frozenset(
    (country + sign).lower()[:3]
    for country, sample in _SAMPLES.items()
    for sign in ("", *(ascii_uppercase if sample[0] in "A*" else sample[0].strip("9")))
)
_ITALIAN = re.compile(
    rf"(?:partita iva|p\.? ?iva)\W{{0,4}}(?:\w{{1,8}}\W{{1,3}}){{0,2}}(?P<number>{BEGIN}{flexible('9' * 11)}){END}",
)
_HEAD = re.compile("[A-Z]{2}(?=[A-Z0-9 .-])")
# `USt-IdNr. de136695976`: in small letters only where it is called so, and in one piece.
_CALLED = (
    "vat", "iva", "tva", "ust", "btw", "moms", "dph", "dic", "pdv", "ddv", "alv", "kmkr", "pvn", "pvm", "ддс", "nip",
    "φπα", "αφμ",
)  # fmt: skip
_INITIALS = frozenset(name[:3] for name in _CALLED)  # as `Reading.initials` has them
_NAME = re.compile(rf"(?<![^\W_])(?:{'|'.join(_CALLED)})")
_SMALL = re.compile(r"[0-9](?<=[a-z][0-9])[0-9a-z]{6,12}(?![A-Za-z0-9_@/-]|\.[A-Za-z0-9])")
_SMALL_HEAD = re.compile(r"(?<![A-Za-z0-9_.@/-])[a-z]{2,3}\Z")
_ACCOUNT = re.compile(r"[A-Z]{2}[0-9]{2}(?: [A-Z0-9]{4}){3}")  # an IBAN with a slip
_BEFORE = 48


def find_vat_numbers(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of valid VAT numbers from `start` on."""
    if not (isinstance(text, Reading) and text.isascii() and _PREFIXES.isdisjoint(text.initials)):
        yield from _with_prefix(text, start)
    small = text.folded if isinstance(text, Reading) else lowered(text)
    if isinstance(text, Reading) and not _INITIALS.isdisjoint(text.initials):
        yield from _in_small_letters(text, start)
    if "iva" not in small:
        return
    for match in _ITALIAN.finditer(small, max(0, start - _BEFORE)):
        if match.start("number") >= start and iva.is_valid(match["number"]):
            yield match.span("number")


def load_checks() -> None:
    """All that `find_vat_numbers` otherwise loads with the first number of a country."""
    for country, sample in _SAMPLES.items():
        _is_valid(country, country + sample.replace("?", "").replace("*", "9"))


def _with_prefix(text: str, start: int) -> Iterator[tuple[int, int]]:
    for head in _HEAD.finditer(text, start):
        for country, pattern in _VAT.get(head[0], ()):
            match = pattern.match(text, head.start())
            if match is None or _ACCOUNT.match(text, head.start()):
                continue
            if _is_valid(country, "".join(filter(str.isalnum, match[1]))):
                yield match.span()


def _in_small_letters(text: Reading, start: int) -> Iterator[tuple[int, int]]:
    for match in _SMALL.finditer(text, start):
        if not _NAME.search(text.folded, max(0, match.start() - _BEFORE), match.start() - 2):
            continue
        head = _SMALL_HEAD.search(text, max(start, match.start() - 4), match.start())
        number = (head[0] + match[0]).upper() if head else ""
        if head and any(
            pattern.fullmatch(number) and _is_valid(country, number) for country, pattern in _VAT.get(number[:2], ())
        ):
            yield head.start(), match.end()


def _is_valid(country: str, number: str) -> bool:
    match country:
        case "CHE":
            return bool(ch_uid.is_valid(number))
        case "NO":
            return bool(orgnr.is_valid(number[2:]))
        case "GB":
            return bool(gb_vat.is_valid(number))
        case _:
            return bool(eu_vat.is_valid(number))
