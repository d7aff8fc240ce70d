"""The command ``domicile``: the groups of commands, which the packages define.

What a command needs is imported when it runs, so that ``--help`` is quick and the gateway never loads torch.
"""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.lazy_group import LazyCommand, lazy_group

if TYPE_CHECKING:
    from audit.cli.command_context import KeysAndSigner
    from audit.witness.rotation import Replacement
    from gateway.configuration.database_urls import DatabaseUrls

PARTS = {
    "init": LazyCommand(
        "Make a data folder: the cell's name and its keys. Run again, it changes nothing.", ("gateway.cli.backup:init",)
    ),
    "doctor": LazyCommand(
        "Name every weak default in force, as the gateway does once at its start, with what to do about it.",
        ("gateway.cli.doctor:doctor",),
    ),
    "config": LazyCommand("See and check the gateway's configuration.", ("gateway.cli.configuration:config_app",)),
    "database": LazyCommand("Where the databases are, and whose they are.", ("gateway.cli.database:database_app",)),
    "secrets": LazyCommand("The keys above all others.", ("gateway.cli.secrets:secrets_app",)),
    "backup": LazyCommand("Create and restore backups of a cell.", ("gateway.cli.backup:backup_app",)),
    "evidence": LazyCommand(
        "Evidence of backends' hardware: check it again.", ("gateway.cli.offline.evidence:evidence_app",)
    ),
    "login": LazyCommand("Log in to a remote installation; later commands act on it.", ("gateway.cli.login:login",)),
    "logout": LazyCommand(
        "Delete the stored login of an installation, and end the session at the identity provider.",
        ("gateway.cli.login:logout",),
    ),
    "apply": LazyCommand(
        "Make tenants, projects, keys, limits, policies and deployments as the YAML of a folder says.",
        ("gateway.cli.apply:apply",),
    ),
    "tenant": LazyCommand("Customer organisations, the unit of isolation.", ("gateway.cli.admin.tenant:tenant_app",)),
    "project": LazyCommand(
        "A tenant's applications, each bound to a processing activity.", ("gateway.cli.admin.tenant:project_app",)
    ),
    "key": LazyCommand("API keys of a project.", ("gateway.cli.admin.key:key_app",)),
    "adapter": LazyCommand("LoRA adapters of a project, by digest.", ("gateway.cli.adapter:adapter_app",)),
    "model": LazyCommand(
        "Names of models in a project: aliases, fallbacks, defaults, notices.", ("gateway.cli.admin.model:model_app",)
    ),
    "policy": LazyCommand(
        "Activate policies and see what is in force.",
        ("gateway.cli.admin.policy:app", "policy.cli:app"),
    ),
    "limit": LazyCommand("What tenants, projects and keys may use at most.", ("gateway.cli.admin.limit:limit_app",)),
    "person": LazyCommand("People, their roles and access tokens.", ("gateway.cli.admin.person:person_app",)),
    "oversight": LazyCommand(
        "Stop and resume an AI system or one project.", ("gateway.cli.admin.oversight:oversight_app",)
    ),
    "usage": LazyCommand("Tokens, backend seconds and cost, from the ledger.", ("gateway.cli.admin.usage:usage_app",)),
    "batch": LazyCommand("Batches of tenants: how far they are, and an end.", ("gateway.cli.admin.batch:batch_app",)),
    "backend": LazyCommand(
        "A tenant's inference backend: the engine and its server.",
        ("backend.cli.serve:app", "gateway.cli.admin.backend:app", "gateway.cli.admin.replay:app"),
    ),
    "mark": LazyCommand(
        "Marks of answers: test a text for watermarks.",
        (
            "gateway.cli.marks.watermark:mark_app",
            "gateway.cli.marks.answer_search:mark_app",
            "gateway.cli.marks.false_alarms:mark_app",
            "gateway.cli.marks.manifest:mark_app",
        ),
    ),
    "deployment": LazyCommand(
        "Backends that come, scale, sleep and go by themselves.", ("gateway.cli.admin.deployment:deployment_app",)
    ),
    "plan": LazyCommand(
        "Predict memory and speed of a model on a card, from its configuration alone. Ends with 1 if it cannot be.",
        ("backend.cli.capacity_plan:plan",),
    ),
    "region": LazyCommand("Places where backends run, and who controls them.", ("regions.cli:app",)),
    "cell": LazyCommand("Other cells, and which tenants are served there.", ("gateway.cli.admin.cell:cell_app",)),
    "redact": LazyCommand("Try and measure redaction.", ("policy.redact.cli:app",)),
    "audit": LazyCommand(
        "The audit log: verify it, read it, prove one record.",
        ("audit.cli.app:app", "gateway.cli.marks.answer_search:audit_app", "gateway.cli.marks.challenge:audit_app"),
    ),
    "retention": LazyCommand(
        "Retention: what is over its time goes, what is on hold stays.", ("audit.cli.retention:app",)
    ),
}


def _prepare(ctx: typer.Context) -> None:
    """Give the commands of `audit`, which may not import this package, the keys, registers and databases."""
    _know_other_hosts()
    if ctx.obj is not _recorded_admin:
        return  # called by another program, which has set them itself
    from audit.cli.command_context import open_keys, open_replacement
    from audit.private.value_location import use_values_url_of
    from audit.storage.location import use_urls_of
    from gateway.evidence_pack.pack_sources import give_sources

    give_sources()
    open_keys.set(_keys_and_signer_of)
    open_replacement.set(_replacement_of)
    use_urls_of(_record_url)
    use_values_url_of(_values_url)


