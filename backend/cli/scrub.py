"""``domicile backend scrub``: empty a backend's prefix cache, zero its free KV blocks, and see that they are zero."""

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Annotated
from urllib.error import HTTPError, URLError

import typer

from backend.wire import REQUEST_TOKEN_HEADER

TIMEOUT_S = 90.0


def scrub(
    url: Annotated[str, typer.Option(help="Where the backend listens.")] = "http://127.0.0.1:8000",
    cert: Annotated[Path | None, typer.Option(help="Certificate to show, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that signed the backend's certificate, PEM.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DOMICILE_REQUEST_TOKEN",
            help="A request token, where the backend runs with --request-key: domicile backend token --path /scrub.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The backend's answer as JSON.")] = False,
) -> None:
    """Zero what nobody runs on, read it back, and end with 1 if a byte of it is not zero. Running requests go on.

    Example: domicile backend scrub --url http://127.0.0.1:8000
    """
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("the address begins with http:// or https://")
        context = ssl.create_default_context(cafile=ca) if url.startswith("https://") else None
        if context and cert:
            context.load_cert_chain(cert, key)
        headers = {} if token is None else {REQUEST_TOKEN_HEADER: token}
        address = f"{url.rstrip('/')}/scrub"
        request = urllib.request.Request(address, headers=headers, method="POST")  # noqa: S310  (see above)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            done = json.loads(answer.read())
    except HTTPError as error:
        hint = "; pass --token, see `domicile backend token --help`" if error.code == 401 else ""
        typer.echo(f"error: the backend answered {error.code}{hint}", err=True)
        raise typer.Exit(1) from None
    except (OSError, ValueError, URLError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(done))
    else:
        typer.echo(f"{done['blocks']} blocks zeroed; read back, {done['residue_bytes']} bytes are not zero")
    raise typer.Exit(1 if done["residue_bytes"] else 0)
