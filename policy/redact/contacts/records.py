"""Records of persons: table rows with an e-mail address, a phone number, and numbers without a heading."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from policy.redact.contacts.phone import countries_of_number
from policy.redact.text.reading import Reading

_LONGEST_ROW = 600
_SEPARATORS = ";\t|,"
_FEWEST_CELLS, _MOST_CELLS = 3, 24
_PADDING = " \"'\r"
_PHONE = re.compile(r"\(?\+?\(?[0-9][0-9 ()./-]{5,18}[0-9]")
_MAIL = re.compile(r"[^\s@]+@[^\s@]+\.([a-z]{2,24})")
_CALLED = re.compile(r"\(?(?:\+|00)|\((?=[1-9][0-9]{1,2}\))")  # also `(351) 932 930 080`


class Record(NamedTuple):
    """A row that describes one person.

    Attributes:
        phone: span of the cell with the phone number.
        others: spans of the non-empty cells after it.
        countries: countries indicated by the phone, the e-mail address and the text, with a score.
        is_sure: whether the phone or the address identifies its country.
    """

    phone: tuple[int, int]
    others: tuple[tuple[int, int], ...]
    countries: Mapping[str, float]
    is_sure: bool


def records_in(reading: Reading, start: int) -> Iterator[Record]:
    """Yield every record from `start` on."""
    at = reading.find("@", start)
    while at >= 0:
        first = reading.rfind("\n", max(start, at - _LONGEST_ROW), at) + 1
        first = max(first, start)
        last = reading.find("\n", at, at + _LONGEST_ROW)
        last = min(len(reading), at + _LONGEST_ROW) if last < 0 else last
        if record := _record(reading, first, last):
            yield record
        at = reading.find("@", last)


def _cells(row: str, separator: str, first: int) -> list[tuple[int, int]]:
    """Return the span of each cell of a row, without padding and quotes. ``first``: offset of the row."""
    cells: list[tuple[int, int]] = []
    at = first
    for cell in row.split(separator):
        begin = at + len(cell) - len(cell.lstrip(_PADDING))
        cells.append((begin, begin + len(cell.strip(_PADDING))))
        at += len(cell) + 1
    return cells


def _record(reading: Reading, first: int, last: int) -> Record | None:
    row = reading[first:last]
    separator = max(_SEPARATORS, key=row.count)
    if not _FEWEST_CELLS <= row.count(separator) + 1 <= _MOST_CELLS:
        return None
    cells = _cells(row, separator, first)
    written = [reading[slice(*cell)] for cell in cells]
    mail = next((match for each in written if (match := _MAIL.fullmatch(each.lower()))), None)
    if mail is None:
        return None
    known = ((index, each) for index, cell in enumerate(written) if (each := _countries_of(cell)))
    phone, countries = next(known, (-1, frozenset[str]()))
    if phone < 0:
        return None
    is_called = _CALLED.match(written[phone]) is not None
    weight = 2.0 if is_called else 1.0
    scores = dict.fromkeys(countries, weight / len(countries))
    if len(mail[1]) == 2:
        scores[mail[1]] = scores.get(mail[1], 0) + 1
    for country in reading.countries:
        scores[country] = scores.get(country, 0) + 0.5
    return Record(
        cells[phone],
        tuple(cell for cell in cells[phone + 1 :] if cell[0] < cell[1]),
        scores,
        is_called or len(mail[1]) == 2,
    )


def _countries_of(written: str) -> frozenset[str]:
    """Return the countries whose plan assigns the number in a cell; empty if it is not a phone number."""
    if _PHONE.fullmatch(written) is None:
        return frozenset()
    called = _CALLED.match(written)
    return countries_of_number(f"+{written[called.end() :]}" if called else written)
