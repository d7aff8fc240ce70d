"""VAT numbers, by country prefix and check digits (VIES, and Switzerland, Norway and the United Kingdom).

Without the prefix, a number counts only if the text calls it a VAT number and the country's rules allow that
(`vat_kinds`). Otherwise a bare number is a national one, see `policy.redact.detectors.national_ids`.
"""

import re
from collections.abc import Iterator

from policy.redact.payment.vat_kinds import VAT
from policy.redact.text.normalise import lowered
from policy.redact.text.reading import Reading

# First characters of the word that begins a number, for ASCII text.
_PREFIXES = frozenset(head for numbers in VAT.by_head.values() for number in numbers for head in number.initials)
_HEAD = re.compile("[A-Z]{2}(?=[A-Z0-9 .-])")
# `USt-IdNr. de136695976`: lower case counts only after a name, and only in one piece.
_INITIALS = frozenset(name[:3] for name in VAT.names)  # as in `Reading.initials`
_NAME = re.compile(rf"(?<![^\W_])(?:{'|'.join(VAT.names)})")
_SMALL = re.compile(r"[0-9](?<=[a-z][0-9])[0-9a-z]{6,12}(?![A-Za-z0-9_@/-]|\.[A-Za-z0-9])")
_SMALL_HEAD = re.compile(r"(?<![A-Za-z0-9_.@/-])[a-z]{2,3}\Z")
_ACCOUNT = re.compile(r"[A-Z]{2}[0-9]{2}(?: [A-Z0-9]{4}){3}")  # an IBAN with a typing error
_BEFORE = 48


def find_vat_numbers(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of valid VAT numbers from `start` on."""
    if not (isinstance(text, Reading) and text.isascii() and _PREFIXES.isdisjoint(text.initials)):
        yield from _with_prefix(text, start)
    small = text.folded if isinstance(text, Reading) else lowered(text)
    if isinstance(text, Reading) and not _INITIALS.isdisjoint(text.initials):
        yield from _in_small_letters(text, start)
    for bare in VAT.bare:
        if bare.sign not in small:
            continue
        for match in bare.pattern.finditer(small, max(0, start - _BEFORE)):
            if match.start("number") >= start and bare.is_valid(match["number"]):
                yield match.span("number")


def load_checks() -> None:
    """Load the validators that `find_vat_numbers` would otherwise load with the first number of a country."""
    for numbers in VAT.by_head.values():
        for number in numbers:
            number.is_valid(number.sample)


def _with_prefix(text: str, start: int) -> Iterator[tuple[int, int]]:
    for head in _HEAD.finditer(text, start):
        for number in VAT.by_head.get(head[0], ()):
            match = number.pattern.match(text, head.start())
            if match is None or _ACCOUNT.match(text, head.start()):
                continue
            if number.is_valid("".join(filter(str.isalnum, match[1]))):
                yield match.span()


def _in_small_letters(text: Reading, start: int) -> Iterator[tuple[int, int]]:
    for match in _SMALL.finditer(text, start):
        if not _NAME.search(text.folded, max(0, match.start() - _BEFORE), match.start() - 2):
            continue
        head = _SMALL_HEAD.search(text, max(start, match.start() - 4), match.start())
        written = (head[0] + match[0]).upper() if head else ""
        if head and any(
            number.pattern.fullmatch(written) and number.is_valid(written)
            for number in VAT.by_head.get(written[:2], ())
        ):
            yield head.start(), match.end()
