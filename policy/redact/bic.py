"""BIC (ISO 9362): bank, country, place, branch. There is no check digit, so it counts only behind its name."""

import re
from collections.abc import Iterator

from policy.redact.iban import LENGTHS
from policy.redact.reading import Reading

_BIC = re.compile(
    r"(?:BIC|SWIFT)(?:[-/ _]?(?:BIC|SWIFT|code|kod|kód|nr))?\W{1,4}(?:\w{1,4}\W{1,2})?(?<![A-Za-z0-9_])"
    r"(?P<code>[A-Za-z]{4}(?P<country>[A-Za-z]{2})[A-Za-z0-9]{2}(?:[A-Za-z0-9]{3})?)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_COUNTRIES = frozenset(LENGTHS) | {"US", "CA", "JP", "CN", "AU", "IN", "SG", "HK", "KR", "ZA", "MX"}
INITIALS = frozenset({"bic", "swi"})


def find_bics(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of BICs from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(INITIALS):
        match = _BIC.match(reading, at)
        if match and match.start("code") >= start and match["country"].upper() in _COUNTRIES:
            yield match.span("code")
