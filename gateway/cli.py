"""The command ``domicile``: each package brings its own commands; here they are only put together.

What a command needs is imported when it runs, so that ``--help`` is quick and the gateway never loads torch.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from audit.cli import app as audit_app
from backend.cli import app as backend_app
from gateway.backend_cli import app as backends_app
from gateway.control_cli import policy_app, project_app, tenant_app
from gateway.key_cli import key_app
from gateway.people_cli import person_app
from gateway.policy_cli import app as policy_life_app
from policy.cli import app as policy_files_app
from regions.cli import app as region_app

app = typer.Typer(
    name="domicile",
    help="Sovereign, multi-tenant inference: a gateway that judges, answers and records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables: prompts and keys
)
policy_app.registered_commands += policy_files_app.registered_commands + policy_life_app.registered_commands
backend_app.registered_commands += backends_app.registered_commands
for part in (tenant_app, project_app, key_app, person_app, policy_app, region_app):
    app.add_typer(part)
app.add_typer(backend_app, name="backend")
app.add_typer(audit_app, name="audit")

DataOption = Annotated[Path, typer.Option("--data", envvar="DOMICILE_DATA", help="Folder for everything it keeps.")]


@app.command()
def demo(
    data: DataOption = Path("domicile-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the gateway listens; 0 takes a free one.")] = 8400,
    check: Annotated[
        bool, typer.Option("--check", help="Try everything, print pass or FAIL for each, and stop.")
    ] = False,
    model: Annotated[Path | None, typer.Option(help="GGUF file or safetensors folder [default: SmolLM2-135M].")] = None,
) -> None:
    """Two tenants, three regions, a backend for each tenant and the gateway, on this machine.

    Examples:

      domicile demo

      domicile demo --check
    """
    from audit import AuditError
    from gateway.demo.run import run_demo
    from gateway.installation import InstallationError
    from gateway.serve import run
    from gateway.store.errors import StoreError
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
    from gateway.serve import run
    from gateway.settings import SettingsError, load_settings
    from gateway.up import run_gateway

    try:
        settings = load_settings(config, **({"data": data} if data is not None else {}))
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run(run_gateway(settings)))


@app.command("config")
def show_config(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file to check.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a configuration and print what is in effect, the environment included.

    Example: domicile config -c config.yaml
    """
    import yaml

    from gateway.settings import SettingsError, load_settings

    try:
        settings = load_settings(config)
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    shown = settings.model_dump(mode="json")
    typer.echo(json.dumps(shown, indent=2) if as_json else yaml.safe_dump(shown, sort_keys=False).rstrip())


def main() -> None:
    from gateway.admin_record import recorded_admin

    sys.exit(app(obj=recorded_admin))
