"""Usage for other programs: CSV (RFC 4180) or lines of JSON, a row a line of the report or a call of the ledger."""

import csv
import io
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from audit.registers.pack_tables import FORMULA


def csv_lines(rows: Iterable[BaseModel], kind: type[BaseModel]) -> Iterator[str]:
    """The header, then the rows, each with its line end. Text that a spreadsheet would run gets a quote before it."""
    yield _line(kind.model_fields)
    for row in rows:
        yield _line(_cell(value) for value in row.model_dump().values())


def json_lines(rows: Iterable[BaseModel]) -> Iterator[str]:
    """The rows as JSON objects, each with its line end."""
    return (f"{row.model_dump_json()}\n" for row in rows)


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return str(value).lower() if isinstance(value, bool) else str(value)
