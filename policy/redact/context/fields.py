"""Location of a named field's value: after its name, or below it in its column.

Handles the separators of forms, pages and programs. Used for values without a check digit, which count only with a
name.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from policy.redact.text.reading import Reading
from policy.redact.text.tables import Column

# Dots and spaces of a form, line ends, HTML tags, `=>`, `"field": "BIC", "value": "`, a question `BIC?` and who
# answers.
_GLUE = re.compile(
    r"[\"'*_`)\]]{0,4}(?:</[a-z]{1,10}>)?\s{0,2}(?:<input[^<>]{0,80}?value=[\"']|[^\w<>]{0,3}(?:</?[a-z][^<>]{0,60}>\s{0,4}){1,4}"
    r"|\"? ?value=[\"']|,\s{0,3}[\"']?(?:value|wert|valeur|valor)[\"']?\s?[:=]\s?[\"']"
    r"|\.?\?\s{0,3}\n[^\W\d_]{2,12}: |[^\w\n]{0,48}(?:\n[^\w\n]{0,4}){0,2})"
)
_WORDS = re.compile(r"(?:[ _-][^\W\d_]{1,12}){1,2}(?=[^\w ])")  # `Geburtsdatum des Kindes:`
_MOST_NESTED = 4  # headings that begin before one position: of a line, of a statement, and empty ones


def places(reading: Reading, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans in which the value of a field named ``reading[start:end]`` would come first."""
    words = _WORDS.match(reading, end)
    for last in (end, words.end()) if words else (end,):
        if glue := _GLUE.match(reading, last):
            yield glue.end(), len(reading)
    for column in columns_at(reading, start):
        yield from column.cells


def columns_at(reading: Reading, at: int) -> Iterator[Column]:
    """Yield the columns whose heading contains the character at `at`."""
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
