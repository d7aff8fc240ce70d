"""``domicile key``: API keys from a shell."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.flags import flag_of
from gateway.cli.terminal.printing import print_json, print_one, print_table
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
    needs_folder,
    opened_control,
    opened_inventory,
    plain_errors,
    print_next_step,
    print_secret,
)

if TYPE_CHECKING:
    from gateway.installation.installation import Installation
    from gateway.records.control import Scopes

key_app = typer.Typer(name="key", help="API keys of a project.", no_args_is_help=True)

ExpiresInDays = Annotated[int | None, typer.Option(min=1, max=36500, help="Days until it expires.")]


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
) -> None:
    """Create a key and print it: it is shown this once and kept nowhere.

    Example: domicile key create acme support --label 'web shop' --expires-in-days 90
    """
    scopes = _scopes(models=model, endpoints=endpoint, regions=region, networks=network)
    with opened_control(ctx, data) as control:
        record, key = control.create_key(tenant, project, label=label, scopes=scopes, expires_at=_in(expires_in_days))
    print_secret(record, key.token, f"key {record.id} of {tenant}/{project}", as_json)
    print_next_step(data, tenant, as_json)


@key_app.command("rotate")
def rotate_key(
    ctx: typer.Context,
    tenant: Tenant,
    key_id: str,
    grace_hours: Annotated[int, typer.Option(min=0, max=2160, help="Hours in which the old key still works.")] = 24,
    expires_in_days: ExpiresInDays = None,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a key's successor and print it; until the grace period is over, both work.

    Example: domicile key rotate acme 7GA3GXAA --grace-hours 48
    """
    if grace_hours == 0:
        confirm(f"End key {key_id} at once, while its successor is not yet in use anywhere?", yes)
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
    stage: Annotated[
        bool, typer.Option("--stage", help="Make the next pepper and do not use it yet, to carry it to other hosts.")
    ] = False,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Rotate the secret that keys the stored hashes of API keys. No key changes.

    Run it once to begin: each key is then rehashed at its next use. Run it with --finish to end. Either may be
    repeated. With gateways on several hosts, first run it with --stage, and carry the key set to each of them
    (`domicile init --export-keys`, `domicile init --keys`).

    Example: domicile key rekey --finish
    """
    needs_folder(data)
    from gateway.identity.pepper import PepperError, begin_rotation, stage_rotation
    from gateway.installation.installation import Installation

    if finish:
        confirm(
            "Delete the old pepper? What is hashed under it, in a backup too, can then not be checked any more.", yes
        )
    with plain_errors(), opened_inventory(data) as inventory:
        installation = Installation.open(data)
        try:
            if finish:
                remaining = inventory.hashed_before(installation.hasher().generation)
                generation = _end_rotation(installation, remaining)
                if as_json:
                    print_json({"generation": generation, "remaining": 0})
                else:
                    typer.echo(f"the pepper in force is generation {generation}")
                return
            if stage:
                generation = stage_rotation(installation.pepper, installation.secret_files)
                if as_json:
                    print_json({"staged": generation})
                else:
                    typer.echo(f"generation {generation} of the pepper is staged; carry the key set to every host")
                return
            used = inventory.newest_pepper()
            generation = begin_rotation(installation.pepper, installation.secret_files, used=used)
        except PepperError as error:
            fail(str(error))
        remaining = inventory.hashed_before(generation)
        if as_json:
            print_json({"generation": generation, "remaining": remaining})
        else:
            typer.echo(f"rotating to generation {generation} of the pepper; still under the old one: {remaining}")


def _end_rotation(installation: "Installation", remaining: int) -> int:
    from gateway.identity.keys import pepper_files
    from gateway.identity.pepper import end_rotation

    kept = pepper_files(installation.pepper)
    old = [str(file.relative_to(installation.data)) for number, file in kept.items() if number != max(kept)]
    with installation.inventory_of_files.removing(old):
        return end_rotation(installation.pepper, remaining, installation.secret_files)


@key_app.command("list")
def list_keys(tenant: Tenant, project: InProject = None, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's keys; of each only the last four characters are known.

    Example: domicile key list acme --project support
    """
    with opened_inventory(data) as inventory:
        records = inventory.keys(tenant, project)
    print_table(records, ("id", "project", "label", "last_four", "last_used_at", "expires_at", "revoked_at"), as_json)


@key_app.command("show")
def show_key(tenant: Tenant, key_id: str, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one key's record.

    Example: domicile key show acme 7GA3GXAA
    """
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
    question = f"Revoke key {key_id} of {tenant}? This cannot be undone."
    confirm(question, yes, data, lambda known: known.key(tenant, key_id))
    with opened_control(ctx, data) as control:
        record = control.revoke_key(tenant, key_id)
    print_one(record, as_json)


def _scopes(**bounds: list[str] | None) -> "Scopes":
    """A bound that was not named is none."""
    from pydantic import ValidationError

    from gateway.records.control import Scopes
    from policy.errors import invalid_value

    try:
        return Scopes.model_validate({name: bound for name, bound in bounds.items() if bound})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fail(f"{flag_of(str(first['loc'][0]))} {first['input']!r}: {invalid_value(first)}", USAGE)


def _in(days: int | None) -> datetime | None:
    return datetime.now(UTC) + timedelta(days=days) if days else None
