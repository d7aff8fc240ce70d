"""A person's record: a row whose cells hold an e-mail address, a phone, and numbers that no heading names."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from policy.redact.phone import countries_of_number
from policy.redact.reading import Reading

_LONGEST_ROW = 600
_SEPARATORS = ";\t|,"
_FEWEST_CELLS, _MOST_CELLS = 3, 24
_PADDING = " \"'\r"
_PHONE = re.compile(r"\(?\+?\(?[0-9][0-9 ()./-]{5,18}[0-9]")
_MAIL = re.compile(r"[^\s@]+@[^\s@]+\.([a-z]{2,24})")
_CALLED = re.compile(r"\(?(?:\+|00)|\((?=[1-9][0-9]{1,2}\))")  # `(351) 932 930 080` too


class Record(NamedTuple):
    """``phone``: the place of the cell that is its phone; ``others``: those of later cells; ``countries``: those
    that its phone, its e-mail address and its text speak of, with how much does."""

    phone: tuple[int, int]
    others: tuple[tuple[int, int], ...]
    countries: Mapping[str, float]


def records_in(reading: Reading, start: int) -> Iterator[Record]:
    """Every record from `start` on."""
    at = reading.find("@", start)
    while at >= 0:
        first = reading.rfind("\n", max(start, at - _LONGEST_ROW), at) + 1
        first = max(first, start)
        last = reading.find("\n", at, at + _LONGEST_ROW)
        last = min(len(reading), at + _LONGEST_ROW) if last < 0 else last
        if record := _record(reading, first, last):
            yield record
        at = reading.find("@", last)


def _record(reading: Reading, first: int, last: int) -> Record | None:
    row = reading[first:last]
    separator = max(_SEPARATORS, key=row.count)
    if not _FEWEST_CELLS <= row.count(separator) + 1 <= _MOST_CELLS:
        return None
    cells: list[tuple[int, int]] = []
    at = first
    for cell in row.split(separator):
        begin = at + len(cell) - len(cell.lstrip(_PADDING))
        cells.append((begin, begin + len(cell.strip(_PADDING))))
        at += len(cell) + 1
    written = [reading[slice(*cell)] for cell in cells]
    mail = next((match for each in written if (match := _MAIL.fullmatch(each.lower()))), None)
    phone = next((index for index, each in enumerate(written) if _is_phone(each)), None)
    if mail is None or phone is None:
        return None
    scores: dict[str, float] = {}
    is_called = _CALLED.match(written[phone]) is not None
    known = _countries_of(written[phone])
    weight = 2.0 if is_called else 1.0
    for country in known:
        scores[country] = weight / len(known)
    if len(mail[1]) == 2:
        scores[mail[1]] = scores.get(mail[1], 0) + 1
    for country in reading.countries:
        scores[country] = scores.get(country, 0) + 0.5
    return Record(cells[phone], tuple(cell for cell in cells[phone + 1 :] if cell[0] < cell[1]), scores)


def _is_phone(written: str) -> bool:
    """Whether a cell may be a phone: with a calling code, or a number that some country's plan assigns."""
    return _PHONE.fullmatch(written) is not None and bool(_countries_of(written))


def _countries_of(phone: str) -> frozenset[str]:
    called = _CALLED.match(phone)
    return countries_of_number(f"+{phone[called.end() :]}" if called else phone)
