"""``domicile cell``: other cells, and which tenants are served there."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_json, print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    AsJson,
    Data,
    Tenant,
    Yes,
    confirm,
    fail,
    opened_control,
    opened_database,
    read_text,
)

cell_app = typer.Typer(name="cell", help="Other cells, and which tenants are served there.", no_args_is_help=True)

Peer = Annotated[str, typer.Argument(metavar="CELL", help="Name of another cell, as 'eu-de'.")]
KeyFile = Annotated[Path, typer.Option("--verifier-key", help="Its audit/signer.vkey, got from its operator.")]


@cell_app.command("create")
def register(ctx: typer.Context, peer: Peer, key: KeyFile, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Register a cell that may request bundles, by the key that signs its record.

    Example: domicile cell create eu-de --verifier-key eu-de.vkey
    """
    with opened_control(ctx, data) as control:
        record = control.register_peer(peer, read_text(key))
    print_one(record, as_json)


@cell_app.command("allow")
def allow(ctx: typer.Context, tenant: Tenant, peer: Peer, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Serve a tenant in another cell too: its configuration goes there, its records and content stay where they arise.

    Example: domicile cell allow acme eu-de
    """
    with opened_control(ctx, data) as control:
        record = control.allow_cell(tenant, peer)
    print_one(record, as_json)


@cell_app.command("forbid")
def forbid(
    ctx: typer.Context,
    tenant: Tenant,
    peer: Peer,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Serve a tenant there no longer: its keys stop working there with the next bundle.

    Example: domicile cell forbid acme eu-de --yes
    """
    confirm(f"Serve {tenant} in {peer} no longer?", yes)
    with opened_control(ctx, data) as control:
        record = control.forbid_cell(tenant, peer)
    print_one(record, as_json)


@cell_app.command("list")
def list_cells(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List the cells that are known, who is served there, and what was taken over from where.

    Example: domicile cell list
    """
    from gateway.store.cells import allowances, applied_bundles, peers

    with opened_database(data) as (installation, database):
        known, allowed, over = peers(database), allowances(database), applied_bundles(database)
    if as_json:
        print_json(
            {
                "cell": installation.cell,
                "peers": [each.model_dump(mode="json") for each in known],
                "allowed": [each.model_dump(mode="json") for each in allowed],
                "taken": [each.model_dump(mode="json") for each in over],
            }
        )
        return
    typer.echo(f"This is cell {installation.cell}.")
    print_table(known, ("id", "created_at", "revoked_at"), as_json)
    print_table(allowed, ("tenant", "peer", "created_at", "revoked_at"), as_json)
    print_table(over, ("home", "epoch", "applied_at", "tenants"), as_json)


@cell_app.command("bundle")
def bundle(
    peer: Peer,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Write the bundle for a cell that cannot pull to a signed file.

    Example: domicile cell bundle eu-de --output eu-de.bundle
    """
    from audit.files.new_file import replace_file
    from gateway.records.bundle import sign_bundle
    from gateway.records.bundle_request import key_name
    from gateway.store.cells import bundle_for
    from gateway.store.cells import peer as known

    with opened_database(data) as (installation, database):
        known(database, peer)
        made = bundle_for(database, installation.cell, peer)
        replace_file(output, sign_bundle(made, key_name(installation.cell), installation.signer()))
    said = {"home": made.home, "peer": peer, "epoch": made.epoch, "sha256": made.sha256, "tenants": len(made.tenants)}
    if as_json:
        print_json(said)
    else:
        typer.echo(f"{output}: {len(made.tenants)} tenants of {made.home} for {peer}, as of epoch {made.epoch}.")


@cell_app.command("apply")
def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle of `domicile cell bundle`.")],
    home: Annotated[str, typer.Option("--from", help="The cell that it is of.")],
    key: KeyFile,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Apply a bundle from another cell, as a whole or not at all.

    Example: domicile cell apply eu-de.bundle --from eu-fr --verifier-key eu-fr.vkey
    """
    from audit.errors import NoteError
    from audit.files.untrusted_file import read_untrusted
    from audit.tree.note import VerifierKey
    from gateway.installation.installation import Installation
    from gateway.records.bundle import MAX_BYTES, BundleError, open_bundle

    with opened_control(ctx, data) as control:
        try:
            opened = open_bundle(
                read_untrusted(file, MAX_BYTES, follow_links=True),
                VerifierKey.parse(read_text(key)),
                home=home,
                peer=Installation.open(data).cell,
            )
        except (BundleError, NoteError) as error:
            fail(str(error))
        changed = control.apply_bundle(opened)
    if as_json:
        print_json({"home": home, "epoch": opened.epoch, "changed": changed})
    else:
        typer.echo(f"{len(changed)} tenants changed: {', '.join(changed)}" if changed else "Nothing changed.")
