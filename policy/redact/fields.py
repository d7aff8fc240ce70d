"""Where the value of a named field may stand: behind its name, however a form, a page or a program sets the two apart,
or below it in its column. For what has no check digit, and counts only where it is called by its name.
"""

import re
from collections.abc import Iterator

from policy.redact.reading import Reading

# Dots and blanks of a form, a line's end, tags of HTML, `=>`, `"field": "BIC", "value": "`, `BIC?` and who answers.
_GLUE = re.compile(
    r"[\"'*_`)\]]{0,4}(?:</[a-z]{1,10}>)?\s{0,2}(?:<input[^<>]{0,80}?value=[\"']|[^\w<>]{0,3}(?:</?[a-z][^<>]{0,60}>\s{0,4}){1,4}"
    r"|\"? ?value=[\"']|,\s{0,3}[\"']?(?:value|wert|valeur|valor)[\"']?\s?[:=]\s?[\"']"
    r"|\.?\?\s{0,3}\n[^\W\d_]{2,12}: |[^\w\n]{0,48}(?:\n[^\w\n]{0,4}){0,2})"
)
_WORDS = re.compile(r"(?:[ _-][^\W\d_]{1,12}){1,2}(?=[^\w ])")  # `Geburtsdatum des Kindes:`


def places(reading: Reading, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches, in which the value of a field called ``reading[start:end]`` would stand first."""
    words = _WORDS.match(reading, end)
    for last in (end, words.end()) if words else (end,):
        if glue := _GLUE.match(reading, last):
            yield glue.end(), len(reading)
    for column in reading.columns:
        if column.start <= start < column.end:
            yield from column.cells
