"""``domicile login | logout``: administration of an installation elsewhere."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import USAGE, AsJson, fail, plain_errors


def login(
    url: Annotated[str, typer.Option(help="Of the gateway, as https://ai.example.eu.")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with your access token; '-' for standard input. Without it you are asked.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file of the private CA of its certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Log in to an installation elsewhere, which commands are then for.

    The access token (`domicile person create-token`) is tried, and kept for you alone. Commands then work there, unless
    a data folder is named or lies here.

    Example: domicile login --url https://ai.example.eu --token-file token
    """
    from gateway.cli.remote.api import AdminApi, base_of
    from gateway.cli.remote.credentials import Credentials, CredentialsError, save
    from gateway.identity.keys import KeyRefused, parse_key

    with plain_errors():
        base = base_of(url)
        token = _token(token_file)
        try:
            parse_key(token, "admin")
        except KeyRefused as error:
            fail(f"this is no access token: {error}; make one with `domicile person create-token`", USAGE)
        credentials = Credentials(base, token, None if ca is None else str(ca.absolute()))
        me = AdminApi(credentials).get("me")
        try:
            save(credentials)
        except CredentialsError as error:
            fail(str(error))
    if as_json:
        print_json({"url": base, **me})
    else:
        where = f"of tenant {me['tenant']}" if me["tenant"] else "of the installation's staff"
        typer.echo(f"logged in to {base} as person {me['person']} {where}: {', '.join(me['roles'])}")


def logout(
    url: Annotated[str | None, typer.Option(help="Of the gateway (default: the one you logged in to last).")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete the access token that is kept for an installation.

    The token itself works on: revoke it to end it.

    Example: domicile logout --url https://ai.example.eu
    """
    from gateway.cli.remote.api import base_of
    from gateway.cli.remote.credentials import CredentialsError, current, forget

    with plain_errors():
        base = current() if url is None else base_of(url)
        if base is None:
            fail("you are not logged in anywhere; name an installation by --url")
        try:
            deleted = forget(base)
        except CredentialsError as error:
            fail(str(error))
    if not deleted:
        fail(f"you are not logged in to {base}; nothing was deleted, check the URL")
    if as_json:
        print_json({"url": base})
    else:
        typer.echo(f"the token for {base} is deleted here")


def _token(file: Path | None) -> str:
    if file is None:
        said: str = typer.prompt("access token", hide_input=True, err=True)
        return said.strip()
    if str(file) == "-":
        return sys.stdin.readline().strip()
    from audit.files.secret_file import LoosePermissions, read_secret

    try:
        return read_secret(file).decode("ascii", "replace").strip()
    except LoosePermissions as error:
        fail(str(error))
