"""Records of the control store in a shell: JSON for machines, a table or a list of fields for people."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from gateway.store.records import Record


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_one(record: "Record", as_json: bool) -> None:
    shown = record.model_dump(mode="json")
    if as_json:
        print_json(shown)
        return
    width = max(map(len, shown))
    for name, value in shown.items():
        typer.echo(f"{name:{width}}  {_cell(value)}")


def print_table(records: "Sequence[BaseModel]", columns: Sequence[str], as_json: bool) -> None:
    rows = [record.model_dump(mode="json") for record in records]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_short(column, row[column]) for column in columns))
    Console(file=sys.stdout, markup=False).print(table)


def _short(column: str, value: Any) -> str:
    """What a table has room for; ``show`` and ``--json`` give the whole."""
    if value is not None and column.endswith("_at"):
        return str(value)[:16].replace("T", " ")
    if column == "cost" and value is not None:
        return f"{value / 10**6:g} EUR/M"
    if column == "sha256":
        return str(value)[:12]
    return _cell(value)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "-"
        case dict():
            return ", ".join(f"{name}={_cell(inner)}" for name, inner in value.items() if inner is not None) or "-"
        case _:
            return str(value)
