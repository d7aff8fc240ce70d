"""Device identifiers: IMEI (3GPP TS 23.003, Luhn) after its name, and IEEE 802 MAC addresses."""

import re
from collections.abc import Iterator

from policy.redact.payment.payment_cards import passes_luhn
from policy.redact.text.reading import Reading
from policy.redact.text.shapes import BEGIN, END, flexible

_IMEI = re.compile(
    rf"IMEI\w*\W{{1,4}}(?:\w{{1,8}}\W{{1,3}}){{0,2}}(?P<number>{BEGIN}{flexible('9' * 15)}){END}", re.IGNORECASE
)
_MAC = re.compile(
    r"(?<![A-Za-z0-9_:.-])(?:(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}"
    r"|(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})(?![A-Za-z0-9_]|[:.-][0-9A-Fa-f])"
)
_LINE_OF_BYTES_BEFORE = re.compile(
    r"[0-9A-Fa-f]{2}:\s{0,2}\n\s{0,16}\Z"
)  # in a certificate or a fingerprint of several lines
_MAC_SIGN = re.compile(r"[:.-](?<=[0-9A-Fa-f]{2}[:.-])[0-9A-Fa-f]{2}")
INITIALS = frozenset({"ime"})


def find_imeis(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of valid IMEIs from `start` on that follow their name."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(INITIALS):
        match = _IMEI.match(reading, at)
        if match and match.start("number") >= start and passes_luhn("".join(filter(str.isdigit, match["number"]))):
            yield match.span("number")


def find_macs(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of MAC addresses from `start` on, with colons, hyphens or dots.

    An address that repeats one digit is skipped.
    """
    if (text.count(":") > 4 or text.count("-") > 4 or text.count(".") > 1) and _MAC_SIGN.search(text, start):
        for match in _MAC.finditer(text, start):
            if len(set(match[0]) - set(":.-")) > 1 and not _LINE_OF_BYTES_BEFORE.search(
                text, max(0, match.start() - 24), match.start()
            ):
                yield match.span()
