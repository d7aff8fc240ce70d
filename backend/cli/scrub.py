"""``domicile backend scrub``: empty a backend's prefix cache, zero its free KV blocks, and see that they are zero."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.errors import USAGE, fail
from backend.wire import REQUEST_TOKEN_HEADER

DEADLINE_S = 90.0
MAX_BYTES = 1 << 16


def scrub(
    url: Annotated[str, typer.Option(help="Where the backend listens.")] = "http://127.0.0.1:8000",
    cert: Annotated[Path | None, typer.Option(help="Certificate to show, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that signed the backend's certificate, PEM.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DOMICILE_REQUEST_TOKEN",
            help="A request token, where it runs with --request-key: domicile backend create-token --path /scrub.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The backend's answer as JSON.")] = False,
) -> None:
    """Zero the free KV blocks, read them back, and end with 1 if a byte is not zero. Running requests continue.

    Example: domicile backend scrub --url http://127.0.0.1:8000
    """
    if not url.startswith(("http://", "https://")):
        fail(f"{url!r} is no URL of a backend; write it as http://127.0.0.1:8000", USAGE)
    try:
        context = ssl.create_default_context(cafile=ca) if url.startswith("https://") else None
        if context and cert:
            context.load_cert_chain(cert, key)
        done = asyncio.run(_scrubbed(url.rstrip("/"), token, context))
    except (OSError, ValueError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(done))
    else:
        typer.echo(f"{done['blocks']} blocks zeroed; read back, {done['residue_bytes']} bytes are not zero")
    raise typer.Exit(1 if done["residue_bytes"] else 0)


async def _scrubbed(url: str, token: str | None, context: ssl.SSLContext | None) -> dict[str, Any]:
    """What the backend at `url` answers. Raises OSError if it does not within the deadline, ValueError for an answer
    that is none: another status, no JSON object, more than MAX_BYTES."""
    import httpx2  # a tenth of a second, of which --help needs nothing

    headers = {} if token is None else {REQUEST_TOKEN_HEADER: token}
    client = httpx2.AsyncClient(verify=context or True, timeout=None, trust_env=False, headers=headers)
    try:
        async with asyncio.timeout(DEADLINE_S), client, client.stream("POST", f"{url}/scrub") as answer:
            content = b""
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > MAX_BYTES:
                    raise ValueError(f"the answer is longer than {MAX_BYTES} bytes; is it a backend's address?")
    except TimeoutError:
        raise OSError(f"the backend did not answer within {DEADLINE_S:.0f} s; see its log") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(f"the backend cannot be reached: {error or type(error).__name__}; check --url") from error
    if answer.status_code != 200:
        hint = (
            "pass --token, see `domicile backend create-token --help`" if answer.status_code == 401 else "see its log"
        )
        raise ValueError(f"the backend answered {answer.status_code}; {hint}")
    found = json.loads(content)
    if not isinstance(found, dict) or not {"blocks", "residue_bytes"} <= found.keys():
        raise ValueError("the answer is not that of a backend; check --url")
    return found
