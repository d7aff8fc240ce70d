"""``domicile tenant | project | key | policy``: the control plane from a shell.

`gateway/cli.py` composes these apps and, by ``obj=``, hands in a `RecordAdmin`: the changes of a command are recorded
through it before they are committed. Without one they are not recorded.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gateway.installation import Installation
    from gateway.store.control import Control, OnEvent
    from gateway.store.inventory import Inventory
    from gateway.store.records import Record, Scopes

    RecordAdmin = Callable[[Installation], AbstractContextManager[OnEvent]]

ACTOR = "cli"
DEFAULT_DATA = Path("domicile-data")

tenant_app = typer.Typer(name="tenant", help="Customer organisations, the unit of isolation.", no_args_is_help=True)
project_app = typer.Typer(
    name="project", help="A tenant's applications, each bound to a processing activity.", no_args_is_help=True
)
key_app = typer.Typer(name="key", help="API keys of a project.", no_args_is_help=True)
policy_app = typer.Typer(name="policy", help="Activate policies and see what is in force.", no_args_is_help=True)

Data = Annotated[
    Path, typer.Option("--data", envvar="DOMICILE_DATA", show_envvar=True, help="Data folder of the installation.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant, as 'acme'.")]
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project, as 'support'.")]
ExpiresInDays = Annotated[int | None, typer.Option(min=1, max=36500, help="Days until it expires.")]
InProject = Annotated[str | None, typer.Option("--project", help="Of this project only.")]


@tenant_app.command("create")
def create_tenant(
    ctx: typer.Context,
    tenant: Tenant,
    name: Annotated[str | None, typer.Option(help="Name for people, as 'Acme GmbH'.")] = None,
    cell: Annotated[str | None, typer.Option(help="Cell of a new data folder [default: local].")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a tenant, and the data folder if it is not there.

    Example: domicile tenant create acme --name 'Acme GmbH'
    """
    with opened_control(ctx, data, create=True, cell=cell) as control:
        record = control.create_tenant(tenant, display_name=name)
    print_one(record, as_json)


