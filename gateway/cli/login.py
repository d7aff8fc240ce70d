"""``domicile login | logout``: administration of an installation elsewhere."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import USAGE, AsJson, fail, plain_errors

if TYPE_CHECKING:
    from gateway.cli.remote.device import Verification


def login(
    tenant: Annotated[
        str | None,
        typer.Argument(metavar="[TENANT]", help="Where the identity provider gives you roles in several tenants."),
    ] = None,
    *,
    url: Annotated[str, typer.Option(help="Of the gateway, as https://ai.example.eu.")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with your access token; '-' for standard input. Without it you are asked.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file of the private CA of its certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Log in to a remote installation; later commands act on it.

    By its identity provider, if it has one for command lines: open the address that is shown, in any browser. Else by
    an access token (`domicile person create-token`). Kept for you alone; commands then work there, unless a data folder
    is named or lies here.

    Example: domicile login --url https://ai.example.eu
    """
    from gateway.cli.remote.api import AdminApi, base_of
    from gateway.cli.remote.credentials import Credentials, CredentialsError, save
    from gateway.cli.remote.sessions import device_client, open_session

    with plain_errors():
        where = Credentials(base := base_of(url), "", None if ca is None else str(ca.absolute()))
        client = device_client(AdminApi(where)) if token_file is None else None
        if client is not None:
            credentials = open_session(where, client, tenant, _show)
        elif tenant is not None:
            fail("an access token is of one tenant; leave it out", USAGE)
        else:
            credentials = replace(where, token=_access_token(token_file))
        me = AdminApi(credentials).get("me")
        try:
            save(credentials)
        except CredentialsError as error:
            fail(str(error))
    if as_json:
        print_json({"url": base, **me})
    else:
        place = f"of tenant {me['tenant']}" if me["tenant"] else "of the installation's staff"
        typer.echo(f"logged in to {base} as person {me['person']} {place}: {', '.join(me['roles'])}")


def logout(
    url: Annotated[str | None, typer.Option(help="Of the gateway (default: the one you logged in to last).")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete the stored login of an installation, and end the session at the identity provider.

    An access token itself works on: revoke it to end it.

    Example: domicile logout --url https://ai.example.eu
    """
    from gateway.cli.remote.api import base_of
    from gateway.cli.remote.credentials import CredentialsError, current, forget, load
    from gateway.cli.remote.sessions import close_session

    with plain_errors():
        base = current() if url is None else base_of(url)
        if base is None:
            fail("you are not logged in anywhere; name an installation by --url")
        try:
            undone = close_session(load(base))
        except CredentialsError:  # they are none, or cannot be read: deleted all the same
            undone = []
        try:
            deleted = forget(base)
        except CredentialsError as error:
            fail(str(error))
    if not deleted:
        fail(f"you are not logged in to {base}; nothing was deleted, check the URL")
    if undone:
        fail(f"what was kept here is deleted, but {'; '.join(undone)}")
    if as_json:
        print_json({"url": base})
    else:
        typer.echo(f"the token for {base} is deleted here")


def _show(verification: "Verification") -> None:
    """On standard error, so that the output stays what it is."""
    typer.echo(f"open {verification.uri} and enter the code {verification.code}", err=True)
    if verification.complete_uri is not None:
        typer.echo(f"or open {verification.complete_uri} and compare the code", err=True)


def _access_token(file: Path | None) -> str:
    """Ends the command for what is none."""
    from gateway.identity.keys import KeyRefused, parse_key

    token = _token(file)
    try:
        parse_key(token, "admin")
    except KeyRefused as error:
        fail(f"this is no access token: {error}; make one with `domicile person create-token`", USAGE)
    return token


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
