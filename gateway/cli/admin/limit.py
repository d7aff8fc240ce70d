"""``domicile limit``: limits of tenants, projects and keys."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from gateway.cli.terminal.flags import FLAGS, flag_of
from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    Tenant,
    fail,
    opened_control,
    opened_reports,
)
from gateway.limits.limit_kinds import KINDS, LimitFigures, LimitKind

limit_app = typer.Typer(name="limit", help="What tenants, projects and keys may use at most.", no_args_is_help=True)

OfProject = Annotated[str | None, typer.Option("--project", help="Of this project, not of the tenant.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Of this key, by its id.")]
NONE = "none"


def _with_kinds(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option for each kind of limit in place of its `amounts`."""
    declared = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            kind.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(FLAGS[kind.field], help=f"{kind.unit.capitalize()}, or 'none'."),
            ],
        )
        for kind in KINDS
    ]
    own = [each for each in declared.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]

    @wraps(command)
    def with_kinds(*args: Any, **options: Any) -> None:
        command(*args, **options)

    with_kinds.__signature__ = declared.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    with_kinds.__annotations__ = {each.name: each.annotation for each in [*own, *options]}
    return with_kinds


@limit_app.command("update")
@_with_kinds
def set_limits(
    ctx: typer.Context,
    tenant: Tenant,
    project: OfProject = None,
    key: OfKey = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
    **amounts: str | None,
) -> None:
    """Change limits; those that are not named stay. In force in every gateway within a second.

    A call needs room in all of its key's, its project's and its tenant's limits. Days and months are in UTC. 0 lets
    nothing through.

    Example: domicile limit update acme --project support --rpm 600 --eur-per-month 500
    """
    wanted = {name: value for name, value in amounts.items() if value is not None}
    if not wanted:
        fail("no limit is named; name at least one, as --rpm 600", USAGE)
    with opened_control(ctx, data) as control, opened_reports(data) as reports:
        known = reports.limits_at(tenant, project=project, key=key)
        figures = _figures({kind.field: getattr(known, kind.field) for kind in KINDS} | wanted)
        record = control.set_limits(tenant, figures, project=project, key=key)
    print_one(record, as_json)


@limit_app.command("show")
def show_limits(
    tenant: Tenant, project: OfProject = None, key: OfKey = None, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Show the limits of a tenant, a project or a key.

    Example: domicile limit show acme --key 7GA3GXAA
    """
    with opened_reports(data) as reports:
        record = reports.limits_at(tenant, project=project, key=key)
    print_one(record, as_json)


@limit_app.command("list")
def list_limits(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List every limit set in a tenant: its own, its projects', its keys'.

    Example: domicile limit list acme
    """
    with opened_reports(data) as reports:
        records = reports.limits_in(tenant)
    print_table(records, ("project", "key", *(kind.field for kind in KINDS)), as_json)


def _figures(values: dict[str, Any]) -> LimitFigures:
    from pydantic import ValidationError

    from policy.errors import invalid_value

    try:
        return LimitFigures.model_validate({kind.field: _number(kind, values[kind.field]) for kind in KINDS})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fail(f"{flag_of(str(first['loc'][0]))} {first['input']}: {invalid_value(first)}", USAGE)


def _number(kind: LimitKind, value: Any) -> Any:
    """The number that an option means; other text is left for the model to refuse."""
    if not isinstance(value, str):
        return value
    if value == NONE:
        return None
    try:
        return float(value) if kind.measure == "money" else int(value)
    except ValueError:
        return value
