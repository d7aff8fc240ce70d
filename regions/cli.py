"""``domicile region``: the places of the catalogue, and who controls what runs there."""

import json
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer

if TYPE_CHECKING:
    from regions.catalogue.catalogue import Catalogue

DEFAULT_DATA = Path("domicile-data")
FILE = "catalogue.yaml"

app = typer.Typer(name="region", help="Places where backends run, and who controls them.", no_args_is_help=True)

File = Annotated[
    Path | None,
    typer.Option("--catalogue", help="A catalogue file (default: the data folder's, else Domicile's own)."),
]
Day = Annotated[datetime | None, typer.Option("--on", formats=["%Y-%m-%d"], help="As of this day (default: today).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Elsewhere(Protocol):
    """GET of an installation's admin API: the JSON at `path`. Ends the command where there is none."""

    def __call__(self, *path: str, **query: str | None) -> Any: ...


elsewhere: ContextVar[Callable[[Path | None], Elsewhere | None]] = ContextVar("elsewhere", default=lambda data: None)
"""The installation that a command with this data folder is for, where that is not on this host; a program that knows of
some sets it."""


@app.command("list")
def list_regions(catalogue: File = None, on: Day = None, as_json: AsJson = False) -> None:
    """List the regions with the four facts that residency is judged by.

    Example: domicile region list --on 2026-12-01
    """
    from regions.catalogue.region_facts import place_facts

    day = _day(on)
    if (ask := _asked(catalogue)) is not None:
        said = ask("regions", on=str(day))
        version, rows = said["catalogue"], said["regions"]
    else:
        known = _load(catalogue)
        version = known.version
        rows = [place_facts(known, region, day) for region in known.regions if region.valid_on(day)]
    if as_json:
        typer.echo(json.dumps({"catalogue": version, "regions": rows}, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption=f"catalogue {version}", caption_justify="left")
    for column in ("region", "computes in", "stores in", "operator", "in", "ultimate parent", "in"):
        table.add_column(column, overflow="fold")
    shown = ("region", "compute_country", "storage_country", "operator", "operator_hq", "ultimate_parent",
             "parent_country")  # fmt: skip
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in shown))
    Console(file=sys.stdout, markup=False).print(table)


@app.command("show")
def show_region(
    region: Annotated[str, typer.Argument(metavar="REGION", help="As 'eu-fr-par'.")],
    catalogue: File = None,
    on: Day = None,
    as_json: AsJson = False,
) -> None:
    """Show one region, with the source of each fact.

    Example: domicile region show eu-fr-par
    """
    from regions.catalogue.region_facts import place_facts
    from regions.errors import CatalogueError

    day = _day(on)
    if (ask := _asked(catalogue)) is not None:
        said = ask("regions", region, on=str(day))
        version, facts = said["catalogue"], said["facts"]
    else:
        known = _load(catalogue)
        try:
            version, facts = known.version, place_facts(known, known.region(region, day), day)
        except CatalogueError as error:
            _fail(str(error))
    if as_json:
        typer.echo(json.dumps({"catalogue": version, **facts}, indent=2, ensure_ascii=False))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {_cell(value)}")
    typer.echo(f"{'catalogue':{width}}  {version}")


@app.command("check")
def check_regions(
    region: Annotated[
        list[str] | None, typer.Argument(metavar="REGION", help="As 'eu-fr-par'; may be repeated (default: all).")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="A policy document (default: each of the presets).")
    ] = None,
    catalogue: File = None,
    on: Day = None,
    as_json: AsJson = False,
) -> None:
    """Judge regions by a policy: may an ordinary request be answered there, and if not, by which rule.

    Exits with 1 if no region asked about is allowed.

    Example: domicile region check us-east --policy acme.yaml
    """
    from policy.errors import PolicyError
    from regions.catalogue.region_verdict import evaluate_region, policies_from
    from regions.errors import CatalogueError

    _only_here("check", catalogue)
    known, day = _load(catalogue), _day(on)
    try:
        asked = [known.region(name, day) for name in region or sorted({r.id for r in known.regions if r.valid_on(day)})]
        policies = policies_from(policy, known)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}; name a policy document by --policy")
    except (CatalogueError, PolicyError, UnicodeDecodeError) as error:
        _fail(str(error))
    judged = [evaluate_region(one, known, place, day) for place in asked for one in policies]
    if as_json:
        verdicts = [verdict.as_json() for verdict in judged]
        typer.echo(json.dumps({"catalogue": known.version, "regions": verdicts}, indent=2, ensure_ascii=False))
    else:
        for verdict in judged:
            typer.echo(str(verdict))
    if not any(verdict.allowed for verdict in judged):
        raise typer.Exit(1)


