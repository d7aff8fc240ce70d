"""Time the launch choices of the products of few rows for the models' shapes on this card, and keep the winners.

    python bench/kernels/gpu_tune.py backend/kernels/choices.json [skinny_linear narrow_linear]

Compiles in parallel first. Each candidate runs in a captured graph over more weights than the L2 cache holds, and is
printed beside what torch's library takes for the same product (and gate), without norm or residual.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from backend.kernels import fused  # noqa: E402
from backend.kernels.launching import tuning  # noqa: E402
from backend.kernels.launching.launch import FP8  # noqa: E402
from backend.kernels.launching.tuning import Choice, Choices  # noqa: E402
from backend.kernels.linear import narrow as narrow_linear  # noqa: E402
from backend.kernels.linear import skinny as skinny_linear  # noqa: E402
from bench.kernels.gpu_check import Forced  # noqa: E402

LAYERS = (  # q and kv width, hidden, feed-forward
    (6144, 4096, 4096, 14336),
    (4096, 2048, 1024, 3072),
)


@dataclass(frozen=True)
class Product:
    """rows: 1 for `skinny_linear`, more for `narrow_linear`."""

    rows: int
    outputs: int
    width: int
    fp8: bool
    gated: bool = False
    residual: bool = False  # behind it; `narrow_linear` leaves parts for that

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def bytes(self) -> int:
        return self.weight_rows * self.width * (1 if self.fp8 else 2)

    def candidates(self) -> list[Choice]:
        if self.rows == 1:
            return skinny_linear.candidates(self.width, 1 if self.fp8 else 2, self.gated)
        rows = max(8, triton.next_power_of_2(self.rows))
        return narrow_linear.candidates(rows, self.outputs, self.width, 1 if self.fp8 else 2, parts=self.residual)

    def calls(self, sets: int) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
        """The kernel and the library's form, on the i-th of `sets` weights."""
        x = torch.randn(self.rows, self.width, device="cuda", dtype=torch.bfloat16)
        weights = torch.randn(sets, self.weight_rows, self.width, device="cuda", dtype=torch.bfloat16) / 16
        one = torch.ones((), device="cuda")
        options: dict[str, Any]
        if self.fp8:
            weights = weights.to(FP8)
        library_x = x.to(FP8) if self.fp8 else x

        def library(i: int) -> Tensor:
            y = fused.fp8_product(library_x, weights[i], one) if self.fp8 else F.linear(x, weights[i])
            return fused.silu_mul(y) if self.gated else y

        if self.rows > 1:
            scales = (torch.ones(self.rows, 1, device="cuda"), torch.ones(self.weight_rows, 1, device="cuda"))
            options = {"scales": scales if self.fp8 else None}
            if self.residual:
                return lambda i: narrow_linear.narrow_parts(library_x, weights[i], **options), library
            return lambda i: narrow_linear.narrow_linear(library_x, weights[i], gated=self.gated, **options), library
        options = {"gated": self.gated}
        if self.residual:
            options["residual"] = torch.zeros(self.rows, self.outputs, device="cuda", dtype=torch.bfloat16)
        if self.fp8:
            options["scale"] = torch.ones(self.weight_rows, 1, device="cuda")
        if not self.residual:
            options["norm"] = torch.ones(self.width, device="cuda", dtype=torch.bfloat16)
        return lambda i: skinny_linear.skinny_linear(x, weights[i], **options), library


def products(kernels: list[str]) -> Iterator[Product]:
    rows = [1] * ("skinny_linear" in kernels) + [8, 16, 32] * ("narrow_linear" in kernels)
    for count in rows:
        for qkv, attended, hidden, feed in LAYERS:
            for fp8 in (False, True) if hidden == 4096 else (False,):
                yield Product(count, qkv, hidden, fp8)
                yield Product(count, hidden, attended, fp8, residual=True)
                yield Product(count, feed, hidden, fp8, gated=True)
                yield Product(count, hidden, feed, fp8, residual=True)


def main(path: Path, kernels: list[str]) -> None:
    begin = time.monotonic()
    wanted = list(dict.fromkeys(products(kernels)))
    jobs = list(dict.fromkeys((replace(p, outputs=4096), choice) for p in wanted for choice in p.candidates()))
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, jobs, chunksize=4))
    print(f"{len(jobs)} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    choices = Choices.load(path, torch.cuda.get_device_name(), triton.__version__)
    for product in wanted:
        tune(choices, product)
    choices.save()
    print(f"{time.monotonic() - begin:.0f} s")


def compile_one(job: tuple[Product, Choice]) -> None:
    product, choice = job
    forced = Forced()
    forced.choice = choice
    tuning.use(Choices("candidates", known=forced, strict=True))
    try:
        product.calls(1)[0](0)
        torch.cuda.synchronize()
    except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
        pass  # `tune` passes it over too


def tune(choices: Choices, product: Product) -> None:
    sets = max(1, min(32, round(150e6 / product.bytes)))
    run, library = product.calls(sets)
    forced = Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    run(0)
    by_default = quick(run, sets, product.bytes)

    def taken(choice: Choice) -> float | None:
        forced.choice = choice
        try:
            return quick(run, sets, product.bytes)
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            return None

    best = choices.tune(forced.asked, product.candidates(), taken)
    found, peer = taken(best) or float("nan"), quick(library, sets, product.bytes)
    print(
        f"{forced.asked:56s} {found:7.2f} us {product.bytes / found / 1e3:5.0f} GB/s; default {by_default:7.2f}; "
        f"library {peer:7.2f}; {best.as_json()}",
        flush=True,
    )


def quick(run: Callable[[int], Any], sets: int, size: int) -> float:
    """Microseconds a call: the median of five replays of a graph that reads 1.5 GB or so."""
    run(0)
    torch.cuda.synchronize()
    calls = max(sets, min(100, round(1.5e9 / size)))
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
    main(Path(sys.argv[1]), sys.argv[2:] or ["skinny_linear", "narrow_linear"])
