"""Check and time every kernel on this machine's GPU; one JSON report.

    python bench/kernels/gpu_check.py --out FILE.json [--tests] [--tune CHOICES.json] [--only TEXT]

Each kernel at each shape of `kernels.cases` is compared with its torch twin, on outputs that were poisoned before, then
timed in a captured graph over inputs larger than the L2 cache. Its floor is its bytes at the card's own copy bandwidth
or its operations at the card's own matrix rate, both measured first. Ends with 1 if anything is wrong.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from backend.kernels.attention import paged_attention, paged_decode  # noqa: E402
from backend.kernels.latent import attention as latent_attention  # noqa: E402
from backend.kernels.latent.reference import decode_rows  # noqa: E402
from backend.kernels.launching import tuning  # noqa: E402
from backend.kernels.launching.launch import FP8  # noqa: E402
from backend.kernels.launching.tuning import Choice, Choices  # noqa: E402
from bench.kernels import latent  # noqa: E402
from bench.kernels.attention import decode_case, prefill_case  # noqa: E402
from bench.kernels.case import LLAMA_8B, Case  # noqa: E402
from bench.kernels.run import cases  # noqa: E402

REPLAYS = 15


@dataclass(frozen=True)
class Result:
    """error: ‖out - twin‖ / ‖twin‖, or the share of unequal integers. of_floor: floor / measured time."""

    name: str
    right: bool
    error: float
    microseconds: float
    floor_microseconds: float
    of_floor: float
    gigabytes_per_s: float
    teraflops_per_s: float
    peer: str
    peer_microseconds: float
    times_peer: float


@dataclass(frozen=True)
class Ceilings:
    copy_gigabytes_per_s: float
    matmul_teraflops_per_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--tests", action="store_true", help="first run the kernels' own tests, compiled")
    parser.add_argument("--tune", type=Path, help="time the attention kernels' candidates and keep the winners here")
    parser.add_argument("--tune-seconds", type=float, default=150)
    options = parser.parse_args()
    torch.manual_seed(int(time.time()))
    report: dict[str, Any] = {"machine": machine()}
    report["tests"] = run_tests() if options.tests else None
    if options.tune:
        report["tuned"] = tune(options.tune, options.tune_seconds, options.only)
    options.out.write_text(json.dumps(report, indent=1))  # after each part: what was found survives a later crash
    ceilings = measure_ceilings()
    report |= {"ceilings": asdict(ceilings), "results": [], "properties": {}}
    device = torch.device("cuda")
    for dtype in (torch.bfloat16, torch.float16):  # float16 is checked, not timed: the kernels are the same
        for case in cases(device, dtype):
            if options.only not in case.name or (dtype == torch.float16 and "float16" not in case.name):
                continue
            result = examine(case, ceilings, timed=dtype == torch.bfloat16)
            print(line(result), flush=True)
            report["results"].append(asdict(result))
            options.out.write_text(json.dumps(report, indent=1))
    report["properties"] = properties(device)
    for name, holds in report["properties"].items():
        print(f"{'ok   ' if holds else 'WRONG'} {name}")
    options.out.write_text(json.dumps(report, indent=1))
    wrong = [r["name"] for r in report["results"] if not r["right"]]
    wrong += [name for name, holds in report["properties"].items() if not holds]
    if report["tests"] and report["tests"]["exit"]:
        wrong.append("the kernels' tests")
    print(f"{len(report['results'])} cases; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def machine() -> dict[str, Any]:
    card = torch.cuda.get_device_properties(0)
    return {
        "card": card.name,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "multiprocessors": card.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def run_tests() -> dict[str, Any]:
    """The kernels' tests alone: a bare GPU machine lacks the project's other dependencies and pytest's plugins."""
    folder = ROOT / "tests/backend/kernels"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        str(ROOT),
        "-p",
        "no:cacheprovider",
        *(["-n", str(min(8, os.cpu_count() or 1))] if importlib.util.find_spec("xdist") else []),
    ]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, "--confcutdir", str(folder), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout[-6000:], flush=True)
    return {"exit": done.returncode, "output": done.stdout[-20000:]}


