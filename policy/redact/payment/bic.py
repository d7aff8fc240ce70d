"""BIC (ISO 9362): bank, country, location and branch code, accepted only with context.

A BIC has no check digit. It counts only after its name, below its name in a table, or directly after an account of the
same country.
"""

import re
from collections.abc import Iterator

from policy.redact.context.fields import places
from policy.redact.payment.iban import LENGTHS
from policy.redact.text.reading import Reading

_NAME = re.compile(r"(?:bic|swift)(?:[-/ _]?(?:bic|swift|code|kod|nr))?(?![^\W_])")
_SAID = re.compile(r"[^\w\n]{1,4}\w{1,4}[^\w\n]{1,2}")  # `BIC der Bank: `
_SIGNS = r"(?P<code>[A-Za-z]{4}(?P<country>[A-Za-z]{2})[A-Za-z0-9]{2}(?:[A-Za-z0-9]{3})?)"
_ANY_CASE = re.compile(rf"[\"' ]{{0,2}}{_SIGNS}(?![A-Za-z0-9_])")
_CODE = re.compile(rf"[\"' ]{{0,2}}{_SIGNS.replace('A-Za-z', 'A-Z')}(?![A-Za-z0-9_])")
_BEFORE = re.compile(rf"(?<![A-Za-z0-9_]){_SIGNS.replace('A-Za-z', 'A-Z')}[\"'`*]{{0,2}} \((?:\w{{1,12}} )?\Z")
_SETS = re.compile(r"[:=>]")
_GAP = re.compile(r"[^\w\n]{1,7}")
_COUNTRIES = frozenset(LENGTHS) | {"US", "CA", "JP", "CN", "AU", "IN", "SG", "HK", "KR", "ZA", "MX"}
_LONGEST = 32
_REACH = 120  # covers the tags and quotes of a field
_INITIALS = frozenset({"bic", "swi"})


def find_bics(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of BICs from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(_INITIALS):
        name = _NAME.match(reading.folded, at)
        if name is None:
            continue
        if code := _BEFORE.search(reading, max(start, at - _LONGEST), at):
            yield code.span("code")
        ways = [*places(reading, at, name.end())]
        if joint := _SAID.match(reading, name.end()):
            ways.append((joint.end(), len(reading)))
        for first, last in ways:
            is_set = _SETS.search(
                reading, name.end(), min(first, name.end() + _REACH)
            )  # `swift language` has no separator
            if reading[first - 1 : first] == "_":  # `CMAKE_Swift_COMPILER`, an identifier
                continue
            code = (_ANY_CASE if is_set else _CODE).match(reading, first, last)
            if code and code.start("code") >= start and code["country"].upper() in _COUNTRIES:
                yield code.span("code")
    yield from _behind_accounts(reading)


def _behind_accounts(reading: Reading) -> Iterator[tuple[int, int]]:
    """Yield BICs directly after an IBAN of the same country."""
    for begin, end, label in reading.taken:
        if label == "iban" and (gap := _GAP.match(reading, end)):
            code = _CODE.match(reading, gap.end())
            if code and code["country"] == reading[begin : begin + 2].upper():
                yield code.span("code")
