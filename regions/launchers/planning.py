"""Which card a model needs, by the command of the backend's planner, since only the backend knows engines."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from regions.errors import LaunchError

CARDS = ("l40s", "a100-80gb", "h100", "h200")
"""That the planner knows, the cheaper first."""
TIMEOUT_S = 60
PLAN = "import typer; from backend.cli.plan import plan; typer.run(plan)"
START = "import typer; from backend.cli.plan import start; typer.run(start)"


def card_for(weights: Path, *, calls: int) -> str:
    """The first of `CARDS` that holds the model at `weights` with `calls` at one time. Raises LaunchError, with the
    planner's own reason of the largest, where none does."""
    refusal = ""
    for card in CARDS:
        made = plan(weights, card, calls=calls)
        if made["refusal"] is None:
            return card
        refusal = str(made["refusal"])
    raise LaunchError(f"no card holds {weights.name}: {refusal}; use a smaller model, or --quantization")


def check_start(weights: Path, card: str, host_memory: int | None = None, replicas: int = 1) -> None:
    """Raises LaunchError, in the planner's words, where a backend with the model at `weights` could not start on `card`
    (a name, or ``cpu``). Prints nothing where the engine, and so the planner, is not installed.

    host_memory: bytes of the machine that it would run on, where that is known; `replicas`: how many would at one time.
    """
    if importlib.util.find_spec("backend.planner") is None or importlib.util.find_spec("msgspec") is None:
        return
    more = [] if host_memory is None else ["--host-memory", str(host_memory), "--replicas", str(replicas)]
    refusal = _asked(START, ["--model", str(weights), "--gpu", card, *more], weights)["refusal"]
    if refusal is not None:
        raise LaunchError(f"{weights.name} cannot start on {card}: {refusal}".replace(f"{weights.parent}/", ""))


def plan(weights: Path, card: str, *, calls: int) -> dict[str, Any]:
    """The planner's prediction (`domicile plan --json`). Raises LaunchError where it can say nothing."""
    return _asked(PLAN, ["--model", str(weights), "--gpu", card, "--concurrency", str(calls), "--json"], weights)


def _asked(program: str, arguments: list[str], weights: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(  # noqa: S603  # our own command, as a list
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            timeout=TIMEOUT_S,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        made: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"the planner did not answer: {type(error).__name__}; install domicile[backend] here, or free memory"
        ) from None
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise LaunchError(
            f"the planner cannot read {weights.name}: {lines[-1] if lines else 'it printed no reason'}; try "
            "`domicile plan --model` on the folder"
        ) from None
    return made
