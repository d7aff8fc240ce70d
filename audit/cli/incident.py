"""`domicile audit incident | breach`: what went wrong, whom it concerned, what is due."""

import json
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from audit.cli.command_context import (
    DEFAULT_DATA,
    DataOption,
    JsonOption,
    SinceOption,
    UntilOption,
    UsageMistake,
    console,
    given_code,
    given_period,
    given_utc,
    printable,
    reporting_errors,
)
from audit.cli.on_files import ACTOR, OnFiles, Row, check_severity, do
from audit.cli.over_api import OverApi, opened_record
from audit.files.new_file import replace_file
from audit.incidents.impact import Impact, Scope, draft, impact
from audit.incidents.pack_inputs import evidence_of
from audit.law.deadlines import ClockTable, load_clocks
from audit.privacy.rights import log_read
from audit.private.audit_context import AuditContext

app = typer.Typer()
incident_app = typer.Typer(no_args_is_help=True, help="Incidents: keep their records, know what is due, and when.")
app.add_typer(incident_app, name="incident")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose record.")]
LawOption = Annotated[
    list[str] | None, typer.Option("--law", help="Whose clocks run: gdpr, dora, nis2, ai_act. Repeatable.")
]
AwareOption = Annotated[str | None, typer.Option("--aware", help="When it was known for an incident; UTC.")]
ClassifiedOption = Annotated[str | None, typer.Option("--classified", help="When it was classified (DORA); UTC.")]
SeverityOption = Annotated[
    str | None,
    typer.Option(
        "--severity",
        help="GDPR: unlikely_risk, risk, high_risk. DORA: not_major, major. NIS2: not_significant, significant. AI Act:"
        " serious, widespread, critical_infrastructure, death. Or one of your own table's.",
    ),
]
ClocksOption = Annotated[Path | None, typer.Option("--clocks", help="A file of clocks in place of the built-in ones.")]
SystemOption = Annotated[str | None, typer.Option("--system", help="Of this ai_system_id only.")]
IdArgument = Annotated[str, typer.Argument(help="The incident's id.")]


