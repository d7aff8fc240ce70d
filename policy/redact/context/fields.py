"""Where the value of a named field may be: behind its name, or below it in its column.

However a form, a page or a program sets the two apart. For what has no check digit, and counts only where it is named.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from policy.redact.text.reading import Reading
from policy.redact.text.tables import Column

# Dots and blanks of a form, a line's end, tags of HTML, `=>`, `"field": "BIC", "value": "`, `BIC?` and who answers.
_GLUE = re.compile(
    r"[\"'*_`)\]]{0,4}(?:</[a-z]{1,10}>)?\s{0,2}(?:<input[^<>]{0,80}?value=[\"']|[^\w<>]{0,3}(?:</?[a-z][^<>]{0,60}>\s{0,4}){1,4}"
    r"|\"? ?value=[\"']|,\s{0,3}[\"']?(?:value|wert|valeur|valor)[\"']?\s?[:=]\s?[\"']"
    r"|\.?\?\s{0,3}\n[^\W\d_]{2,12}: |[^\w\n]{0,48}(?:\n[^\w\n]{0,4}){0,2})"
)
_WORDS = re.compile(r"(?:[ _-][^\W\d_]{1,12}){1,2}(?=[^\w ])")  # `Geburtsdatum des Kindes:`
_MOST_NESTED = 4  # headings that begin before one place: a line's and a statement's, and empty ones


def places(reading: Reading, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches, in which the value of a field called ``reading[start:end]`` would stand first."""
    words = _WORDS.match(reading, end)
    for last in (end, words.end()) if words else (end,):
        if glue := _GLUE.match(reading, last):
            yield glue.end(), len(reading)
    for column in columns_at(reading, start):
        yield from column.cells


def columns_at(reading: Reading, at: int) -> Iterator[Column]:
    """The columns whose heading holds the character at `at`."""
    if not reading.columns:
        return
    known: tuple[list[int], list[Column]] | None = reading.__dict__.get("columns_in_order")
    if known is None:
        ordered = sorted(reading.columns, key=itemgetter(0))
        known = reading.__dict__["columns_in_order"] = ([column.start for column in ordered], ordered)
    starts, ordered = known
    last = bisect_right(starts, at)
    for column in ordered[max(0, last - _MOST_NESTED) : last]:
        if at < column.end:
            yield column
