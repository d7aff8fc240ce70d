"""``domicile adapter``: LoRA adapters of a project."""

from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    AsJson,
    Data,
    InProject,
    Project,
    Tenant,
    Yes,
    confirm,
    opened_control,
    opened_reports,
    plain_errors,
)

adapter_app = typer.Typer(name="adapter", help="LoRA adapters of a project, by digest.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The adapter's, which calls name behind its model.")]
Model = Annotated[str, typer.Option("--model", help="The model that it adapts.")]
Path = Annotated[str, typer.Option("--path", help="Its folder, below the one that backends keep adapters in.")]
Sha256 = Annotated[
    str,
    typer.Option(
        "--sha256", help="`sha256sum adapter_config.json adapter_model.safetensors | sha256sum` in its folder."
    ),
]


@adapter_app.command("create")
def create_adapter(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    name: Name,
    model: Model,
    path: Path,
    sha256: Sha256,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Register an adapter: from then on calls of the project may name it, as MODEL:NAME; the first one loads it.

    Example: domicile adapter create acme support legal --model large --path legal/v2 --sha256 9f86d081884c7d659a2f...
    """
    from gateway.store.control.adapters import adapter_setting

    with plain_errors():
        setting = adapter_setting(model=model, path=path, sha256=sha256)
    with opened_control(ctx, data) as control:
        record = control.create_adapter(tenant, project, name, setting)
    print_one(record, as_json)


@adapter_app.command("list")
def list_adapters(
    tenant: Tenant, project: InProject = None, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """List the adapters of a tenant's projects.

    Example: domicile adapter list acme --project support
    """
    with opened_reports(data) as reports:
        records = reports.adapters(tenant, project)
    print_table(records, ("project", "name", "model", "path", "sha256", "created_at"), as_json)


@adapter_app.command("show")
def show_adapter(
    tenant: Tenant, project: Project, name: Name, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Show an adapter.

    Example: domicile adapter show acme support legal
    """
    with opened_reports(data) as reports:
        record = reports.adapter(tenant, project, name)
    print_one(record, as_json)


@adapter_app.command("delete")
def delete_adapter(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    name: Name,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Delete an adapter: calls that name it are refused. Its files stay where they are.

    Example: domicile adapter delete acme support legal --yes
    """
    confirm(f"Delete the adapter {name} of {tenant}/{project}?", yes)
    with opened_control(ctx, data) as control:
        record = control.delete_adapter(tenant, project, name)
    print_one(record, as_json)