def examine(case: Case, ceilings: Ceilings, timed: bool) -> Result:
    found = error(case)
    taken = microseconds(case.run, case.sets) if timed else float("nan")
    peer = microseconds(case.peer, case.sets) if timed and case.peer else float("nan")
    by_bytes = case.bytes / ceilings.copy_gigabytes_per_s / 1e3
    by_flops = case.flops / ceilings.matmul_teraflops_per_s / 1e6
    floor = max(by_bytes, by_flops)
    return Result(
        case.name,
        found <= case.tolerance,
        found,
        taken,
        floor,
        floor / taken,
        case.bytes / taken / 1e3,
        case.flops / taken / 1e6,
        case.peer_name if case.peer else "",
        peer,
        peer / taken,
    )


def line(r: Result) -> str:
    verdict = "ok   " if r.right else "WRONG"
    speed = f"{r.microseconds:9.1f} us {100 * r.of_floor:5.0f}% of floor {r.gigabytes_per_s:6.0f} GB/s"
    peer = f" {r.times_peer:5.2f}x {r.peer}" if r.peer else ""
    return f"{verdict} {r.name:76s} err {r.error:.1e} {speed} {r.teraflops_per_s:5.0f} TFLOP/s{peer}"


def error(case: Case) -> float:
    """The largest over the tensors a case writes; infinite if a value is not finite where the twin's is."""
    poison_allocator()
    worst = 0.0
    for mine, other in zip(case.seen(case.run(0)), case.seen(case.twin(0)), strict=True):
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return float("inf")
        worst = max(worst, difference(mine, other))
    return worst


