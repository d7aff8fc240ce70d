"""``domicile config``: what is in force, where it comes from, and whether it can be used."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import AsJson, fail

if TYPE_CHECKING:
    from gateway.configuration.provenance import Setting
    from gateway.configuration.settings import Settings

config_app = typer.Typer(name="config", help="See and check the gateway's configuration.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; without it, defaults and environment.")]
DataFolder = Annotated[Path | None, typer.Option("--data", envvar="DOMICILE_DATA", help="Overrides the file's.")]


@config_app.command("show")
def show_config(config: Config = None, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Print what is in force, and behind each value where it comes from. Of secrets only the path is shown.

    What is printed may be used as a configuration file.

    Example: domicile config show -c config.yaml
    """
    from gateway.configuration.provenance import environment_urls

    settings, found = _resolved(config, data)
    if as_json:
        sources = {each.key: each.source for each in [*found, *environment_urls()]}
        environment = {each.key: each.value for each in environment_urls()}
        print_json({"settings": settings.model_dump(mode="json"), "environment": environment, "sources": sources})
        return
    import yaml

    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, width=1000).rstrip().splitlines()
    for line in _annotated(text, {each.key: each.source for each in found}):
        typer.echo(line)
    for each in environment_urls():
        typer.echo(f"# {each.key}: {each.value}")


@config_app.command("check")
def check_config(config: Config = None, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Check a configuration and the files that it names, without starting anything.

    Example: domicile config check -c config.yaml
    """
    from gateway.configuration.provenance import mistakes

    settings, _ = _resolved(config, data)
    found = mistakes(settings)
    if as_json:
        print_json({"ok": not found, "mistakes": found})
    for mistake in found if not as_json else ():
        typer.echo(f"error: {mistake}", err=True)
    if not found and not as_json:
        typer.echo("the configuration can be used")
    raise typer.Exit(1 if found else 0)


def _resolved(config: Path | None, data: Path | None) -> "tuple[Settings, list[Setting]]":
    from gateway.configuration.provenance import resolved
    from gateway.configuration.settings import SettingsError

    try:
        return resolved(config, data)
    except SettingsError as error:
        fail(str(error), status=2)


def _annotated(lines: list[str], sources: dict[str, str]) -> list[str]:
    """Each line of YAML that holds a value, with its source as a comment."""
    shown, path = [], list[str]()
    for line in lines:
        name = line.strip().partition(":")[0].strip("'\"")
        depth = (len(line) - len(line.lstrip())) // 2
        if not line.lstrip().startswith("- "):
            path[depth:] = [name]
        source: Any = sources.get(".".join(path)) if not line.lstrip().startswith("- ") else None
        shown.append(f"{line:<48} # {source}" if source else line)
    return shown
