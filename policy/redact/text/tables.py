"""Table detection, as far as a heading names the cells below it.

Supported are comma, semicolon, tab and bar separated values, columns aligned by spaces, rows of HTML, and the column
lists of SQL (``INSERT INTO t (a, b) VALUES``, ``COPY``).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

Cell = tuple[int, int]

_MOST_COLUMNS = 64
_MOST_HEADINGS = 3  # lines above the first value that may be the heading
_SIGNS = ";\t|,"
_OFTEN_UNEVEN = _SIGNS[:3]  # a heading may lack the column of row names; in prose these separators are rare
_LONGEST_QUOTED = 400
_VALUE = re.compile("[0-9]{3}")
_MEMBER = re.compile("[\"']:|[=:] ?[\"']")  # a member of an object or a call, which also use commas
_BLANKS = re.compile(" {2,}")
_LISTED = re.compile(
    r"\((?P<names>[^()\n]{3,800})\)\s{0,4}(?:VALUES\s{0,4}(?=\()|FROM STDIN[^\n]{0,40};\n)", re.IGNORECASE
)
_QUOTED = r"'(?>(?:[^'\\]|\\.)*)'"
_TUPLE = re.compile(rf"\s{{0,4}}\(((?>(?:[^()']|{_QUOTED})*))\),?")
_LITERAL = re.compile(rf"(?>(?:[^,']|{_QUOTED})+)")
_ROW = re.compile(r"<tr[ >]", re.IGNORECASE)
_HEADS = re.compile("<th[ >]", re.IGNORECASE)
_CELL = re.compile(r"<t[hd](?: [^<>]{0,80})?>([^<]*)", re.IGNORECASE)


class Column(NamedTuple):
    """The heading of a column at ``text[start:end]`` and the spans of the cells below it."""

    start: int
    end: int
    cells: tuple[Cell, ...]


def columns_of(text: str) -> tuple[Column, ...]:
    """Return every column of every table in the text."""
    columns: list[Column] = []
    if "\n" in text:
        columns += _of_lines(text)
    if ")" in text and ("VALUES" in text or "values" in text or "stdin" in text or "STDIN" in text):
        columns += _of_statements(text)
    if "<t" in text or "<T" in text:
        columns += _of_markup(text)
    return tuple(columns)


def _of_lines(text: str) -> Iterator[Column]:
    lines: list[Cell] = []
    at = 0
    for line in text.split("\n"):
        lines.append((at, at + len(line)))
        at += len(line) + 1
    first = 0
    while first < len(lines) - 1:
        start, end = lines[first]
        sign = max(_SIGNS, key=lambda each: text.count(each, start, end))
        if not text.count(sign, start, end):
            sign = "  "
        heading = _cells(text, lines[first], sign)
        is_object = sign == "," and _MEMBER.search(text, start, end)
        if not 1 < len(heading) <= _MOST_COLUMNS or is_object or _VALUE.search(text, start, end):
            first += 1
            continue
        slack = 1 if sign in _OFTEN_UNEVEN else 0
        rows = [heading]
        last = first + 1
        while last < len(lines):
            cells = _cells(text, lines[last], sign)
            if len(cells) < 2 or abs(len(cells) - len(heading)) > slack:
                break
            rows.append(cells)
            last += 1
        for index in range(min(_MOST_HEADINGS, len(rows) - 1)):
            if _VALUE.search(text, *lines[first + index]):
                break
            yield from _below(rows[index], rows[index + 1 :])
        first = last


def _below(heading: list[Cell], rows: list[list[Cell]]) -> Iterator[Column]:
    """Yield the columns of a table.

    A row with one cell more or less than the heading is read both aligned and shifted by one.
    """
    if not rows:
        return
    for index, (start, end) in enumerate(heading):
        cells = [row[index] for row in rows if index < len(row)]
        for row in rows:
            shifted = index + len(row) - len(heading)
            if shifted != index and 0 <= shifted < len(row):
                cells.append(row[shifted])
        yield Column(start, end, tuple(cells))


def _cells(text: str, line: Cell, sign: str) -> list[Cell]:
    """Return the cell spans of a line. A cell that starts with a double quote ends after the next one (RFC 4180), if
    any.
    """
    at, end = line
    cells: list[Cell] = []
    if sign == "  ":
        end -= len(text[at:end]) - len(text[at:end].rstrip(" "))
        indent = _BLANKS.match(text, at, end)
        at = indent.end() if indent else at
        for gap in _BLANKS.finditer(text, at, end):
            cells.append((at, gap.start()))
            at = gap.end()
        return [*cells, (at, end)]
    while len(cells) <= _MOST_COLUMNS:
        closed = text.find('"', at + 1, min(end, at + _LONGEST_QUOTED)) if text.startswith('"', at, end) else -1
        cut = text.find(sign, max(at, closed), end)
        if cut < 0:
            break
        cells.append((at, cut))
        at = cut + 1
    return [*cells, (at, end)]


def _of_statements(text: str) -> Iterator[Column]:
    at = 0
    while listed := _LISTED.search(text, at):
        heading = _cells(text, listed.span("names"), ",")
        rows: list[list[Cell]] = []
        at = listed.end()
        if listed[0].endswith(";\n"):
            while at < len(text) and not text.startswith("\\.", at):
                end = text.find("\n", at)
                end = len(text) if end < 0 else end
                rows.append(_cells(text, (at, end), "\t"))
                at = end + 1
        else:
            while row := _TUPLE.match(text, at):
                rows.append([each.span() for each in _LITERAL.finditer(text, row.start(1), row.end(1))])
                at = row.end()
        yield from _below(heading, [row for row in rows if len(row) == len(heading)])


def _of_markup(text: str) -> Iterator[Column]:
    starts = [row.start() for row in _ROW.finditer(text)]
    if len(starts) > 1 and _HEADS.search(text, starts[1]):  # each row has its own heading
        return
    rows = [
        [cell.span(1) for cell in _CELL.finditer(text, start, end)]
        for start, end in zip(starts, [*starts, len(text)][1:], strict=True)
    ]
    if len(rows) > 1 and not any(_VALUE.search(text, *cell) for cell in rows[0]):
        yield from _below(rows[0], [row for row in rows[1:] if len(row) == len(rows[0])])
