"""Time the launch choices of `formats` on this card and keep the winners that are right.

    python bench/kernels/formats_tune.py backend/kernels/choices.json [--only TEXT] [--seconds 400]

Compiles in parallel first. A candidate whose result differs from the twin's is passed over. What time is left over is
told: a second run goes on with what has no choice yet.
"""

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import triton  # noqa: E402

from backend.kernels.launching import tuning  # noqa: E402
from backend.kernels.launching.tuning import Choice, Choices  # noqa: E402
from bench.kernels.formats import Spec, halves, specs  # noqa: E402
from bench.kernels.gpu_check import Forced, microseconds, tune_case  # noqa: E402

WORKERS = 14


def compile_all(job: tuple[Spec, tuple[Choice, ...]]) -> None:
    spec, candidates = job
    case, forced = spec(torch.device("cuda")), Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    for forced.choice in candidates:
        try:
            case.run(0)
            torch.cuda.synchronize()
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            pass  # `tune_case` passes it over too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("choices", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=400)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    wanted = []
    for spec in (*specs(), *halves()):
        case = spec(torch.device("meta"))
        if options.only in case.name and case.candidates:
            wanted.append((spec, case.candidates))
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_all, wanted))
    choices = Choices.load(options.choices, torch.cuda.get_device_name(), triton.__version__)
    left = 0
    for spec, candidates in wanted:
        if time.monotonic() > deadline:
            left += 1
            continue
        case = spec(torch.device("cuda"))
        tuning.use(Choices("defaults"))
        before = microseconds(case.run, case.sets)
        timings = tune_case(case, list(candidates), choices, deadline)
        best = min(timings, key=lambda choice: timings[choice])
        print(f"{case.name:72s} {before:9.2f} -> {timings[best]:9.2f} us {best}", flush=True)
        choices.save()
    print(f"{len(wanted) - left} tuned, {left} left")


if __name__ == "__main__":
    main()
