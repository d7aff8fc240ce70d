"""``domicile model``: names that a project gives to models."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    InProject,
    Project,
    Tenant,
    Yes,
    confirm,
    fail,
    given_day,
    opened_control,
    opened_reports,
    plain_errors,
)

if TYPE_CHECKING:
    from gateway.records.model_names import ModelNaming

model_app = typer.Typer(
    name="model", help="Names of models in a project: aliases, fallbacks, defaults, notices.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that clients send, as 'assistant'.")]
Target = Annotated[
    list[str], typer.Option("--target", help="A model that answers; repeated, those to fall back to, in order.")
]
Defaults = Annotated[
    list[str] | None, typer.Option("--default", help="A parameter that callers may leave out, as temperature=0.2.")
]
OtherVectors = Annotated[
    bool, typer.Option("--other-vectors", help="Embeddings may come from another model, whose vectors are different.")
]
Deprecated = Annotated[
    datetime | None,
    typer.Option("--deprecated", parser=given_day, metavar="DAY", help="Since when the name is deprecated."),
]
Sunset = Annotated[
    datetime | None, typer.Option("--sunset", parser=given_day, metavar="DAY", help="When it is to end.")
]
Replacement = Annotated[str | None, typer.Option("--replacement", help="The name to use instead.")]


@model_app.command("create")
def create_model(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    name: Name,
    target: Target,
    default: Defaults = None,
    other_vectors: OtherVectors = False,
    deprecated: Deprecated = None,
    sunset: Sunset = None,
    replacement: Replacement = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Give a name to models. In force in every gateway within a second; the policy judges each model when it is called.

    Example: domicile model create acme support assistant --target large --target small --default temperature=0.2
    """
    naming = _naming(target, default, other_vectors, deprecated, sunset, replacement)
    with opened_control(ctx, data) as control:
        record = control.create_model_name(tenant, project, name, naming)
    print_one(record, as_json)


@model_app.command("update")
def update_model(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    name: Name,
    target: Target,
    default: Defaults = None,
    other_vectors: OtherVectors = False,
    deprecated: Deprecated = None,
    sunset: Sunset = None,
    replacement: Replacement = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Replace the whole definition of a model name.

    Example: domicile model update acme support assistant --target small --deprecated 2027-01-01 --sunset 2027-06-30
    """
    naming = _naming(target, default, other_vectors, deprecated, sunset, replacement)
    with opened_control(ctx, data) as control:
        record = control.update_model_name(tenant, project, name, naming)
    print_one(record, as_json)


@model_app.command("list")
def list_models(tenant: Tenant, project: InProject = None, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List the names that a tenant's projects give to models.

    Example: domicile model list acme --project support
    """
    with opened_reports(data) as reports:
        records = reports.model_names(tenant, project)
    print_table(
        records, ("project", "name", "targets", "defaults", "deprecated_at", "sunset_at", "replacement"), as_json
    )


@model_app.command("show")
def show_model(
    tenant: Tenant, project: Project, name: Name, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Show the definition of a model name.

    Example: domicile model show acme support assistant
    """
    with opened_reports(data) as reports:
        record = reports.model_name(tenant, project, name)
    print_one(record, as_json)


@model_app.command("delete")
def delete_model(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    name: Name,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Delete a name: calls by it are refused, unless a model is called so.

    Example: domicile model delete acme support assistant --yes
    """
    confirm(f"Delete the name {name} of {tenant}/{project}?", yes)
    with opened_control(ctx, data) as control:
        record = control.delete_model_name(tenant, project, name)
    print_one(record, as_json)


def _naming(
    target: list[str],
    default: list[str] | None,
    other_vectors: bool,
    deprecated: datetime | None,
    sunset: datetime | None,
    replacement: str | None,
) -> "ModelNaming":
    from gateway.store.control.models import named

    with plain_errors():
        return named(
            targets=target,
            defaults=dict(map(_default, default or ())),
            other_vectors=other_vectors,
            deprecated_at=_in_utc(deprecated),
            sunset_at=_in_utc(sunset),
            replacement=replacement,
        )


def _default(written: str) -> tuple[str, Any]:
    name, equals, value = written.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
    if not equals:
        fail(f"--default {written!r} is no parameter with its number; write it as temperature=0.2", USAGE)
    return name.strip(), int(number) if number.is_integer() else number


def _in_utc(day: datetime | None) -> datetime | None:
    return None if day is None else day.replace(tzinfo=UTC)
