"""Which card a model needs, by the command of the backend's planner, since only the backend knows engines."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from regions.errors import LaunchError
from regions.fleet.cards import Cards

CARDS = ("l40s", "a100-80gb", "h100", "h200")
"""Cards of which `card_for` takes one, the cheaper first."""
KNOWN_CARDS = (*CARDS, "a100-40gb", "b200", "h100-nvl", "l4", "rtx-4090", "rtx-5090")
"""That the planner knows."""
QUANTIZATIONS = ("none", "fp8", "fp8-block", "int8", "w4a16", "awq", "gptq", "mxfp4")
"""Formats of weights that the planner knows."""
TIMEOUT_S = 60
REFUSED = "error: "
PLAN = "import typer; from backend.cli.capacity_plan import plan; typer.run(plan)"
START = "import typer; from backend.cli.capacity_plan import start; typer.run(start)"


def card_for(weights: Path, *, calls: int, count: int | None = None) -> Cards:
    """The first of `CARDS` that holds the model at `weights` with `calls` at one time: `count` of them; None: as few as
    do, one where one of any kind does. Raises LaunchError, with the planner's own reason of the largest, where none
    does."""
    refusal = ""
    fewest: list[tuple[int, str]] = []
    for card in CARDS:
        made = plan(weights, card, calls=calls, cards=count or 1)
        if made["refusal"] is None:
            return Cards(card, count or 1)
        refusal = str(made["refusal"])
        if count is None and made["fewest_cards"] is not None:
            fewest.append((int(made["fewest_cards"]), card))
    if fewest:
        most = min(number for number, _ in fewest)
        return Cards(next(card for number, card in fewest if number == most), most)
    raise LaunchError(f"no card holds {weights.name}: {refusal}; use a smaller model, or --quantization")


def check_start(weights: Path, cards: Cards, host_memory: int | None = None, replicas: int = 1) -> None:
    """Raises LaunchError, in the planner's words, where a backend with the model at `weights` could not start on
    `cards`. Prints nothing where the engine, and so the planner, is not installed.

    host_memory: bytes of the machine that it would run on, where that is known; `replicas`: how many would at one time.
    """
    if importlib.util.find_spec("backend.planner") is None or importlib.util.find_spec("msgspec") is None:
        return
    more = [] if host_memory is None else ["--host-memory", str(host_memory), "--replicas", str(replicas)]
    more += ["--tensor-parallel-size", str(cards.count)] if cards.count > 1 else []
    refusal = _asked(START, ["--model", str(weights), "--gpu", cards.name, *more], weights)["refusal"]
    if refusal is not None:
        refusal = refusal.replace("--tensor-parallel-size", "--gpus").replace(f"{weights.parent}/", "")
        raise LaunchError(f"{weights.name} cannot start on {cards}: {refusal}")


def plan(
    weights: Path,
    card: str,
    *,
    calls: int,
    cards: int = 1,
    context: int | None = None,
    quantization: str | None = None,
) -> dict[str, Any]:
    """The planner's prediction (`domicile plan --json`). Raises LaunchError where it can say nothing.

    context: tokens that a call may have; None: as many as the model can. quantization: one of `QUANTIZATIONS`; None: as
    the weights are stored.
    """
    arguments = ["--model", str(weights), "--gpu", card, "--concurrency", str(calls), "--json"]
    arguments += [] if context is None else ["--context", str(context)]
    arguments += [] if quantization is None else ["--quantization", quantization]
    return _asked(PLAN, [*arguments, "--tensor-parallel-size", str(cards)], weights)


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
        if lines and lines[-1].startswith(REFUSED):
            raise LaunchError(f"the planner refuses {weights.name}: {lines[-1].removeprefix(REFUSED)}") from None
        raise LaunchError(
            f"the planner cannot read {weights.name}: {lines[-1] if lines else 'it printed no reason'}; try "
            "`domicile plan --model` on the folder"
        ) from None
    return made
