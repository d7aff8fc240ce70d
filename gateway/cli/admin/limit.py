"""``domicile limit``: what tenants, projects and keys may use at most."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    AsJson,
    Data,
    Tenant,
    fail,
    opened_control,
    opened_database,
)

if TYPE_CHECKING:
    from gateway.records.usage import LimitFigures

limit_app = typer.Typer(name="limit", help="What tenants, projects and keys may use at most.", no_args_is_help=True)

OfProject = Annotated[str | None, typer.Option("--project", help="Of this project, not of the tenant.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Of this key, by its id.")]
NONE = "none"


@limit_app.command("update")
def set_limits(
    ctx: typer.Context,
    tenant: Tenant,
    project: OfProject = None,
    key: OfKey = None,
    requests_per_minute: Annotated[str | None, typer.Option("--rpm", help="Requests a minute, or 'none'.")] = None,
    tokens_per_minute: Annotated[str | None, typer.Option("--tpm", help="Tokens a minute, or 'none'.")] = None,
    concurrent_requests: Annotated[
        str | None, typer.Option("--concurrent", help="Requests at one time, or 'none'.")
    ] = None,
    eur_per_day: Annotated[str | None, typer.Option(help="Euros a day (UTC), or 'none'.")] = None,
    eur_per_month: Annotated[str | None, typer.Option(help="Euros a calendar month (UTC), or 'none'.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Change limits; those that are not named stay. In force in every gateway within a second.

    A call needs room in all of its key's, its project's and its tenant's limits. 0 lets nothing through.

    Example: domicile limit update acme --project support --rpm 600 --eur-per-month 500
    """
    named = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent_requests": concurrent_requests,
        "eur_per_day": eur_per_day,
        "eur_per_month": eur_per_month,
    }
    wanted = {name: value for name, value in named.items() if value is not None}
    if not wanted:
        fail("name at least one limit, as --rpm 600")
    with opened_control(ctx, data) as control, opened_database(data) as (_, database):
        from gateway.store.reports.usage_inventory import limits_at

        known = limits_at(database, tenant, project=project, key=key)
        figures = _figures({name: getattr(known, name) for name in named} | wanted)
        record = control.set_limits(tenant, figures, project=project, key=key)
    print_one(record, as_json)


@limit_app.command("show")
def show_limits(
    tenant: Tenant, project: OfProject = None, key: OfKey = None, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Show the limits of a tenant, a project or a key.

    Example: domicile limit show acme --key 7GA3GXAA
    """
    from gateway.store.reports.usage_inventory import limits_at

    with opened_database(data) as (_, database):
        record = limits_at(database, tenant, project=project, key=key)
    print_one(record, as_json)


@limit_app.command("list")
def list_limits(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List every limit set in a tenant: its own, its projects', its keys'.

    Example: domicile limit list acme
    """
    from gateway.store.reports.usage_inventory import limits_in

    with opened_database(data) as (_, database):
        records = limits_in(database, tenant)
    columns = ("project", "key", *_names())
    print_table(records, columns, as_json)


def _names() -> tuple[str, ...]:
    from gateway.records.usage import LimitFigures

    return tuple(LimitFigures.model_fields)


def _figures(values: dict[str, Any]) -> "LimitFigures":
    from pydantic import ValidationError

    from gateway.records.usage import LimitFigures

    try:
        return LimitFigures.model_validate({name: _number(name, value) for name, value in values.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fail(f"{first['loc'][0]}: {first['input']}: {first['msg']}")


def _number(name: str, value: Any) -> Any:
    """What an option says, as the number it means; what is none is left for the model to refuse."""
    if not isinstance(value, str):
        return value
    if value == NONE:
        return None
    try:
        return float(value) if name.startswith("eur") else int(value)
    except ValueError:
        return value
