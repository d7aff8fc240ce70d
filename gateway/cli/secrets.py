"""``domicile secrets``: who holds the master key, and how the keys are replaced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_json, progress
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Yes, confirm, plain_errors

if TYPE_CHECKING:
    from audit.events.base import Event
    from audit.log.receipt import Receipt
    from gateway.installation.installation import Installation

secrets_app = typer.Typer(name="secrets", help="The keys above all others.", no_args_is_help=True)


@secrets_app.command("show")
def show_status(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Who holds the master key, in which versions, and what is wrapped under them.

    Example: domicile secrets show
    """
    from gateway.installation.rotation import status

    with _installation(data) as installation:
        found = status(installation)
    if as_json:
        print_json(asdict(found))
        return
    versions = ", ".join(map(str, found.master.versions))
    typer.echo(f"master key: {found.master.provider}, {found.master.place}")
    typer.echo(f"versions: {versions}; version {found.master.newest} wraps")
    typer.echo(f"owners of a key: {found.owners - found.destroyed}, and {found.destroyed} whose key was destroyed")
    for under, count in sorted(found.waiting.items()):
        typer.echo(f"still under {under}: {count}; run: domicile secrets rewrap")
    for owner, name in sorted(found.external.items()):
        typer.echo(f"under a key of its own, {name}: the key of {owner}")
    for owner in found.renewing:
        typer.echo(f"being replaced: the key of {owner}; run: domicile secrets renew {owner}")
    for path in found.clear:
        typer.echo(f"not sealed: {path}; run: domicile secrets rewrap")


@secrets_app.command("rotate")
def rotate_master(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Give the master key a new version and wrap every key under it. May be interrupted, and run again.

    The old version still opens old backups, until it is retired. Where hosts share the keys (database.values_url) and
    the master is a file, they are wrapped under it by `secrets rewrap`, once every host has the new key set.

    Example: domicile secrets rotate
    """
    from gateway.installation.rotation import rewrap, rotate

    with _installation(data) as installation, _recording(installation) as record:
        version = rotate(installation, record, ACTOR)
        if installation.keys.is_carried:
            _tell(
                {"version": version, "rewrapped": 0},
                as_json,
                f"version {version} is made; give every other host the new key set (domicile init --export-keys, and"
                " there domicile init --keys), then run: domicile secrets rewrap",
            )
            return
        with progress("keys", len(installation.keys.owners()), hidden=as_json) as advance:
            changed = rewrap(installation, record, ACTOR, advance)
    _tell({"version": version, "rewrapped": changed}, as_json, f"version {version} wraps; {changed} keys moved to it")


@secrets_app.command("rewrap")
def rewrap_keys(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Wrap every key under the newest version of the master, and encrypt the secrets that are not. May be repeated.

    After `secrets.provider` was changed, this moves the keys to the new provider.

    Example: domicile secrets rewrap
    """
    from gateway.installation.rotation import rewrap

    with _installation(data) as installation, _recording(installation) as record:
        with progress("keys", len(installation.keys.owners()), hidden=as_json) as advance:
            changed = rewrap(installation, record, ACTOR, advance)
        version = installation.keys.state().newest
    _tell({"version": version, "rewrapped": changed}, as_json, f"{changed} keys moved to version {version}")


@secrets_app.command("retire")
def retire_versions(data: Data = DEFAULT_DATA, yes: Yes = False, as_json: AsJson = False) -> None:
    """Destroy all versions of the master key but the newest. Refused while a key is wrapped under one of them.

    Backups of `audit/keys` that are older than the last rewrap can then not be opened any more.

    Example: domicile secrets retire
    """
    from gateway.installation.rotation import retire

    confirm("Destroy the old versions of the master key? Backups from before the rewrap become unreadable.", yes)
    with _installation(data) as installation, _recording(installation) as record:
        gone = retire(installation, record, ACTOR)
    _tell({"retired": gone}, as_json, f"{gone} old versions are gone")


@secrets_app.command("renew")
def renew_owner(
    owner: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key; `_system` for the installation's own.")],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Replace a tenant's own key and wrap its data keys under the new one. May be interrupted, and run again.

    Example: domicile secrets renew acme
    """
    from gateway.installation.rotation import renew

    with (
        _installation(data) as installation,
        _recording(installation) as record,
        progress("keys", None, hidden=as_json) as advance,
    ):
        generation, count = renew(installation, owner, record, ACTOR, advance)
    _tell(
        {"tenant": owner, "generation": generation, "rewrapped": count},
        as_json,
        f"{owner} has key number {generation}; {count} data keys are wrapped under it",
    )


@secrets_app.command("accept")
def accept_key(
    key: Annotated[str, typer.Argument(metavar="FILE", help="Its path in the data folder, as secrets/redaction.")],
    data: Data = DEFAULT_DATA,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take the key that is in a file now as the installation's own, after it was replaced on purpose.

    Until then every command refuses a key that is not the one of before. Run it on every host, with the same key.

    Example: domicile secrets accept ca/ca.key
    """
    from gateway.installation.installation import Installation
    from gateway.installation.rotation import accept

    confirm(f"Accept what is in {key}? What the key before it signed, hashed or encrypted is then of no use.", yes)
    with plain_errors():
        installation = Installation.open(data, accepting=[key])
        with _recording(installation) as record:
            fingerprint = accept(installation, key, record, ACTOR)
    _tell({"key": key, "fingerprint": fingerprint}, as_json, f"{key} has the fingerprint {fingerprint} from now on")


@contextmanager
def _installation(data: Path) -> "Iterator[Installation]":
    from gateway.installation.installation import Installation

    with plain_errors():
        yield Installation.open(data)


@contextmanager
def _recording(installation: "Installation") -> "Iterator[Callable[[Event], Receipt]]":
    from gateway.installation.admin_record import recording

    with recording(installation) as record:
        yield record


def _tell(answer: dict[str, object], as_json: bool, sentence: str) -> None:
    if as_json:
        print_json(answer)
    else:
        typer.echo(sentence)
