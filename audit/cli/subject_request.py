"""`domicile audit request`: requests of persons, until when each has to be answered, and by which act it was."""

import json
from typing import Annotated

import typer
from rich.table import Table

from audit.cli.command_context import (
    DataOption,
    JsonOption,
    console,
    given_code,
    given_utc,
    printable,
    reporting_errors,
)
from audit.cli.on_files import Row
from audit.cli.over_api import opened_record
from audit.incidents.subject_requests import ACTS, EXTENSIONS, OUTCOMES

app = typer.Typer(no_args_is_help=True, help="Requests of persons: until when each has to be answered (GDPR 12(3)).")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose record.")]
IdArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")]


@app.command(
    "create",
    epilog="Example:\n\n  domicile audit request create acme --right access --subject alice@example.com"
    " --received 2026-03-01T09:30:00Z",
)
def create_command(
    tenant: TenantArgument,
    right: Annotated[str, typer.Option("--right", help=f"What is asked for: {', '.join(ACTS)}.")],
    subject: Annotated[
        str, typer.Option("--subject", help="The person's identifier, as applications give it; committed to on record.")
    ],
    data: DataOption = None,
    received: Annotated[str | None, typer.Option("--received", help="When it came; UTC (default: now).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a request of a person on record, and say until when it has to be answered."""

    with reporting_errors(as_json):
        at = given_utc("--received", received)
        made = opened_record(data).receive(tenant, right=right, subject=subject, received_at=at)
        _show([made], as_json)


@app.command("extend", epilog="Example:\n\n  domicile audit request extend acme REQUEST --reason complexity")
def extend_command(
    tenant: TenantArgument,
    request: IdArgument,
    reason: Annotated[str, typer.Option("--reason", help=f"Reason given to the person: {' or '.join(EXTENSIONS)}.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record that the person was informed of an extension by up to two months, and of the reason."""

    with reporting_errors(as_json):
        _show([opened_record(data).extend(tenant, request, reason=reason)], as_json)


@app.command(
    "close",
    epilog="Examples:\n\n  domicile audit request close acme REQUEST --act 57\n\n"
    "  domicile audit request close acme REQUEST --outcome refused --reason manifestly_unfounded",
)
def close_command(
    tenant: TenantArgument,
    request: IdArgument,
    data: DataOption = None,
    act: Annotated[
        int | None, typer.Option("--act", min=0, help="The record of the act that answers it, as `list` names them.")
    ] = None,
    outcome: Annotated[str, typer.Option("--outcome", help=f"One of {', '.join(OUTCOMES)}.")] = "answered",
    reason: Annotated[str | None, typer.Option("--reason", help="A code, not free text: it is recorded.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put on record how a request ended."""

    with reporting_errors(as_json):
        why = None if reason is None else given_code("--reason", reason)
        _show([opened_record(data).settle(tenant, request, outcome=outcome, act_seq=act, reason=why)], as_json)


@app.command("list", epilog="Example:\n\n  domicile audit request list acme --open --json")
def list_command(
    tenant: TenantArgument,
    data: DataOption = None,
    only_open: Annotated[bool, typer.Option("--open", help="Those that are not closed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The requests of a tenant's persons, and until when each has to be answered."""
    with reporting_errors(as_json):
        found = opened_record(data).requests(tenant)
        _show([one for one in found if one["closed_at"] is None or not only_open], as_json)


def _show(found: list[Row], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"ok": True, "requests": found}, indent=2))
        return
    if not found:
        typer.echo("No request of a person is on record.")
        return
    table = Table(box=None, pad_edge=False)
    columns = ("request", "right", "received (UTC)", "due (UTC)", "state", "ended", "acts on record since then")
    for column in columns:
        table.add_column(column, no_wrap=column not in columns[-2:])
    for one in found:
        acts = ", ".join(f"{act['seq']} ({act['type']})" for act in one["candidates"] if one["closed_at"] is None)
        cells = one["id"], f"{one['right']} ({one['article']})", one["received_at"], one["due_at"], one["state"]
        table.add_row(*(printable(cell) for cell in (*cells, _ended(one), acts)))
    console().print(table)


def _ended(one: Row) -> str:
    if one["closed_at"] is None:
        return f"extended: {one['extension_reason']}" if one["extended_at"] else ""
    by = "" if one["act_seq"] is None else f" by record {one['act_seq']}"
    return f"{one['outcome']}{by}" + (f", {one['reason']}" if one["reason"] else "")