def difference(mine: Tensor, other: Tensor) -> float:
    if not mine.is_floating_point():
        return float((mine != other).double().mean())
    a, b = mine.float(), other.float()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = (x.nan_to_num(0.0, 0.0, 0.0).double() for x in (a, b))
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def poison_allocator() -> None:
    """Leave NaN in the memory that the next allocations are likely to get."""
    for size in (2**12, 2**16, 2**20, 2**24, 2**27):
        torch.full((size // 4,), float("nan"), device="cuda")


def microseconds(run: Callable[[int], Any], sets: int) -> float:
    """Median over replays of a graph of many calls, which shrinks launch gaps to what a captured step pays."""
    for i in range(min(sets, 3)):
        run(i)
    torch.cuda.synchronize()
    once = _elapsed(lambda: run(0))
    calls = max(1, min(200, round(4e3 / max(once, 1.0))))
    calls = -(-calls // sets) * sets if calls < sets * 4 else calls
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % sets)
    graph.replay()
    times = sorted(_elapsed(graph.replay) for _ in range(REPLAYS))
    return times[REPLAYS // 2] / calls


def _elapsed(work: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def measure_ceilings() -> Ceilings:
    source = torch.empty(2**30, device="cuda", dtype=torch.float16).normal_()
    target = torch.empty_like(source)
    a, b = torch.empty(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).normal_()
    copy, product = (microseconds(run, 1) for run in (lambda _: target.copy_(source), lambda _: a @ b))
    return Ceilings(2 * source.numel() * 2 / copy / 1e3, 2 * 8192**3 / product / 1e6)


def properties(device: torch.device) -> dict[str, bool]:
    """What no single comparison shows."""
    held = {}
    for cache_dtype in (torch.bfloat16, FP8):
        case = decode_case(LLAMA_8B, 3, 5000, 1, torch.bfloat16, cache_dtype, device)
        first = case.run(0)[0]
        label = str(cache_dtype).removeprefix("torch.")
        held[f"300 split decodes of the same input give the same bits ({label})"] = all(
            torch.equal(first, case.run(0)[0]) for _ in range(300)
        )
    held["a chunk's rows have the bits of the whole prompt's, batch-invariant"] = chunks_agree(device)
    return held


def chunks_agree(device: torch.device) -> bool:
    torch.manual_seed(0)
    length, heads, kv_heads, dim, block = 1000, 32, 8, 128, 16
    q = torch.randn(length, heads, dim, device=device).bfloat16()
    blocks = -(-length // block)
    keys, values = torch.randn(2, blocks, block, kv_heads, dim, device=device).bfloat16()
    table = torch.randperm(blocks, device=device).int()[None]

    def attend(begin: int, end: int) -> Tensor:
        starts, lengths = torch.tensor([0, end - begin], device=device).int(), torch.tensor([end], device=device).int()
        return paged_attention.paged_attention(
            q[begin:end].contiguous(), keys, values, table, starts, lengths, scale=dim**-0.5, batch_invariant=True
        )

    whole = attend(0, length)
    chunks = [(0, 1), (1, 18), (18, 82), (82, 593), (593, 999), (999, 1000)]
    return all(torch.equal(attend(begin, end), whole[begin:end]) for begin, end in chunks)


def tune(path: Path, budget: float, only: str = "") -> dict[str, Any]:
    """Time the candidates of the attention kernels until the budget is spent; keep the winners.

    At the 8B shape, and those of latent attention at DeepSeek-V3's, whole and on eight ranks.
    """
    choices = Choices.load(path, torch.cuda.get_device_name(0), triton.__version__)
    device, bf16 = torch.device("cuda"), torch.bfloat16
    decodes = [(decode_case(LLAMA_8B, 64, 1024, 1, bf16, kv, device), kv) for kv in (bf16, FP8)]
    jobs = [(case, paged_decode.candidates(128, kv.itemsize)) for case, kv in decodes]
    jobs.append((prefill_case(LLAMA_8B, 4096, 0, 1, bf16, bf16, device), paged_attention.candidates(128, 4)))
    for name, heads in latent.HEADS.items():
        candidates = latent_attention.candidates(latent.RANK, decode_rows(heads, bf16.itemsize))
        jobs.append((latent.decode_case(name, 32, 1024, bf16, device), candidates))
        jobs.append((latent.prompt_case(name, 512, 1536, 1, bf16, device), candidates))
    jobs = [(case, candidates) for case, candidates in jobs if only in case.name]
    timings = {}
    for case, candidates in jobs:
        timings[case.name] = tune_case(case, candidates, choices, time.monotonic() + budget / len(jobs))
        print(f"tuned {case.name}: {min(timings[case.name].items(), key=lambda item: item[1])}", flush=True)
    choices.save()
    tuning.use(choices)
    return {"choices": {key: choice.as_json() for key, choice in choices.known.items()}, "microseconds": timings}


class Forced(dict[str, Choice]):
    """Answers every launcher with one choice, and remembers what it was asked."""

    choice: Choice | None = None
    asked = ""
    default: Choice | None = None

    def get(self, key: str, default: Any = None) -> Any:
        self.asked, self.default = key, default
        return self.choice or default


def tune_case(case: Case, candidates: list[Choice], choices: Choices, deadline: float) -> dict[str, float]:
    """Times the default choice too. By choice, in microseconds."""
    forced = Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    expected = case.seen(case.run(0))[0]
    timings = {}

    def taken(choice: Choice) -> float | None:
        if time.monotonic() > deadline:
            return None
        forced.choice = choice
        try:
            if difference(case.seen(case.run(0))[0], expected) > case.tolerance:
                return None
            timings[str(choice.as_json())] = microseconds(case.run, case.sets)
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            return None
        return timings[str(choice.as_json())]

    known = [forced.default] if forced.default not in (None, *candidates) else []
    choices.tune(forced.asked, [*known, *candidates], taken)  # so that nothing slower than the default is kept
    return timings


if __name__ == "__main__":
    sys.exit(main())
