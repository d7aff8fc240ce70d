"""`domicile audit ai-act`: the log of one AI system, and the duties of the AI Act that apply on a day."""

import json
import re
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from audit.cli.command_context import (
    DataOption,
    JsonOption,
    UsageMistake,
    console,
    given_period,
    printable,
    reporting_errors,
)
from audit.cli.on_files import ACTOR, do
from audit.files.new_file import new_file
from audit.law.ai_act import extract
from audit.law.duties import Duties, load_duties
from audit.pack.archive import require_place
from audit.privacy.rights import log_read
from audit.private.audit_context import AuditContext

SOURCE = "ai-act"
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def ai_act_command(
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", help="Whose record.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="The ai_system_id.")] = None,
    data: DataOption = None,
    since: Annotated[str | None, typer.Option("--since", help="UTC, to any precision: 2026-03-01T12.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="UTC; not included.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write its records here, one JSON a line.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="A day (2026-12-03): which duties apply then, by the law of that day."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The log of one AI system, for its provider or deployer (AI Act 12, 19, 26(6)), and what it comes to.

    With --as-of: the duties of the AI Act that apply on a day; without TENANT and --system, these alone.
    """
    with reporting_errors(as_json):
        day = None if as_of is None else _day(as_of)
        if (tenant is None) != (system is None):
            raise UsageMistake("one of TENANT and --system is missing; name both, or neither with --as-of")
        if tenant is None and day is None:
            raise UsageMistake("neither a system nor a day is named; give TENANT and --system, or --as-of")
        found = {} if tenant is None or system is None else _extract(data, tenant, system, since, until, output)
        told = {} if day is None else duties_on(day)
        if as_json:
            typer.echo(json.dumps({"ok": True, **found, **told}, indent=2))
            return
        for name, value in found.items():
            said = ", ".join(f"{one} {count}" for one, count in value.items()) if isinstance(value, dict) else value
            typer.echo(printable(f"{name.replace('_', ' ')}: {'unknown yet' if said is None else said or '-'}"))
        if told:
            _show(told)


def duties_on(day: date, duties: Duties | None = None) -> dict[str, Any]:
    """Each duty of the AI Act with the dates that the law of `day` gives it, and whether each had come."""
    known = duties or load_duties()
    source = known.sources[SOURCE]
    lines = [
        {
            "provision": duty.provision,
            "asks": duty.asks,
            "who": duty.who,
            "scope": one.scope,
            "applies_from": str(one.start),
            "applies": one.start <= day,
            "read": duty.read,
        }
        for duty in known.of(SOURCE)
        for one in duty.dates(day)
        if day >= source.in_force
    ]
    about = {"as_of": str(day), "table_of": str(known.as_of), "source": source.title, "read": source.read}
    warning = "" if day <= known.as_of else f"changes of the law after {known.as_of} are not in this table"
    if day < source.in_force:
        warning = f"{source.short} entered into force on {source.in_force}: it was not the law on {day}"
    return about | {"warning": warning, "duties": lines}


def _show(told: dict[str, Any]) -> None:
    typer.echo(f"Duties of the AI Act on {told['as_of']}, by the table of {told['table_of']}:")
    table = Table(box=None, pad_edge=False)
    for column in ("article", "state", "applies from", "scope", "who", "asks for", "read"):
        table.add_column(column, no_wrap=column in ("article", "state", "applies from"))
    for one in told["duties"]:
        state = "applies" if one["applies"] else "not yet"
        names = ("applies_from", "scope", "who", "asks", "read")
        table.add_row(one["provision"], state, *(one[name] for name in names))
    console().print(table)
    typer.echo(f"Source: {told['source']}. Read: {told['read']}.")
    if told["warning"]:
        typer.echo(f"NOTE: {told['warning']}.")


def _extract(
    data: Path | None, tenant: str, system: str, since: str | None, until: str | None, output: Path | None
) -> dict[str, Any]:
    start, end = given_period(since, until)

    if output is not None:
        require_place(output)

    async def work(context: AuditContext) -> dict[str, Any]:
        await log_read(context, tenant, actor=ACTOR, reason="ai_act_extract")

        def run() -> dict[str, Any]:
            read = partial(extract, tenant=tenant, ai_system_id=system, since=start, until=end)
            with context.reading() as reader:
                if output is None:
                    return read(reader).as_json()
                with new_file(output) as file:

                    def write(seq: int, event: dict[str, Any]) -> None:
                        file.write(json.dumps({"seq": seq, **event}).encode() + b"\n")

                    return read(reader, write=write).as_json()

        return await context.in_thread(run)

    return do(data, work, tenants=(tenant,))


def _day(text: str) -> date:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError  # 20261203 and 2026-W49-4 are days to Python, and other things to people
        return date.fromisoformat(text)
    except ValueError:
        raise UsageMistake(f"--as-of {text!r} is no day; write 2026-12-03") from None
