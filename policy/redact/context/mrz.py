"""Machine-readable zones of passports, identity cards and visas (ICAO 9303 parts 4 to 7), verified by check digits."""

import re
from collections.abc import Iterator

ZONE_SIGN = "<<"  # in every zone
_ZONE = re.compile(
    r"(?<![A-Z0-9<])[ACIPV][A-Z0-9<](?:"
    r"[A-Z<]{3}[A-Z0-9<]{25}\s{1,2}[0-9]{7}[MFX<][0-9]{7}[A-Z<]{3}[A-Z0-9<]{12}\s{1,2}[A-Z<]{30}"  # TD1, three lines
    r"|[A-Z<]{31,42}\s{1,2}[A-Z0-9<]{9}[0-9][A-Z<]{3}[0-9]{7}[MFX<][0-9]{7}[A-Z0-9<]{8,16}"  # TD2 and TD3, two
    r")(?![A-Z0-9<])"
)
_LINE = re.compile(r"[A-Z0-9<]+")


def find_zones(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of zones whose document number, date of birth and expiry date have valid check digits."""
    if ZONE_SIGN in text:
        for zone in _ZONE.finditer(text, start):
            lines = _LINE.findall(zone[0])
            if all(_holds(field, check) for field, check in _fields(lines)):
                yield zone.span()


def _fields(lines: list[str]) -> list[tuple[str, str]]:
    if len(lines) == 3:
        upper, lower = lines[0], lines[1]
        return [(upper[5:14], upper[14]), (lower[:6], lower[6]), (lower[8:14], lower[14])]
    lower = lines[1]
    return [(lower[:9], lower[9]), (lower[13:19], lower[19]), (lower[21:27], lower[27])]


def _holds(field: str, check: str) -> bool:
    """Return whether `check` is the check digit of `field`: weights 7, 3, 1; fillers count 0, letters from A = 10."""
    total = sum((0 if sign == "<" else int(sign, 36)) * (7, 3, 1)[at % 3] for at, sign in enumerate(field))
    return str(total % 10) == check.replace("<", "0")
