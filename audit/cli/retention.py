"""`domicile retention run`, also `domicile audit retention`: delete what is over its time."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from audit.cli.command_context import DataOption, JsonOption, reporting_errors
from audit.cli.on_files import do
from audit.cli.private_values import BackupOption, print_outcome
from audit.privacy.retention import preview, run
from audit.privacy.schedule import Schedule
from audit.private.audit_context import AuditContext
from audit.private.erasure import finish

app = typer.Typer(no_args_is_help=True, help="Retention: what is over its time goes, what is on hold stays.")

_EPILOG = "Examples:\n\n  domicile retention run --dry-run\n\n  domicile retention run acme --metadata-days 184"


@app.command("run", epilog=_EPILOG)
def retention_command(
    data: DataOption = None,
    tenant: Annotated[list[str] | None, typer.Argument(metavar="[TENANT]...", help="Default: every tenant.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    metadata_days: Annotated[
        int, typer.Option("--metadata-days", help="For calls whose policy set no period.")
    ] = Schedule().inference,
    ceiling_days: Annotated[
        int | None, typer.Option("--ceiling-days", help="Cuts longer periods; not below 184 days of high risk.")
    ] = None,
    values_only: Annotated[bool, typer.Option("--values-only", help="Private values alone; records stay.")] = False,
    backup_days: BackupOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Delete private values and records whose time is over, but for what is on hold, and put the run on record.

    Of a record its content goes and its hash stays: the log verifies as before.
    """
    with reporting_errors(as_json):
        schedule = None if values_only else Schedule(inference=metadata_days, ceiling=ceiling_days)

        async def work(context: AuditContext) -> list[dict[str, Any]]:
            if not dry_run:
                await finish(context)
            with context.reading() as reader:
                names = reader.tenants() if tenant is None else tenant
            return [asdict(await (preview if dry_run else run)(context, name, schedule)) for name in names]

        done = do(data, work, backup_days, tenants=tenant or ())
        would = "would go" if dry_run else "gone"
        lines = [
            f"{one['tenant']}: {one['due']} values due, {one['deleted']} {would}, {one['held']} on hold;"
            f" {one['expired_records']} records {would}, {one['held_records']} on hold"
            + (f"; {one['floored']} calls kept for six months, being of high risk" if one["floored"] else "")
            for one in done
        ]
        print_outcome({"runs": done}, as_json, "\n".join(lines))
