"""``domicile database``: location and owner of the databases, and the steps after a move."""

from typing import TYPE_CHECKING

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import DEFAULT_DATA, AsJson, Data, plain_errors

if TYPE_CHECKING:
    from gateway.installation.database_location import DatabaseLocation

database_app = typer.Typer(name="database", help="Where the databases are, and whose they are.", no_args_is_help=True)


@database_app.command("show")
def show(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Say where control database, record and value store are, and which installation each says it belongs to.

    Example: domicile database show
    """
    from gateway.installation.database_location import database_locations
    from gateway.installation.installation import Installation

    with plain_errors():
        installation = Installation.open(data)
        installation.settle()
        found = database_locations(installation)
    _print(found, as_json)


@database_app.command("move")
def move(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Remember the databases that the configured URLs name, after they were moved: to another host, or to PostgreSQL.

    Move the content first (pg_dump and pg_restore, or the server's address), with the gateways stopped; then set the
    new URLs and run this on each gateway's folder. A database that is empty or of another installation is refused.
    The value store and the keys above it are copied out of the folder by this command, into a database that is empty.

    Example: domicile database move
    """
    from gateway.installation.database_location import database_locations, remember
    from gateway.installation.installation import Installation

    with plain_errors():
        installation = Installation.open(data)
        values, keys = remember(installation)
        found = database_locations(installation)
    if values or keys:
        typer.echo(
            f"copied {values} values and {keys} keys; once the gateway works, remove {installation.side_store} and"
            f" {installation.side_store.with_name('keys')}/*.kek, which no erasure reaches",
            err=True,
        )
    _print(found, as_json)


def _print(found: "list[DatabaseLocation]", as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"database": each.what, "place": each.place, "of": None if each.owner is None else str(each.owner)}
                for each in found
            ]
        )
        return
    for each in found:
        owner = "not made yet" if each.owner is None else f"of {each.owner}"
        typer.echo(f"{each.what}: {each.place}; {owner}")
