"""BIC (ISO 9362): bank, country, place, branch. There is no check digit, so it counts only behind its name, below it in
a table, or right behind an account of the same country."""

import re
from collections.abc import Iterator

from policy.redact.iban import LENGTHS
from policy.redact.reading import Reading

_BIC = re.compile(
    r"(?:BIC|SWIFT)(?:[-/ _]?(?:BIC|SWIFT|code|kod|kód|nr))?\W{1,4}(?:\w{1,4}\W{1,2})?(?<![A-Za-z0-9_])"
    r"(?P<code>[A-Za-z]{4}(?P<country>[A-Za-z]{2})[A-Za-z0-9]{2}(?:[A-Za-z0-9]{3})?)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?P<code>[A-Z]{4}(?P<country>[A-Z]{2})[A-Z0-9]{2}(?:[A-Z0-9]{3})?)(?![A-Za-z0-9_])")
_GAP = re.compile(r"[^\w\n]{1,7}")
_COUNTRIES = frozenset(LENGTHS) | {"US", "CA", "JP", "CN", "AU", "IN", "SG", "HK", "KR", "ZA", "MX"}
_LONGEST_CELL = 16
_INITIALS = frozenset({"bic", "swi"})


def find_bics(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of BICs from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(_INITIALS):
        match = _BIC.match(reading, at)
        if match and match.start("code") >= start and match["country"].upper() in _COUNTRIES:
            yield match.span("code")
        for column in reading.columns:
            if column.start <= at < column.end:
                for first, last in column.cells:
                    code = _CODE.search(reading, first, last)
                    if first >= start and code and code["country"] in _COUNTRIES and last - first <= _LONGEST_CELL:
                        yield code.span("code")
    for begin, end, label in reading.taken:
        if label == "iban" and (gap := _GAP.match(reading, end)):
            code = _CODE.match(reading, gap.end())
            if code and code["country"] == reading[begin : begin + 2].upper():
                yield code.span("code")
