"""How the commands of `backend` end with an error: a sentence on stderr and an exit status."""

from typing import NoReturn

import typer

REFUSED, USAGE = 1, 2
"""Exit statuses; 2 is also that of Click for an option or argument that there is not."""


def fail(sentence: object, status: int = REFUSED) -> NoReturn:
    """Print the error and end the command: `USAGE` for options that no model or machine accepts, else `REFUSED`."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(status) from None