def _know_other_hosts() -> None:
    """Give the commands of `audit` and `regions` the installation elsewhere that a command is for."""
    from audit.cli import command_context
    from gateway.cli.terminal.shell import catalogue_elsewhere, record_elsewhere
    from regions.cli import elsewhere

    elsewhere.set(catalogue_elsewhere)
    command_context.elsewhere.set(record_elsewhere)


app = typer.Typer(
    name="domicile",
    cls=lazy_group(PARTS, _prepare),
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables: prompts and keys
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gateway.version import build

        typer.echo(build())
        raise typer.Exit


@app.callback(epilog="Example: domicile demo")
def domicile(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Sovereign, multi-tenant inference: a gateway that enforces policies, answers and records."""
    from gateway.cli.terminal.host_only import check_place

    check_place()


DataOption = Annotated[Path, typer.Option("--data", envvar="DOMICILE_DATA", help="Folder for everything it keeps.")]


@app.command()
def demo(
    data: DataOption = Path("domicile-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the gateway listens; 0 takes a free one.")] = 8400,
    check: Annotated[
        bool, typer.Option("--check", help="Try everything, print pass or FAIL for each, and stop.")
    ] = False,
    model: Annotated[Path | None, typer.Option(help="GGUF file or safetensors folder (default: SmolLM2-135M).")] = None,
) -> None:
    """Two tenants, three regions, a backend for each tenant and the gateway, on this machine.

    Examples:

      domicile demo

      domicile demo --check
    """
    from audit.errors import AuditError
    from gateway.cli.extras import absent_extras, install_line
    from gateway.database.errors import StoreError
    from gateway.demo.run import run_demo
    from gateway.installation.installation import InstallationError
    from gateway.server.serve import run
    from regions.errors import RegionsError

    if absent_extras(engine=True, demo=check):
        typer.echo(
            f"error: the demo runs the engine, which is not installed; run: {install_line('engine', 'demo')}", err=True
        )
        raise typer.Exit(1)
    try:
        passed = run(run_demo(data, port, model, check=check))
    except (RegionsError, StoreError, InstallationError, AuditError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(0 if passed else 1)


@app.command()
def up(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md.")] = None,
    data: Annotated[Path | None, typer.Option("--data", envvar="DOMICILE_DATA", help="Overrides the file's.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=256, help="Processes that take calls; overrides the file's.")
    ] = None,
) -> None:
    """Run the gateway until it is stopped.

    Example: domicile up -c config.yaml --workers 4
    """
    import gc

    gc.disable()  # until it listens: what is made by then stays, and looking through it takes a sixth of the time
    from gateway.configuration.settings import SettingsError, load_settings
    from gateway.server.serve import run

    read = partial(load_settings, config, **({"data": data} if data is not None else {}))
    try:
        settings = read()
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    places = settings.listen.workers if workers is None else workers
    if places > 1:
        from gateway.cli.workers import run_workers

        raise typer.Exit(run(run_workers(settings, places, config, data)))
    from gateway.cli.up import run_gateway

    raise typer.Exit(run(run_gateway(settings, read)))


def _keys_and_signer_of(log: Path) -> "KeysAndSigner":
    """The keys and the signer of the log in a data folder, wherever its configuration says that they are."""
    from audit.cli.command_context import open_from_files
    from audit.errors import AuditError
    from gateway.installation.installation import Installation, InstallationError, is_part_of_one

    if not is_part_of_one(log.parent.parent):
        return open_from_files(log)  # a log without an installation around it
    try:
        installation = Installation.open(log.parent.parent)
    except InstallationError as error:
        raise AuditError(str(error)) from error
    return installation.keys, installation.signer()


def _record_url() -> str | None:
    return _urls().record


def _values_url() -> str | None:
    return _urls().values


def _urls() -> "DatabaseUrls":
    """As the environment says, or the configuration that DOMICILE_CONFIG names. Raises StoreError."""
    from audit.errors import StoreError
    from gateway.configuration.database_urls import urls_of
    from gateway.configuration.settings import SettingsError
    from gateway.installation.installation import InstallationError, configured_databases

    try:
        return urls_of(configured_databases())
    except (InstallationError, SettingsError) as error:
        raise StoreError(str(error)) from error


def _replacement_of(log: Path, to: str | None) -> "Replacement":
    """How the signing key of the log in a data folder is replaced, where its configuration says that it is."""
    from audit.cli.command_context import replace_in_file
    from audit.errors import AuditError
    from gateway.installation.installation import Installation, InstallationError, is_part_of_one

    if not is_part_of_one(log.parent.parent):
        return replace_in_file(log, to)
    from gateway.installation.signing_key import replacement

    try:
        return replacement(Installation.open(log.parent.parent), to)
    except InstallationError as error:
        raise AuditError(str(error)) from error


def _recorded_admin(*arguments: Any) -> Any:
    from gateway.installation.admin_record import recorded_admin

    return recorded_admin(*arguments)


def main() -> None:
    try:
        sys.exit(app(obj=_recorded_admin))
    except ModuleNotFoundError as error:
        from gateway.cli.extras import extra_of, install_line

        if (extra := extra_of(error)) is None:
            raise
        needed = f"this command needs the extra domicile[{extra}], which is not installed ({error})"
        typer.echo(f"error: {needed}; run: {install_line(extra)}", err=True)
        sys.exit(1)