@tenant_app.command("list")
def list_tenants(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List all tenants."""
    with opened_inventory(data) as inventory:
        records = inventory.tenants()
    print_table(records, ("id", "display_name", "created_at", "revoked_at"), as_json)


@tenant_app.command("show")
def show_tenant(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one tenant."""
    with opened_inventory(data) as inventory:
        record = inventory.tenant(tenant)
    print_one(record, as_json)


@tenant_app.command("revoke")
def revoke_tenant(
    ctx: typer.Context, tenant: Tenant, yes: Yes = False, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Shut a tenant out for good: its keys stop working within a second, its backends get no more requests."""
    confirm(f"Revoke tenant {tenant} with all its keys? This cannot be undone.", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_tenant(tenant)
    print_one(record, as_json)


@project_app.command("create")
def create_project(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    purpose: Annotated[str, typer.Option(help="What the data is processed for (GDPR 5(1)(b)).")],
    legal_basis: Annotated[str, typer.Option(help="GDPR 6(1): consent, contract, legal_obligation, vital_interests, "
                                                  "public_task or legitimate_interests.")],
    data_class: Annotated[list[str] | None, typer.Option(help="A class of data in prompts; may be repeated.")] = None,
    risk_class: Annotated[str, typer.Option(help="AI Act: minimal, limited or high.")] = "minimal",
    ai_system_id: Annotated[str | None, typer.Option(help="The AI system's id in your own register.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Create a project, bound to the one processing activity that its keys may be used for.

    Example: domicile project create acme support --purpose 'customer support' --legal-basis contract
    """
    with opened_control(ctx, data) as control:
        record = control.create_project(
            tenant,
            project,
            purpose=purpose,
            legal_basis=legal_basis,  # type: ignore[arg-type]  # checked by create_project
            data_classes=data_class or (),
            risk_class=risk_class,  # type: ignore[arg-type]
            ai_system_id=ai_system_id,
        )
    print_one(record, as_json)


@project_app.command("list")
def list_projects(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's projects."""
    with opened_inventory(data) as inventory:
        records = inventory.projects(tenant)
    print_table(records, ("id", "purpose", "legal_basis", "data_classes", "risk_class", "revoked_at"), as_json)


@project_app.command("show")
def show_project(tenant: Tenant, project: Project, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one project."""
    with opened_inventory(data) as inventory:
        record = inventory.project(tenant, project)
    print_one(record, as_json)


@project_app.command("revoke")
def revoke_project(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Shut a project out for good: its keys stop working within a second."""
    confirm(f"Revoke project {project} of {tenant} with all its keys? This cannot be undone.", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_project(tenant, project)
    print_one(record, as_json)


@key_app.command("create")
def create_key(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    label: Annotated[str, typer.Option(help="What it is for, as 'web shop'.")] = "",
    model: Annotated[list[str] | None, typer.Option(help="Only for this model; may be repeated.")] = None,
    endpoint: Annotated[list[str] | None, typer.Option(help="Only 'chat/completions', say; may be repeated.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Processed only in this region; may be repeated.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Only from here, as 10.0.0.0/8; may be repeated.")] = None,
    expires_in_days: ExpiresInDays = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Create a key and print it: it is shown this once and kept nowhere.

    Example: domicile key create acme support --label 'web shop' --expires-in-days 90
    """
    scopes = _scopes(models=model, endpoints=endpoint, regions=region, networks=network)
    with opened_control(ctx, data) as control:
        record, key = control.create_key(tenant, project, label=label, scopes=scopes, expires_at=_in(expires_in_days))
    print_secret(record, key.token, f"key {record.id} of {tenant}/{project}", as_json)


@key_app.command("rotate")
def rotate_key(
    ctx: typer.Context,
    tenant: Tenant,
    key_id: str,
    grace_hours: Annotated[int, typer.Option(min=0, max=2160, help="Hours in which the old key still works.")] = 24,
    expires_in_days: ExpiresInDays = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a key's successor and print it; until the grace period is over, both work.

    Example: domicile key rotate acme 7GA3GXAA --grace-hours 48
    """
    with opened_control(ctx, data) as control:
        record, key = control.rotate_key(
            tenant, key_id, grace=timedelta(hours=grace_hours), expires_at=_in(expires_in_days)
        )
    print_secret(record, key.token, f"key {record.id}, successor of {key_id}", as_json)


@key_app.command("rekey")
def rekey(
    finish: Annotated[
        bool, typer.Option("--finish", help="Delete the old pepper, if no key needs it any more.")
    ] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Rotate the secret that keys the stored hashes of API keys. No key changes.

    Run it once to begin: keys are then hashed anew as they are used. Run it with --finish to end. Either may be
    repeated. With gateways on several machines, copy the folder `secrets` to each after the first step.
    """
    from gateway.identity.pepper import PepperError, begin_rotation, end_rotation
    from gateway.installation import Installation

    with _plain_errors(), opened_inventory(data) as inventory:
        installation = Installation.open(data)
        try:
            if finish:
                remaining = inventory.hashed_before(installation.hasher().generation)
                typer.echo(f"the pepper in force is generation {end_rotation(installation.pepper, remaining)}")
                return
            generation = begin_rotation(installation.pepper)
        except PepperError as error:
            _fail(str(error))
        remaining = inventory.hashed_before(generation)
        typer.echo(f"rotating to generation {generation} of the pepper; still under the old one: {remaining}")


@key_app.command("list")
def list_keys(tenant: Tenant, project: InProject = None, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's keys; of each only the last four characters are known."""
    with opened_inventory(data) as inventory:
        records = inventory.keys(tenant, project)
    print_table(records, ("id", "project", "label", "last_four", "last_used_at", "expires_at", "revoked_at"), as_json)


@key_app.command("show")
def show_key(tenant: Tenant, key_id: str, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one key's record."""
    with opened_inventory(data) as inventory:
        record = inventory.key(tenant, key_id)
    print_one(record, as_json)


@key_app.command("revoke")
def revoke_key(
    ctx: typer.Context,
    tenant: Tenant,
    key_id: str,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Make a key stop working, in every gateway within a second.

    Example: domicile key revoke acme 7GA3GXAA
    """
    confirm(f"Revoke key {key_id} of {tenant}? This cannot be undone.", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_key(tenant, key_id)
    print_one(record, as_json)


@policy_app.command("activate")
def activate_policy(
    ctx: typer.Context,
    tenant: Tenant,
    file: Annotated[Path, typer.Argument(help="The policy document, YAML.")],
    project: Annotated[str | None, typer.Option(help="Make it this project's, tightening the tenant's.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Put a policy in force. It must be sound and pass its own tests; otherwise the one before stays.

    Example: domicile policy activate acme acme.yaml
    """
    try:
        document = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{file} cannot be read: {error}")
    with opened_control(ctx, data) as control:
        record = control.activate_policy(tenant, document, project=project)
    if as_json:
        _print_json(record.model_dump(mode="json"))
    else:
        scope = f"{tenant}/{project}" if project else tenant
        typer.echo(f"version {record.number} is in force for {scope} (sha256 {record.sha256})")


@policy_app.command("list")
def list_policies(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List every version ever in force for a tenant and its projects."""
    with opened_inventory(data) as inventory:
        records = inventory.policies(tenant)
    columns = ("project", "number", "active", "created_at", "activated_by", "sha256")
    print_table(records, columns, as_json)


@policy_app.command("show")
def show_policy(
    tenant: Tenant,
    project: InProject = None,
    number: Annotated[int | None, typer.Option(min=1, help="This version [default: the one in force].")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Print a policy document as it was activated."""
    with opened_inventory(data) as inventory:
        versions = [record for record in inventory.policies(tenant) if record.project == project]
    for record in versions:
        if record.number == number if number else record.active:
            if as_json:
                _print_json(record.model_dump(mode="json"))
            else:
                typer.echo(record.document, nl=not record.document.endswith("\n"))
            return
    wanted = f"version {number}" if number else "policy in force"
    _fail(f"there is no {wanted} for {tenant}/{project}" if project else f"there is no {wanted} for {tenant}")


@contextmanager
def opened_control(
    ctx: typer.Context, data: Path, *, create: bool = False, cell: str | None = None
) -> "Iterator[Control]":
    from gateway.installation import Installation

    with _plain_errors():
        installation = Installation.create(data, cell) if create else Installation.open(data)
        record: RecordAdmin = ctx.obj or (lambda installation: nullcontext(lambda event: None))
        database = installation.database()
        try:
            with record(installation) as on_event:
                yield installation.control(database, actor=ACTOR, on_event=on_event)
        finally:
            database.close()


@contextmanager
def opened_inventory(data: Path) -> "Iterator[Inventory]":
    from gateway.installation import Installation

    with _plain_errors():
        installation = Installation.open(data)
        database = installation.database()
        try:
            yield installation.inventory(database)
        finally:
            database.close()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What an operator did wrong or can mend is a sentence, not a traceback."""
    from gateway.installation import InstallationError
    from gateway.store.errors import StoreError
    from regions.errors import RegionsError

    try:
        yield
    except (InstallationError, StoreError, RegionsError, OSError) as error:
        _fail(str(error))


def _scopes(**bounds: list[str] | None) -> "Scopes":
    """A bound that was not named is none."""
    from pydantic import ValidationError

    from gateway.store.records import Scopes

    try:
        return Scopes.model_validate({name: bound for name, bound in bounds.items() if bound})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        _fail(f"{first['loc'][0]}: {first['input']!r}: {first['msg']}")


def _in(days: int | None) -> datetime | None:
    return datetime.now(UTC) + timedelta(days=days) if days else None


def print_secret(record: "Record", secret: str, what: str, as_json: bool, *, field: str = "key") -> None:
    if as_json:
        _print_json({**record.model_dump(mode="json"), field: secret})
        return
    typer.echo(f"{what}; it is shown this once:", err=True)
    typer.echo(secret)


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(1)


def confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_one(record: "Record", as_json: bool) -> None:
    shown = record.model_dump(mode="json")
    if as_json:
        _print_json(shown)
        return
    width = max(map(len, shown))
    for name, value in shown.items():
        typer.echo(f"{name:{width}}  {_cell(value)}")


def print_table(records: "Sequence[Record]", columns: Sequence[str], as_json: bool) -> None:
    rows = [record.model_dump(mode="json") for record in records]
    if as_json:
        _print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_short(column, row[column]) for column in columns))
    Console(file=sys.stdout, markup=False).print(table)


def _short(column: str, value: Any) -> str:
    """What a table has room for; ``show`` and ``--json`` give the whole."""
    if value is not None and column.endswith("_at"):
        return str(value)[:16].replace("T", " ")
    if column == "sha256":
        return str(value)[:12]
    return _cell(value)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "-"
        case dict():
            return ", ".join(f"{name}={_cell(inner)}" for name, inner in value.items() if inner is not None) or "-"
        case _:
            return str(value)
