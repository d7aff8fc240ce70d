"""Weights of a deployment by the name of a model elsewhere, by the command of the backend, which knows hubs, registries
and buckets."""

import json
import subprocess
import sys
from pathlib import Path

from regions.errors import LaunchError

FETCH = "import typer; from backend.cli.fetch import fetch; typer.run(fetch)"


def is_elsewhere(weights: str) -> bool:
    """Whether it is a name and not a path. A hub id has to begin with ``hf://``, for ``a/b`` is in the folder of
    models."""
    return "://" in weights


def fetched(name: str, into: Path, sha256: str | None) -> tuple[str, str]:
    """The weights' path in the folder of models `into`, and their SHA-256; refused unless it is `sha256`, where that is
    given. Its progress and errors go to this process's stderr. Raises LaunchError."""
    pin = [] if sha256 is None else ["--model-sha256", sha256]
    try:
        done = subprocess.run(  # noqa: S603  # our own command, as a list
            [sys.executable, "-c", FETCH, "--model-cache", str(into.absolute()), "--json", *pin, "--", name],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        said = json.loads(done.stdout)  # nothing, where it failed
        return Path(said["path"]).relative_to(into.absolute()).as_posix(), str(said["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        raise LaunchError(
            "the model was not fetched, for the reason above; mend that, or put weights into the folder of models"
        ) from None
