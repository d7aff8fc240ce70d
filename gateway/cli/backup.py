"""``domicile init`` and ``domicile backup``: how a cell begins, and how it comes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_json, print_next, progress
from gateway.cli.terminal.shell import DEFAULT_DATA, AsJson, Data, fail, plain_errors, read_text, with_folder

if TYPE_CHECKING:
    from audit.tree.note import VerifierKey
    from gateway.installation.installation import Installation

backup_app = typer.Typer(name="backup", help="Create and restore backups of a cell.", no_args_is_help=True)

Backup = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of one backup.")]
Key = Annotated[
    str | None, typer.Option("--public-key", help="Verifier key of the record that signed it, or a file with it.")
]
Unsigned = Annotated[
    bool, typer.Option("--unsigned", help="Accept a backup of an earlier version, which has no signature.")
]


def init(
    cell: Annotated[str | None, typer.Option(help="Name of the cell (default: the key set's, else 'local').")] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder with the cell's key set, as `--export-keys` wrote it.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export-keys", help="Write the key set there, for further gateways and for safety.")
    ] = None,
    pepper: Annotated[
        Path | None, typer.Option("--pepper", help="Key set of another cell: tenants' keys may then work in both.")
    ] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Make a data folder: the cell's name and its keys. Run again, it changes nothing.

    With --keys on a folder that is there: newer generations of the same installation's keys are taken over, and a
    running gateway uses them without a restart. Databases are where the configured URLs say, else in the folder; with
    --keys and no URL that is left open until `domicile init` is run without --keys, or a URL is set.

    Examples:

      domicile init --cell eu-fr

      domicile init --cell eu-fr --export-keys /media/safe/eu-fr

      domicile init --keys /run/keys

      domicile init --cell eu-de --pepper /media/safe/eu-fr

    The third makes a second gateway of the cell, or begins to restore one; the last a cell that may serve tenants of
    eu-fr too.
    """
    from gateway.installation.key_set import export_keys, key_files

    with plain_errors():
        installation = _made(data, cell, keys, pepper)
        exported = export_keys(installation, export) if export else []
        held = list(key_files(data))
    if as_json:
        print_json({"cell": installation.cell, "data": str(data.absolute()), "keys": held, "exported": exported})
        return
    typer.echo(f"{data} is of cell {installation.cell} and holds {len(held)} keys.")
    if keys is None and export is None:
        from gateway.store.reports.next_step import FIRST_TENANT

        print_next(with_folder(FIRST_TENANT, data), as_json=False)
    if export is not None:
        typer.echo(f"{export} holds the key set, with which anyone can pose as this cell. Keep it apart from backups.")


def _made(data: Path, cell: str | None, keys: Path | None, pepper: Path | None) -> "Installation":
    """The installation in `data` with all its keys: those of the key set `keys`, the pepper of the key set `pepper`,
    and new ones for what neither gives. Raises IdentityError, InstallationError, LoosePermissions."""
    from gateway.installation.installation import DEFAULT_CELL, Installation
    from gateway.installation.key_set import check_pepper, import_keys, import_pepper, make_whole
    from regions.identity.identity import check_name

    check_name(cell or DEFAULT_CELL, "cell")
    if pepper is not None:
        check_pepper(pepper)
    if keys is not None:
        import_keys(data, keys, cell)
    installation = Installation.create(data, cell, here=keys is None)
    if pepper is not None:
        import_pepper(data, pepper)
    installation.require_whole()
    make_whole(installation)
    installation.require_whole()  # lists what was made
    return installation


@backup_app.command("create")
def create(
    folder: Backup,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Copy the databases of a running installation into a new folder, without its keys.

    Example: domicile backup create /backup/2026-11-28
    """
    from gateway.installation import backup
    from gateway.installation.installation import Installation

    with plain_errors(), _sentences():
        installation = Installation.open(data)
        with progress("pages", None, hidden=as_json) as advance:
            made = backup.create(installation, folder, advance)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(f"{folder} holds {len(made.files)} files of cell {made.cell}; no key is among them.")
    for name in made.elsewhere:
        typer.echo(f"What {name} names is not in it: back that up with pg_dump or its own tools.")


@backup_app.command("check")
def check(folder: Backup, public_key: Key = None, unsigned: Unsigned = False, as_json: AsJson = False) -> None:
    """Whether a backup is whole, as it was signed, and its databases are sound. Exits with 1 if not.

    Example: domicile backup check /backup/2026-11-28 --public-key signer.vkey
    """
    from gateway.installation import backup

    with plain_errors(), _sentences():
        found = backup.check(folder, _given(public_key), unsigned=unsigned)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    typer.echo(
        f"{folder}: {len(found.files)} files of cell {found.cell}, made {found.made_at:%Y-%m-%d %H:%M} UTC, whole."
    )
    if public_key is None:
        typer.echo("The key was taken from the backup itself; to rely on who made it, pass --public-key.")


@backup_app.command("restore")
def restore(
    folder: Backup,
    keys: Annotated[Path, typer.Option("--keys", help="Folder with the cell's key set.")],
    public_key: Key = None,
    unsigned: Unsigned = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Make a data folder from a backup and the key set. Nothing that is there is overwritten.

    The backup must be signed by the key of the record that is in the key set, or that --public-key gives.

    Example: domicile backup restore /backup/2026-11-28 --keys /media/safe/eu-fr --data /var/lib/domicile
    """
    from audit.keys.signer import parse_signer
    from gateway.installation import backup
    from gateway.installation.key_set import import_keys, read_key_set

    with plain_errors(), _sentences():
        key = _given(public_key)
        if key is None and (held := read_key_set(keys).get("audit/signer.key")) is not None:
            key = parse_signer(held).verifier_key
        if key is None:
            fail(
                f"the key set {keys} holds no signing key, as it is in Vault; give the log's verifier key by "
                "--public-key"
            )
        backup.require_space(backup.check(folder, key, unsigned=unsigned), data, key)
        import_keys(data, keys)
        found = backup.restore(folder, data, key, unsigned=unsigned)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    typer.echo(f"{data} is cell {found.cell} as of {found.made_at:%Y-%m-%d %H:%M} UTC.")
    typer.echo(f"Before it serves: domicile audit verify --data {data} --as-of {found.made_at:%Y-%m-%dT%H:%M:%SZ}")


def _given(public_key: str | None) -> "VerifierKey | None":
    from audit.tree.note import VerifierKey

    if public_key is None:
        return None
    file = Path(public_key)
    return VerifierKey.parse(read_text(file) if file.is_file() else public_key)


@contextmanager
def _sentences() -> Iterator[None]:
    from gateway.installation.backup import BackupError

    try:
        yield
    except BackupError as error:
        fail(str(error))
