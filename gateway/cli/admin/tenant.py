"""``domicile tenant | project``: tenants and their projects from a shell."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    Project,
    Tenant,
    Yes,
    confirm,
    fail,
    opened_control,
    opened_inventory,
    plain_errors,
    policy_from,
    print_next_step,
)

if TYPE_CHECKING:
    from gateway.store.control.control import Control

tenant_app = typer.Typer(name="tenant", help="Customer organisations, the unit of isolation.", no_args_is_help=True)
project_app = typer.Typer(
    name="project", help="A tenant's applications, each bound to a processing activity.", no_args_is_help=True
)


@tenant_app.command("create")
def create_tenant(
    ctx: typer.Context,
    tenant: Tenant,
    name: Annotated[str | None, typer.Option(help="Name for people, as 'Acme GmbH'.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Put this policy in force: eu-strict, gdpr-standard, health or finance.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="Name of the data folder's cell, to be sure of it.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. The data folder is made by `domicile init`. Without a policy, its calls are refused.

    Example: domicile tenant create acme --name 'Acme GmbH' --preset eu-strict
    """
    from regions.identity.identity import check_name

    with plain_errors():
        check_name(tenant, "tenant")
        if cell is not None:
            check_name(cell, "cell")
    policy = None if preset is None else policy_from(preset, tenant)
    with opened_control(ctx, data, cell=cell) as control:
        record = control.create_tenant(tenant, display_name=name)
        if policy is not None:
            _first_policy(control, tenant, policy)
    print_one(record, as_json)
    print_next_step(data, tenant, as_json)


def _first_policy(control: "Control", tenant: str, document: str) -> None:
    """Ends the command where the operator's own policy allows less than `document` says."""
    from gateway.database.errors import Invalid

    try:
        control.activate_policy(tenant, document)
    except Invalid as error:
        fail(
            f"{tenant} was created, without a policy: {error}; write one with `domicile policy new {tenant}` and put it"
            f" in force with `domicile policy activate {tenant} FILE`"
        )


@tenant_app.command("list")
def list_tenants(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List all tenants.

    Example: domicile tenant list --json
    """
    with opened_inventory(data) as inventory:
        records = inventory.tenants()
    print_table(records, ("id", "display_name", "created_at", "revoked_at"), as_json)


@tenant_app.command("show")
def show_tenant(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one tenant.

    Example: domicile tenant show acme
    """
    with opened_inventory(data) as inventory:
        record = inventory.tenant(tenant)
    print_one(record, as_json)


@tenant_app.command("update")
def update_tenant(
    tenant: Tenant,
    key: Annotated[
        str, typer.Option(help="The tenant's own key, as secrets.external names it; 'installation' for the master key.")
    ],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Put what is kept of a tenant under a key that the tenant holds itself, in its own Vault or HSM.

    The tenant's key is replaced too, so that no backup from before can be opened by the installation alone. Once the
    tenant takes its key away, nothing of its content can be read any more after 20 s, by any gateway. May be
    interrupted, and run again.

    Example: domicile tenant update acme --key acme-hsm
    """
    from gateway.cli.terminal.printing import print_json, progress
    from gateway.cli.terminal.shell import ACTOR, needs_folder
    from gateway.installation.admin_record import recording
    from gateway.installation.installation import Installation
    from gateway.installation.rotation import give

    needs_folder(data)
    with plain_errors():
        installation = Installation.open(data)
        name = None if key == "installation" else key
        with recording(installation) as record, progress("keys", None, hidden=as_json) as advance:
            generation, count = give(installation, tenant, name, record, ACTOR, advance)
    if as_json:
        print_json({"tenant": tenant, "key": key, "generation": generation, "rewrapped": count})
    else:
        typer.echo(f"{tenant} has key number {generation}, under {key}; {count} data keys are wrapped under it")


@tenant_app.command("revoke")
def revoke_tenant(
    ctx: typer.Context, tenant: Tenant, yes: Yes = False, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Revoke a tenant permanently: its keys stop working within a second, its backends get no more requests.

    Example: domicile tenant revoke acme
    """
    confirm(
        f"Revoke tenant {tenant} with all its keys? This cannot be undone.",
        yes,
        data,
        lambda known: known.tenant(tenant),
    )
    with opened_control(ctx, data) as control:
        record = control.revoke_tenant(tenant)
    print_one(record, as_json)


@project_app.command("create")
def create_project(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    purpose: Annotated[str, typer.Option(help="What the data is processed for (GDPR 5(1)(b)).")],
    legal_basis: Annotated[
        str,
        typer.Option(
            help="GDPR 6(1): consent, contract, legal_obligation, vital_interests, public_task or legitimate_interests."
        ),
    ],
    data_class: Annotated[list[str] | None, typer.Option(help="A class of data in prompts; may be repeated.")] = None,
    risk_class: Annotated[str, typer.Option(help="AI Act: minimal, limited or high.")] = "minimal",
    ai_system_id: Annotated[str | None, typer.Option(help="The AI system's id in your own register.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
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
    print_next_step(data, tenant, as_json)


@project_app.command("list")
def list_projects(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's projects.

    Example: domicile project list acme
    """
    with opened_inventory(data) as inventory:
        records = inventory.projects(tenant)
    print_table(records, ("id", "purpose", "legal_basis", "data_classes", "risk_class", "revoked_at"), as_json)


@project_app.command("show")
def show_project(tenant: Tenant, project: Project, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one project.

    Example: domicile project show acme support
    """
    with opened_inventory(data) as inventory:
        record = inventory.project(tenant, project)
    print_one(record, as_json)


@project_app.command("update")
def update_project(
    ctx: typer.Context,
    tenant: Tenant,
    project: Project,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="Of web pages whose scripts may call for it, as https://app.example.org."),
    ] = None,
    no_origins: Annotated[bool, typer.Option("--no-origins", help="No web page may.")] = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Replace the origins of web pages whose scripts may call for a project (CORS). Without any, no page may.

    Example: domicile project update acme support --origin https://app.example.org
    """
    if bool(origin) == no_origins:
        fail("no origin is named, or both options are; name one by --origin, or use --no-origins", USAGE)
    with opened_control(ctx, data) as control:
        record = control.set_origins(tenant, project, origin or ())
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
    """Revoke a project permanently: its keys stop working within a second.

    Example: domicile project revoke acme support --yes
    """
    question = f"Revoke project {project} of {tenant} with all its keys? This cannot be undone."
    confirm(question, yes, data, lambda known: known.project(tenant, project))
    with opened_control(ctx, data) as control:
        record = control.revoke_project(tenant, project)
    print_one(record, as_json)