@incident_app.command(
    "create",
    epilog="Example:\n\n  domicile audit incident create acme --law gdpr --aware 2026-03-01T09:30:00Z",
)
def open_command(
    tenant: TenantArgument,
    data: DataOption = None,
    law: LawOption = None,
    aware: AwareOption = None,
    classified: ClassifiedOption = None,
    severity: SeverityOption = None,
    system: SystemOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    freeze: Annotated[bool, typer.Option(help="Keep the records of the period from every deletion.")] = True,
    clocks: ClocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put an incident on record, freeze the records concerned, and say what is due and when."""
    with reporting_errors(as_json):
        record = opened_record(data)
        known = _clocks(record, clocks)
        laws = law or ["gdpr"]
        _check_laws(known, laws)
        check_severity(known, laws, severity)
        begin, end = given_period(since, until)
        made = record.open_incident(
            tenant,
            known,
            laws=laws,
            aware_at=given_utc("--aware", aware),
            classified_at=given_utc("--classified", classified),
            severity=severity,
            ai_system_id=system,
            since=begin,
            until=end,
            freeze=freeze,
        )
        _show([made], as_json)


@incident_app.command(
    "update", epilog="Example:\n\n  domicile audit incident update acme ID --classified 2026-03-01T11:00:00Z"
)
def update_command(
    tenant: TenantArgument,
    incident_id: IdArgument,
    data: DataOption = None,
    law: LawOption = None,
    aware: AwareOption = None,
    classified: ClassifiedOption = None,
    severity: SeverityOption = None,
    clocks: ClocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put new facts of an incident on record: clocks start to run from them."""
    with reporting_errors(as_json):
        record = opened_record(data)
        known = _clocks(record, clocks)
        _check_laws(known, law or [])
        check_severity(known, known.laws, severity)
        given = {
            "aware_at": given_utc("--aware", aware),
            "classified_at": given_utc("--classified", classified),
            "severity": severity,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        changed |= {"laws": tuple(law)} if law else {}
        if not changed:
            raise UsageMistake("nothing is changed; give --law, --aware, --classified or --severity")
        _show([record.update_incident(tenant, incident_id, known, **changed)], as_json)


@incident_app.command(
    "notify",
    epilog="Example:\n\n  domicile audit incident notify acme ID --clock gdpr.authority --authority CNIL",
)
def notify_command(
    tenant: TenantArgument,
    incident_id: IdArgument,
    clock: Annotated[str, typer.Option("--clock", help="Which clock this met, as `list` names it.")],
    authority: Annotated[str, typer.Option("--authority", help="The authority that was informed.")],
    data: DataOption = None,
    clocks: ClocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record that an authority was informed."""

    with reporting_errors(as_json):
        record = opened_record(data)
        known = _clocks(record, clocks)
        _show([record.notify_incident(tenant, incident_id, known, clock=clock, authority=authority)], as_json)


@incident_app.command("close", epilog="Example:\n\n  domicile audit incident close acme ID --release")
def close_command(
    tenant: TenantArgument,
    incident_id: IdArgument,
    data: DataOption = None,
    reason: Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")] = "resolved",
    release: Annotated[bool, typer.Option("--release", help="Let its records be deleted again.")] = False,
    clocks: ClocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put on record that an incident is over."""
    with reporting_errors(as_json):
        reason, record = given_code("--reason", reason), opened_record(data)
        known = _clocks(record, clocks)
        _show([record.close_incident(tenant, incident_id, known, reason=reason, release=release)], as_json)


@incident_app.command("list", epilog="Example:\n\n  domicile audit incident list acme --open --json")
def list_command(
    tenant: TenantArgument,
    data: DataOption = None,
    only_open: Annotated[bool, typer.Option("--open", help="Those that are not closed.")] = False,
    clocks: ClocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """The incidents of a tenant and what is due for each."""
    with reporting_errors(as_json):
        record = opened_record(data)
        found = record.incidents(tenant, _clocks(record, clocks))
        _show([one for one in found if one["closed"] is None or not only_open], as_json)


@app.command(
    "breach",
    epilog="Examples:\n\n  domicile audit breach --since 2026-03-01 --until 2026-03-02 --backend acme-1\n\n"
    "  domicile audit breach acme --key k7Qm2x9a -o notification.txt",
)
def breach_command(
    data: DataOption = None,
    tenant: Annotated[list[str] | None, typer.Argument(metavar="[TENANT]...", help="Default: every tenant.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Calls that went to this backend.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Calls that went to this region.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Calls with this API key, by its id.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Calls of this project.")] = None,
    system: SystemOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a draft of GDPR 33(3) here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who was affected by a breach: tenants, calls, people, kinds of data, places. The search is recorded."""
    with reporting_errors(as_json):
        begin, end = given_period(since, until)
        scope = Scope(
            since=begin,
            until=end,
            backend_id=backend,
            region=region,
            key_id=key,
            project=project,
            ai_system_id=system,
        )

        async def work(context: AuditContext) -> list[Impact]:
            with context.reading() as reader:
                names = [one for one in reader.tenants() if not one.startswith("_")] if tenant is None else tenant
            for name in names:
                await log_read(context, name, actor=ACTOR, reason="breach_impact")
            with context.reading() as reader, closing(context.open_values()) as side:
                return [impact(reader, name, scope, side) for name in names]

        found = do(data, work, tenants=tenant or ())
        if output is not None:
            concerned = [one for one in found if one.calls]
            parties = {one.tenant: evidence_of(data or DEFAULT_DATA, one.tenant).controller for one in concerned}
            replace_file(output, draft(concerned, scope, parties).encode())
        if as_json:
            typer.echo(json.dumps({"ok": True, "tenants": [one.as_json() for one in found]}, indent=2))
            return
        table = Table(box=None, pad_edge=False)
        for column in ("tenant", "calls", "answered", "people", "data found", "places", "operators", "first", "last"):
            table.add_column(column)
        for one in found:
            cells = (one.tenant, one.calls, one.answered, one.subjects, _kinds(one), ", ".join(one.countries))
            ends = (", ".join(one.operators), one.first or "", one.last or "")
            table.add_row(*(printable(str(cell)) for cell in (*cells, *ends)))
        console().print(table)


def _check_laws(known: ClockTable, laws: Collection[str]) -> None:
    if unknown := set(laws) - known.laws:
        raise UsageMistake(
            f"no clock is known of {', '.join(sorted(unknown))}; name one of {', '.join(sorted(known.laws))}"
        )


def _clocks(record: OnFiles | OverApi, file: Path | None) -> ClockTable:
    """Raises UsageMistake for a file where the incident is elsewhere."""
    if file is not None and isinstance(record, OverApi):
        raise UsageMistake("--clocks is a file of this host, and the clocks are the gateway's there; leave it out")
    return load_clocks(file)


def _kinds(one: Impact) -> str:
    return ", ".join(f"{name} {count}" for name, count in one.data_kinds.most_common(6))


def _show(found: list[Row], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"ok": True, "incidents": found}, indent=2))
        return
    if not found:
        typer.echo("No incident is on record.")
    for case in found:
        held = f", {len(case['hold_ids'])} legal hold" if case["hold_ids"] else ""
        level = f", severity {printable(case['severity'])}" if case["severity"] else ""
        state = "closed" if case["closed"] else "open"
        typer.echo(f"Incident {case['incident_id']}: {state} since {case['opened']}{level}{held}")
        table = Table(box=None, pad_edge=False)
        for column in ("clock", "state", "due (UTC)", "met (UTC)", "who is told", "source", "applies from"):
            table.add_column(column, no_wrap=column not in ("source", "applies from"))
        for row in case["deadlines"]:
            names = ("clock", "state", "due", "met", "tells", "article", "applies_from")
            table.add_row(
                *(str(row[name] or "") for name in names[:2]), _due(row), *(str(row[n] or "") for n in names[3:])
            )
        console().print(table)


def _due(row: dict[str, Any]) -> str:
    """The end, the words that stand for one, or the later end that the weekend rule may give."""
    if row["due_if_weekend_rule_applies"]:
        return f"{row['due']} (or {row['due_if_weekend_rule_applies']}: RTS 2025/301 Art. 5(4))"
    return str(row["due"] or (row["limit"] if row["since"] else ""))
