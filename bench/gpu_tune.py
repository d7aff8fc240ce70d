"""Time the launch choices of `skinny_linear` for the models' shapes on this card, and keep the winners.

    python bench/gpu_tune.py backend/kernels/choices.json

Compiles in parallel first. Each candidate runs in a captured graph over more weights than the L2 cache holds.
"""

import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import torch  # noqa: E402
import triton  # noqa: E402
from gpu_check import Forced  # noqa: E402

from backend.kernels import tuning  # noqa: E402
from backend.kernels.launch import FP8  # noqa: E402
from backend.kernels.skinny_linear import candidates, skinny_linear  # noqa: E402
from backend.kernels.tuning import Choice, Choices  # noqa: E402

SHAPES = [  # outputs, width, what rides along
    (6144, 4096, "norm"), (4096, 4096, "residual"), (14336, 4096, "norm gated"), (4096, 14336, "residual"),
    (128256, 4096, "norm"),
    (4096, 1024, "norm"), (1024, 2048, "residual"), (3072, 1024, "norm gated"), (1024, 3072, "residual"),
    (151936, 1024, "norm"),
]  # fmt: skip
Job = tuple[str, bool, Choice]


def main(path: Path) -> None:
    begin = time.monotonic()
    jobs = [
        (kind, fp8, choice)
        for kind, fp8 in itertools.product(("norm", "residual", "norm gated"), (False, True))
        for choice in candidates(4096, 1 if fp8 else 2, "gated" in kind)
    ]
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, jobs, chunksize=4))
    print(f"{len(jobs)} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    choices = Choices.load(path, torch.cuda.get_device_name(), triton.__version__)
    for (outputs, width, kind), fp8 in itertools.product(SHAPES, (False, True)):
        if fp8 and (outputs > 100_000 or width < 4096 == outputs):
            continue  # heads are not quantised
        tune(choices, outputs, width, kind, fp8)
        choices.save()
    print(f"{time.monotonic() - begin:.0f} s")


def compile_one(job: Job) -> None:
    kind, fp8, choice = job
    forced = Forced()
    forced.choice = choice
    tuning.use(Choices("candidates", known=forced))
    x, weights, options = inputs(4096, 4096, kind, fp8, 1)
    skinny_linear(x, weights[0], **options)
    torch.cuda.synchronize()


def inputs(outputs: int, width: int, kind: str, fp8: bool, sets: int) -> tuple[Any, Any, dict[str, Any]]:
    both = outputs * (2 if "gated" in kind else 1)
    x = torch.randn(1, width, device="cuda", dtype=torch.bfloat16)
    weights = (torch.randn(sets, both, width, device="cuda", dtype=torch.bfloat16) / width**0.5).to(
        FP8 if fp8 else torch.bfloat16
    )
    options: dict[str, Any] = {"gated": "gated" in kind}
    if fp8:
        options["scale"] = torch.ones(both, 1, device="cuda")
    if "norm" in kind:
        options["norm"] = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    if "residual" in kind:
        options["residual"] = torch.randn(1, outputs, device="cuda", dtype=torch.bfloat16)
    return x, weights, options


def tune(choices: Choices, outputs: int, width: int, kind: str, fp8: bool) -> None:
    size = outputs * (2 if "gated" in kind else 1) * width * (1 if fp8 else 2)
    sets = max(1, min(32, round(150e6 / size)))
    x, weights, options = inputs(outputs, width, kind, fp8, sets)
    forced = Forced()
    tuning.use(Choices("candidates", known=forced))

    def taken(choice: Choice) -> float | None:
        forced.choice = choice
        try:
            return quick(lambda i: skinny_linear(x, weights[i], **options), sets, size)
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            return None

    skinny_linear(x, weights[0], **options)
    best = choices.tune(forced.asked, candidates(width, 1 if fp8 else 2, "gated" in kind), taken)
    time_taken = taken(best) or float("nan")
    print(f"{forced.asked:52s} {time_taken:8.2f} us {size / time_taken / 1e3:6.0f} GB/s {best.as_json()}", flush=True)


def quick(run: Callable[[int], Any], sets: int, size: int) -> float:
    """Microseconds a call: the median of five replays of a graph that reads 3 GB or so."""
    run(0)
    torch.cuda.synchronize()
    calls = max(sets, min(150, round(3e9 / size)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % sets)
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / calls)
    return sorted(times[1:])[2]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
