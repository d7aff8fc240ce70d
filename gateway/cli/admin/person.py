"""``domicile person``: people with roles, their access tokens, and the way in for the first operator."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    ACTOR,
    DEFAULT_DATA,
    OPERATOR_NAME,
    AsJson,
    Data,
    OwnTenant,
    Yes,
    confirm,
    opened_control,
    opened_inventory,
    owner_of,
    print_secret,
)

person_app = typer.Typer(name="person", help="People, their roles and access tokens.", no_args_is_help=True)

RoleNames = Annotated[list[str], typer.Option("--role", help="operator, tenant-admin, developer, dpo, auditor or "
                                                             "billing; may be repeated.")]  # fmt: skip
Person = Annotated[str, typer.Argument(metavar="PERSON", help="The person's id, as 'person list' shows it.")]


@person_app.command("bootstrap")
def bootstrap(ctx: typer.Context, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Print the token that makes the first operator through the admin API, once, within a day.

    Example: domicile person bootstrap
    """
    with opened_control(ctx, data) as control:
        record, token = control.create_bootstrap_token()
    print_secret(record, token.token, "bootstrap token, for POST /admin/v1/bootstrap", as_json, field="token")


@person_app.command("create")
def create_person(
    ctx: typer.Context,
    tenant: OwnTenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name for people, as 'Ada Lovelace'.")],
    role: RoleNames,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Add a person to a tenant, or to the installation's own staff.

    Example: domicile person create acme 'Ada Lovelace' --role dpo
    """
    with opened_control(ctx, data) as control:
        record = control.create_person(owner_of(tenant), name, role)  # type: ignore[arg-type]  # checked by create_person
    print_one(record, as_json)


@person_app.command("list")
def list_people(tenant: OwnTenant = OPERATOR_NAME, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's people, or the staff.

    Example: domicile person list acme
    """
    with opened_inventory(data) as inventory:
        records = inventory.people(owner_of(tenant))
    print_table(records, ("id", "display_name", "roles", "created_at", "revoked_at"), as_json)


@person_app.command("update")
def set_roles(
    ctx: typer.Context,
    tenant: OwnTenant,
    person: Person,
    role: RoleNames,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Replace all of a person's roles.

    Example: domicile person update acme 7GA3GXAA --role dpo --role auditor
    """
    with opened_control(ctx, data) as control:
        record = control.set_roles(owner_of(tenant), person, role)  # type: ignore[arg-type]  # checked by set_roles
    print_one(record, as_json)


@person_app.command("vouch")
def vouch_for_person(
    ctx: typer.Context,
    tenant: OwnTenant,
    person: Person,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Confirm that a person is a second one, who may approve policies before the waiting time is over.

    Another role than that of who made them says it, or the host's shell. It covers the roles and tokens of now.

    Example: domicile person vouch acme 7GA3GXAA
    """
    confirm(f"Do you know that {person} is another person than who made them?", yes)
    with opened_control(ctx, data) as control:
        record = control.vouch_for_person(owner_of(tenant), person, voucher=ACTOR)
    print_one(record, as_json)


@person_app.command("revoke")
def revoke_person(
    ctx: typer.Context,
    tenant: OwnTenant,
    person: Person,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Shut a person out: all their tokens stop working at once.

    Example: domicile person revoke acme 7GA3GXAA
    """
    confirm(f"Revoke person {person} with all their tokens? This cannot be undone.", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_person(owner_of(tenant), person)
    print_one(record, as_json)


@person_app.command("create-token")
def create_token(
    ctx: typer.Context,
    tenant: OwnTenant,
    person: Person,
    label: Annotated[str, typer.Option(help="What it is for, as 'laptop'.")] = "",
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until it expires.")] = 30,
    console: Annotated[
        bool, typer.Option("--console", help="For signing in to the web console: once, within 10 minutes.")
    ] = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create an access token for the admin API and print it: it is shown this once.

    Examples: domicile person create-token acme 7GA3GXAA --label laptop --days 30

    domicile person create-token acme 7GA3GXAA --console
    """
    if console:
        with opened_control(ctx, data) as control:
            record, token = control.create_sign_in(owner_of(tenant), person)
        what = f"sign-in token {record.id} of person {person}, for /console of the gateway"
        print_secret(record, token.token, what, as_json, field="token")
        return
    with opened_control(ctx, data) as control:
        record, token = control.create_token(
            owner_of(tenant), person, expires_at=datetime.now(UTC) + timedelta(days=days), label=label
        )
    print_secret(record, token.token, f"token {record.id} of person {person}", as_json, field="token")


@person_app.command("list-tokens")
def list_tokens(tenant: OwnTenant, person: Person, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a person's access tokens.

    Example: domicile person list-tokens acme 7GA3GXAA
    """
    with opened_inventory(data) as inventory:
        records = inventory.tokens(owner_of(tenant), person)
    print_table(records, ("id", "label", "last_four", "created_at", "expires_at", "revoked_at"), as_json)


@person_app.command("revoke-token")
def revoke_token(
    ctx: typer.Context,
    tenant: OwnTenant,
    person: Person,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")],
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Make an access token stop working, from the next call on.

    Example: domicile person revoke-token acme 7GA3GXAA K5QW2Z8B
    """
    confirm(f"Revoke token {token}? This cannot be undone.", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_token(owner_of(tenant), person, token)
    print_one(record, as_json)
