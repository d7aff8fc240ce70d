"""``domicile doctor``: what is weak in how this installation is set up."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import AsJson, plain_errors


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="DOMICILE_CONFIG", help="YAML file of the gateway.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", envvar="DOMICILE_DATA", help="Overrides the file's.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything is weak.")] = False,
    as_json: AsJson = False,
) -> None:
    """Name every weak default in force, as the gateway does once at its start, with what to do about it.

    Example: domicile doctor -c config.yaml
    """
    from gateway.configuration.settings import SettingsError, load_settings
    from gateway.installation import doctor
    from gateway.installation.installation import Installation

    try:
        settings = load_settings(config, **({"data": data} if data is not None else {}))
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    with plain_errors():
        installation = Installation.open(settings.data, settings.secrets)
        database = installation.database()
        try:
            found = doctor.configuration_warnings(settings, doctor.observe(settings, installation, database))
        finally:
            database.close()
    if as_json:
        print_json(doctor.as_json(found))
    else:
        for one in found:
            typer.echo(f"{one.code}: {one.says}.\n    {one.fix}")
        typer.echo(f"{len(found)} weak defaults are in force." if found else "No weak default is in force.")
    raise typer.Exit(1 if strict and found else 0)
