"""BIC (ISO 9362): bank, country, place, branch. There is no check digit, so it counts only behind its name."""

import re
from collections.abc import Iterator

from policy.redact.iban import LENGTHS

_BIC = re.compile(
    r"\b(?:BIC|SWIFT)(?:[-/ ](?:BIC|SWIFT|code|kod|kód|code))?\W{1,4}(?:\w{1,4}\W{1,2})?(?<![A-Za-z0-9_])"
    r"(?P<code>[A-Za-z]{4}(?P<country>[A-Za-z]{2})[A-Za-z0-9]{2}(?:[A-Za-z0-9]{3})?)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_COUNTRIES = frozenset(LENGTHS) | {"US", "CA", "JP", "CN", "AU", "IN", "SG", "HK", "KR", "ZA", "MX"}
_BEFORE = 48


def find_bics(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of BICs from `start` on."""
    for match in _BIC.finditer(text, max(0, start - _BEFORE)):
        if match.start("code") >= start and match["country"].upper() in _COUNTRIES:
            yield match.span("code")