MEMBERS = {
    "id": "REGION",
    "name": "--name",
    "compute_country": "--country",
    "storage_country": "--storage-country",
    "operator": "--operator",
    "entity": "--entity",
    "head_office": "--head-office",
    "ultimate_parent": "--parent",
    "parent_country": "--parent-country",
    "source": "--source",
}
"""Members of a region and of its operator, by what is typed for them."""


@app.command("create")
def create_region(
    region: Annotated[str, typer.Argument(metavar="REGION", help="A name for it, as 'eu-de-office'.")],
    country: Annotated[str, typer.Option(help="Where prompts are computed, as DE.")],
    operator: Annotated[str, typer.Option(help="Id of who runs it, as 'acme-it': one of the catalogue, or a new one.")],
    source: Annotated[str, typer.Option(help="Where the facts can be checked: a contract, a register's extract.")],
    name: Annotated[str | None, typer.Option(help="Name for people, as 'Server room, Bonn'.")] = None,
    storage_country: Annotated[str | None, typer.Option(help="Where it is stored (default: --country).")] = None,
    entity: Annotated[str | None, typer.Option(help="Legal entity of a new operator, as 'Acme IT GmbH'.")] = None,
    head_office: Annotated[str | None, typer.Option(help="Country of its head office (default: --country).")] = None,
    parent: Annotated[str | None, typer.Option(help="Who controls it in the end or unknown (default: itself).")] = None,
    parent_country: Annotated[str | None, typer.Option(help="Its country or unknown (default: head office's).")] = None,
    catalogue: Annotated[
        Path | None, typer.Option("--catalogue", help="The file to add it to (default: catalogue.yaml in --data).")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", envvar="DOMICILE_DATA", show_envvar=True, help="Data folder of the installation.")
    ] = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a region, a place where backends run, in the installation's own catalogue, and who controls it.

    With gateways on several hosts, copy the file to each. A running gateway takes it over within seconds.

    Example: domicile region create eu-office --country DE --operator acme-it --entity 'Acme GmbH' --source 'HRB 1 Bonn'
    """
    from audit.files.new_file import PUBLIC, replace_file
    from audit.files.reasons import describe_os_error
    from regions.catalogue.catalogue import Catalogue
    from regions.catalogue.own_places import with_place
    from regions.errors import CatalogueError

    _only_here("create", catalogue, data)
    day, file = _day(None), catalogue or data / FILE
    office = head_office or country
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else None
        owner = None if entity is None else {
            "id": operator, "entity": entity, "head_office": office, "ultimate_parent": parent or entity,
            "parent_country": parent_country or office, "valid_from": day, "source": source,
        }  # fmt: skip
        place = {
            "id": region, "name": name or region, "compute_country": country,
            "storage_country": storage_country or country, "operator": operator, "valid_from": day, "source": source,
        }  # fmt: skip
        named = {"storage_country": "--country"} if storage_country is None else {}
        changed = with_place(text, place, owner, day, MEMBERS | named)
        replace_file(file, changed.encode(), PUBLIC)
    except CatalogueError as error:
        _fail(str(error))
    except OSError as error:
        _fail(describe_os_error(error))
    version = Catalogue.parse(changed).version
    if as_json:
        typer.echo(json.dumps({"catalogue": version, "file": str(file), "region": region}, ensure_ascii=False))
    else:
        typer.echo(
            f"{file} has region {region}; its version is {version}. A gateway that runs takes it over within seconds."
        )


def _asked(catalogue: Path | None, data: Path | None = None) -> Elsewhere | None:
    """Whom to ask; None where this host's own catalogue is meant."""
    return None if catalogue is not None else elsewhere.get()(data)


def _only_here(verb: str, catalogue: Path | None, data: Path | None = None) -> None:
    if _asked(catalogue, data) is not None:
        _fail(
            f"`region {verb}` works on a catalogue's file, not over the admin API"
            "; run it on its host, or name a file by --catalogue"
        )


def _cell(value: str | None) -> str:
    return "unknown" if value is None else value


def _load(path: Path | None) -> "Catalogue":
    from regions.catalogue.catalogue import Catalogue
    from regions.errors import CatalogueError

    own = Path(os.environ.get("DOMICILE_DATA") or DEFAULT_DATA) / FILE
    try:
        return Catalogue.load(path or (own if own.exists() else None))
    except CatalogueError as error:
        _fail(str(error))


def _day(on: datetime | None) -> date:
    return (on or datetime.now(UTC)).date()


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(1)
