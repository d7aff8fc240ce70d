"""The command ``domicile``: each package brings its own commands; here they are only put together.

What a command needs is imported when it runs, so that ``--help`` is quick and the gateway never loads torch.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audit.cli.app import app as audit_app
from audit.cli.retention import app as retention_app
from audit.incidents.evidence import Evidence, evidence_sources
from backend.cli.serve import app as backend_app
from backend.cli.serve import plan
from gateway.cli.admin.backend import app as backends_app
from gateway.cli.admin.cell import cell_app
from gateway.cli.admin.deployment import deployment_app
from gateway.cli.admin.key import key_app
from gateway.cli.admin.limit import limit_app
from gateway.cli.admin.oversight import oversight_app
from gateway.cli.admin.person import person_app
from gateway.cli.admin.policy import app as policy_life_app
from gateway.cli.admin.replay import app as replay_app
from gateway.cli.admin.tenant import policy_app, project_app, tenant_app
from gateway.cli.admin.usage import usage_app
from gateway.cli.backup import backup_app, init
from gateway.cli.config import config_app
from gateway.cli.database import database_app
from gateway.cli.doctor import doctor
from gateway.cli.secrets import secrets_app
from policy.cli import app as policy_files_app
from policy.redact.cli import app as redact_app
from regions.cli import app as region_app

if TYPE_CHECKING:
    from audit.cli.frame import Hands
    from audit.witness.rotation import Replacement

app = typer.Typer(
    name="domicile",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables: prompts and keys
)
policy_app.registered_commands += policy_files_app.registered_commands + policy_life_app.registered_commands
backend_app.registered_commands += backends_app.registered_commands + replay_app.registered_commands
for part in (
    backup_app,
    cell_app,
    config_app,
    database_app,
    deployment_app,
    tenant_app,
    project_app,
    key_app,
    limit_app,
    oversight_app,
    person_app,
    policy_app,
    redact_app,
    region_app,
    secrets_app,
    usage_app,
):
    app.add_typer(part)
app.add_typer(backend_app, name="backend")
app.command()(plan)
app.add_typer(audit_app, name="audit")
app.add_typer(retention_app, name="retention")

app.command()(init)
app.command()(doctor)


def _say_version(wanted: bool) -> None:
    if wanted:
        from gateway.version import build

        typer.echo(build())
        raise typer.Exit


@app.callback(epilog="Example: domicile demo")
def domicile(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Sovereign, multi-tenant inference: a gateway that judges, answers and records."""


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
    from gateway.database.errors import StoreError
    from gateway.demo.run import run_demo
    from gateway.installation.installation import InstallationError
    from gateway.server.serve import run
    from regions.errors import RegionsError

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
) -> None:
    """Run the gateway until it is stopped.

    Example: domicile up -c config.yaml
    """
    import gc

    gc.disable()  # until it listens: what is made by then stays, and looking through it takes a sixth of the time
    from gateway.cli.up import run_gateway
    from gateway.configuration.settings import SettingsError, load_settings
    from gateway.server.serve import run

    try:
        settings = load_settings(config, **({"data": data} if data is not None else {}))
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run(run_gateway(settings)))


def _registers(data: Path, tenant: str) -> Evidence:
    from gateway.evidence.evidence import gather

    return gather(data, tenant)


def _hands_of(log: Path) -> "Hands":
    """The keys and the signer of the log in a data folder, wherever its configuration says that they are."""
    from audit.cli.frame import open_from_files
    from audit.errors import AuditError
    from gateway.installation.installation import Installation, InstallationError

    if not (log.parent.parent / "cell").exists():
        return open_from_files(log)  # a log without an installation around it
    try:
        installation = Installation.open(log.parent.parent)
    except InstallationError as error:
        raise AuditError(str(error)) from error
    return installation.keys, installation.signer()


def _record_url() -> str | None:
    """As the environment says, or the configuration that DOMICILE_CONFIG names."""
    from audit.errors import StoreError
    from gateway.configuration.database_urls import urls_of
    from gateway.configuration.settings import SettingsError
    from gateway.installation.installation import InstallationError, configured_databases

    try:
        return urls_of(configured_databases()).record
    except (InstallationError, SettingsError) as error:
        raise StoreError(str(error)) from error


def _replacement_of(log: Path, to: str | None) -> "Replacement":
    """How the signing key of the log in a data folder is replaced, where its configuration says that it is."""
    from audit.cli.frame import replace_in_file
    from audit.errors import AuditError
    from gateway.installation.installation import Installation, InstallationError

    if not (log.parent.parent / "cell").exists():
        return replace_in_file(log, to)
    from gateway.installation.signing_key import replacement

    try:
        return replacement(Installation.open(log.parent.parent), to)
    except InstallationError as error:
        raise AuditError(str(error)) from error


def main() -> None:
    from audit.cli.frame import open_hands, open_replacement
    from audit.storage.place import use_urls_of
    from gateway.installation.admin_record import recorded_admin

    evidence_sources.append(_registers)

    open_hands.set(_hands_of)
    open_replacement.set(_replacement_of)
    use_urls_of(_record_url)
    sys.exit(app(obj=recorded_admin))
