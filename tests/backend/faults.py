"""Faults to order in a real engine process: a step that hangs, fails, crashes or computes what is not a number.

`armed` makes an environment in which the next engine process takes its orders from a file; each is carried out once.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

CUSTOMIZE = """
import os, sys
if "backend.process.engine_process" in sys.orig_argv:
    from tests.backend import faults
    faults.arm(os.environ["DOMICILE_TEST_FAULTS"])
"""


def armed(folder: Path) -> dict[str, str]:
    """Environment variables. `order` in the same folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(CUSTOMIZE)
    path = os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH")) if p)
    return {"PYTHONPATH": path, "DOMICILE_TEST_FAULTS": str(folder)}


def order(folder: Path, fault: str) -> None:
    """hang, raise, crash, nan; on a GPU hang-kernel, fault-kernel: at the next step."""
    (folder / "new").write_text(fault)
    (folder / "new").rename(folder / "order")


def arm(folder: str) -> None:
    from backend.engine.cpu.model_runner import ModelRunner
    from backend.engine.gpu.graph_runner import GraphRunner

    for runner in (ModelRunner, GraphRunner):
        _arm(runner, Path(folder) / "order")


def _arm(runner: Any, ordered: Path) -> None:
    plain = runner.launch

    def launch(self: Any, batch: Any, masks: Any = None) -> Any:
        if not ordered.exists():
            return plain(self, batch, masks)
        fault = ordered.read_text()
        ordered.unlink()
        match fault:
            case "hang":
                time.sleep(3600)
            case "raise":
                raise RuntimeError("the step failed")
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang-kernel":
                torch.cuda._sleep(40_000_000_000)  # cycles: twenty seconds or so
            case "fault-kernel":
                _write_nowhere()
            case "nan":
                return _NotNumbers(plain(self, batch, masks))
        return plain(self, batch, masks)

    runner.launch = launch


class _NotNumbers:
    """A step whose first sequence got no number."""

    def __init__(self, launched: Any) -> None:
        self._launched = launched

    def tokens(self) -> list[int | None]:
        drawn: list[int | None] = self._launched.tokens()
        return [None, *drawn[1:]]

    def logprobs(self) -> Any:
        return self._launched.logprobs()

    def prompt_logprobs(self) -> Any:
        return self._launched.prompt_logprobs()

    def activations(self) -> Any:
        return self._launched.activations()


def _write_nowhere() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def nowhere(at):  # type: ignore[no-untyped-def]
        tl.store(at + (1 << 44), 1.0)

    nowhere[(1,)](torch.zeros(1, device="cuda"))
