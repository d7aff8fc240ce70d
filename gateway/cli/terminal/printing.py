"""Records of the control store in a shell: JSON for machines, a table or a list of fields for people."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


PIPE_WIDTH = 250
"""Width of a table that is not printed on a terminal."""


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_one(record: "BaseModel", as_json: bool) -> None:
    shown = record.model_dump(mode="json")
    if as_json:
        print_json(shown)
        return
    width = max(map(len, shown))
    for name, value in shown.items():
        typer.echo(f"{name:{width}}  {_cell(value)}")


def print_next(command: str, as_json: bool) -> None:
    """The command that comes next; on standard error, where people read and pipes do not."""
    if not as_json:
        typer.echo(f"next: {command}", err=True)


def print_table(records: "Sequence[BaseModel]", columns: Sequence[str], as_json: bool) -> None:
    rows = [record.model_dump(mode="json") for record in records]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        words = column.split("_")
        table.add_column(" ".join(words), overflow="fold", min_width=max(map(len, words)))
    for row in rows:
        table.add_row(*(_short(column, row[column]) for column in columns))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(file=sys.stdout, markup=False, width=width).print(table)


@contextmanager
def progress(what: str, total: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar of so many `what`, advanced by what is yielded; on standard error, if that is a terminal, and gone after.

    `hidden`: where a machine reads, or where the answer itself goes to the terminal.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


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
        case float():
            return f"{value:.6g}"  # the whole is in --json
        case list():
            return ", ".join(map(str, value)) or "-"
        case dict():
            return ", ".join(f"{name}={_cell(inner)}" for name, inner in value.items() if inner is not None) or "-"
        case _:
            return str(value)
