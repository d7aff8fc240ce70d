"""``domicile oversight``: stop an AI system, or one project, and let it go on (AI Act 14(4)(e))."""

from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import DEFAULT_DATA, AsJson, Data, Tenant, opened_control, opened_reports

oversight_app = typer.Typer(name="oversight", help="Stop and resume an AI system or one project.", no_args_is_help=True)

System = Annotated[str | None, typer.Option("--system", help="The AI system, by its id: all projects of it.")]
InProject = Annotated[str | None, typer.Option("--project", help="One project, instead of a system.")]
Reason = Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")]


@oversight_app.command("stop")
def stop(
    ctx: typer.Context,
    tenant: Tenant,
    system: System = None,
    project: InProject = None,
    reason: Reason = "judgement",
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Refuse every call of it, in every gateway within a second, and abort running ones. Recorded first.

    Example: domicile oversight stop acme --system cv-screening --reason wrong_answers
    """
    with opened_control(ctx, data) as control:
        record = control.stop(tenant, project=project, ai_system_id=system, reason=reason)
    print_one(record, as_json)


@oversight_app.command("resume")
def resume(
    ctx: typer.Context,
    tenant: Tenant,
    system: System = None,
    project: InProject = None,
    reason: Reason = "corrected",
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Accept its calls again.

    Example: domicile oversight resume acme --system cv-screening --reason corrected
    """
    with opened_control(ctx, data) as control:
        record = control.resume(tenant, project=project, ai_system_id=system, reason=reason)
    print_one(record, as_json)


@oversight_app.command("list")
def list_stops(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """What was stopped in a tenant: by whom, since when, and until when.

    Example: domicile oversight list acme
    """
    with opened_reports(data) as reports:
        records = reports.stops(tenant)
    columns = ("ai_system_id", "project", "reason", "stopped_at", "stopped_by", "resumed_at", "resumed_by")
    print_table(records, columns, as_json)
