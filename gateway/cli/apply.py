"""``domicile apply``: change an installation to the state that a folder of YAML files declares."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    AsJson,
    Data,
    Yes,
    confirm,
    fail,
    opened_control,
    opened_database,
    opened_inventory,
    opened_reports,
    remote_url,
)

if TYPE_CHECKING:
    from gateway.cli.declared.changes import Change
    from gateway.cli.declared.documents import Folder
    from gateway.installation.feasibility import Feasibility
    from gateway.store.control.control import Control

CHANGED = 2
"""Exit status of a plan that has changes."""
LEASE_S = 120.0
"""For one change, or for a person to answer."""


def apply(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Option("--file", "-f", help="The folder; its policies are in 'policies'.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would change, and change nothing. Ends with 2 if something would.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete projects, keys and deployments that the folder does not name.")
    ] = False,
    require_signed: Annotated[
        bool,
        typer.Option("--require-signed", help="Only a commit that `git verify-commit` takes, unchanged."),
    ] = False,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Make tenants, projects, keys, limits, policies and deployments as the YAML of a folder says.

    Applied again it changes nothing. Secrets of new keys are printed once. Ends with 1 where something differs that
    cannot be changed, or waits for a second person: of an installation elsewhere policies are proposed, and put in
    force by the next run once somebody else approved them.

    Example: domicile apply -f installation --plan
    """
    from gateway.cli.declared.changes import changes

    declared = _read(folder, signed=require_signed)

    def compared() -> "list[Change]":
        with opened_inventory(data) as inventory, opened_reports(data) as reports:
            return list(changes(declared, inventory, reports, prune=prune, feasibility=_feasibility(data)))

    if plan:
        found = compared()
        _show(found, as_json)
        raise typer.Exit(CHANGED if found else 0)
    with _alone(data) as still_alone:
        found = compared()
        gone = [change for change in found if change.sign == "-"]
        if gone:
            named = "; ".join(change.what for change in gone[:5])
            confirm(f"Delete {len(gone)} of what is there for good ({named})?", yes)
        with opened_control(ctx, data) as control:
            _make(control, found, as_json, still_alone)
    if any(change.sign == "!" for change in found):
        fail("what is marked with ! differs and was left as it is; see each line")


@contextmanager
def _alone(data: Path) -> Iterator[Callable[[], None]]:
    """No other run compares and changes this installation meanwhile: both would make the same keys and versions. What
    is yielded is called before each change, and ends the command where another run came in between. An installation
    elsewhere has no such lease: its admin API makes one change at a time."""
    if remote_url(data) is not None:
        yield lambda: None
        return
    from gateway.database.leases import Lease

    with opened_database(data) as (installation, database):
        lease = Lease(database, f"apply:{installation.cell}", token_hex(8), ttl_s=LEASE_S)
        term = lease.take()
        if term is None:
            fail(
                "another `domicile apply` is changing this installation; wait until it has ended (one that was killed "
                f"is over after {LEASE_S:g} s)"
            )

        def still_alone() -> None:
            if lease.take() != term:
                fail("another `domicile apply` may have changed this installation meanwhile; run this one again")

        try:
            yield still_alone
        finally:
            lease.release()


def _feasibility(data: Path) -> "Feasibility | None":
    """Feasibility on this host; None for a remote installation."""
    if remote_url(data) is not None:
        return None
    from gateway.installation.feasibility import Feasibility
    from gateway.installation.installation import Installation, configured

    return Feasibility(Installation.open(data), configured())


def _read(folder: Path, *, signed: bool) -> "Folder":
    """Ends the command for what cannot be used, or, if asked for, is not signed."""
    from gateway.cli.declared.documents import DocumentError, read_folder

    if signed:
        _check_signature(folder)
    try:
        return read_folder(folder)
    except DocumentError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{folder} cannot be read: {error.strerror}; name a folder by -f")


def _make(control: "Control", found: "list[Change]", as_json: bool, still_alone: Callable[[], None]) -> None:
    """Where one fails, those before it are made, and are said: a secret of theirs is in no other place."""
    secrets: dict[str, str] = {}
    done: list[Change] = []
    try:
        for change in found:
            still_alone()
            if change.make is not None and (secret := change.make(control)) is not None:
                secrets[change.what] = secret
            done.append(change)
            if not as_json:
                typer.echo(str(change) + (f": {secrets[change.what]}" if change.what in secrets else ""))
    finally:
        if as_json:
            _show(done, as_json, secrets)


def _show(found: "list[Change]", as_json: bool, secrets: dict[str, str] | None = None) -> None:
    if as_json:
        told = secrets or {}
        print_json([{"sign": each.sign, "what": each.what, "key": told.get(each.what)} for each in found])
        return
    for change in found:
        typer.echo(str(change))
    if not found:
        typer.echo("nothing to change")


def _check_signature(folder: Path) -> None:
    """Ends the command where the commit checked out has no good signature, or the folder is not as committed."""
    verified = _git(folder, "verify-commit", "HEAD")
    if verified.returncode != 0:
        why = (verified.stderr.strip().splitlines() or ["it has no signature"])[-1]
        fail(f"the commit of {folder} is not signed by somebody whom git knows: {why}; sign it, or set up git's keys")
    changed = _git(folder, "status", "--porcelain", "--ignored", "--", ".")
    if changed.returncode != 0 or changed.stdout.strip():
        fail(f"{folder} is not as its signed commit has it; commit and sign what is there, or remove it")


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    except FileNotFoundError:
        fail("there is no git here; install it, or leave out --require-signed")
