"""Products by weights of four bits at the shapes of an 8B layer: right, and how fast beside bfloat16 and FP8.

    python bench/kernels/int4.py OUT.json [--tune CHOICES.json]

Each product is compared with float64 on fresh random inputs, its output poisoned before, then timed in a captured graph
over more weights than the L2 cache holds. ``--tune`` times all launch choices first and keeps the winners.
"""

import argparse
import json
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
from backend.kernels.linear import int4, int4_reference  # noqa: E402
from bench.kernels.gpu_check import Forced, machine  # noqa: E402
from bench.kernels.gpu_tune import quick  # noqa: E402

ROWS = (1, 16, 32, 64, 128, 256)  # up to 8 are one form
NARROW = 128  # rows for which the output and down projections leave parts
PRODUCTS = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (14336, 4096), "down": (4096, 14336)}
TOLERANCE = 6e-3  # of ‖out - float64‖ / ‖float64‖: bfloat16 rounds once
CHOICES = ROOT / "backend" / "kernels" / "choices.json"


@dataclass(frozen=True)
class Product:
    """outputs: of one of gate and up where the product is gated."""

    name: str
    rows: int
    outputs: int
    width: int

    @property
    def gated(self) -> bool:
        return self.name == "gate_up"

    @property
    def parts(self) -> bool:
        return self.name in ("out", "down") and self.rows <= NARROW

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def bytes(self) -> int:
        return self.weight_rows * (self.width // 2 + self.width // 32)

    def candidates(self) -> list[Choice]:
        padded = max(8, triton.next_power_of_2(self.rows))
        return int4.candidates(padded, self.outputs, self.width, gated=self.gated, parts=self.parts)

    def run(self, x: Tensor, words: Tensor, groups: Tensor) -> Tensor:
        if self.parts:
            return int4.int4_parts(x, words, groups)
        return int4.int4_linear(x, words, groups, gated=self.gated)


def weight_of(product: Product, sets: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """words and groups of so many random weights, and the first of them in float64."""
    numbers = torch.randint(0, 16, (product.weight_rows, product.width), device="cuda")
    scales = (torch.rand(product.weight_rows, product.width // 128, device="cuda") + 0.5).half() / 300
    zeros = torch.randint(0, 17, scales.shape, device="cuda")
    words, groups = int4_reference.pack(numbers, scales, zeros)
    exact = (numbers - zeros.repeat_interleave(128, 1)).double() * scales.double().repeat_interleave(128, 1)
    return [words.clone() for _ in range(sets)], [groups.clone() for _ in range(sets)], exact


def exact_product(product: Product, x: Tensor, exact: Tensor) -> Tensor:
    y = x.double() @ exact.t()
    if not product.gated:
        return y
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def error_of(product: Product, weights: tuple[list[Tensor], list[Tensor], Tensor]) -> float:
    words, groups, exact = weights
    worst = 0.0
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(product.rows, product.width, device="cuda").to(dtype)
        poisoned = torch.full((1 << 26,), float("nan"), device="cuda")  # what the output is made of next
        del poisoned
        y = product.run(x, words[0], groups[0]).double()
        expected = exact_product(product, x, exact)
        worst = max(worst, float(((y.sum(0) if y.dim() == 3 else y) - expected).norm() / expected.norm()))
    return worst


def others(product: Product, dtype: torch.dtype, sets: int) -> Callable[[int], Any]:
    """The same product as the engine computes it by weights in bfloat16 or FP8."""
    x = torch.randn(product.rows, product.width, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(sets, product.weight_rows, product.width, device="cuda", dtype=torch.bfloat16) / 16
    weights = weights.to(dtype)
    one = torch.ones((), device="cuda")
    column = torch.ones(product.weight_rows, 1, device="cuda")
    fp8 = dtype == FP8
    if product.rows == 1:
        norm = torch.ones(product.width, device="cuda", dtype=x.dtype) if product.name in ("qkv", "gate_up") else None
        return lambda i: fused.skinny_linear(
            x, weights[i], scale=column if fp8 else None, norm=norm, gated=product.gated
        )
    scales = (torch.ones(product.rows, 1, device="cuda"), column) if fp8 else None
    narrow_x = x.to(dtype)
    if product.rows <= 32:
        if product.name in ("out", "down"):
            return lambda i: fused.narrow_parts(narrow_x, weights[i], scales=scales)
        return lambda i: fused.narrow_linear(narrow_x, weights[i], scales=scales, gated=product.gated)

    def library(i: int) -> Tensor:
        y = fused.fp8_product(narrow_x, weights[i], one) if fp8 else F.linear(x, weights[i])
        return fused.silu_mul(y) if product.gated else y

    return library


def products(counts: tuple[int, ...]) -> Iterator[Product]:
    for rows in counts:
        for name, (outputs, width) in PRODUCTS.items():
            yield Product(name, rows, outputs, width)


def compile_one(job: tuple[Product, Choice]) -> None:
    product, choice = job
    forced = Forced()
    forced.choice = choice
    tuning.use(Choices("candidates", known=forced, strict=True))
    words, groups, _ = weight_of(product, 1)
    x = torch.randn(product.rows, product.width, device="cuda", dtype=torch.bfloat16)
    try:
        product.run(x, words[0], groups[0])
        torch.cuda.synchronize()
    except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
        pass  # `tune` passes it over too


def tune(choices: Choices, product: Product, run: Callable[[int], Any], sets: int) -> None:
    forced = Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    run(0)

    def taken(choice: Choice) -> float | None:
        forced.choice = choice
        try:
            return quick(run, sets, product.bytes)
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            return None

    choices.tune(forced.asked, product.candidates(), taken)


def measure(product: Product, choices: Choices, tuned: bool) -> dict[str, Any]:
    sets = max(1, min(32, round(150e6 / product.bytes)))
    weights = weight_of(product, sets)
    words, groups, _ = weights
    tuning.use(choices)
    found: dict[str, Any] = {"product": product.name, "rows": product.rows, "error": error_of(product, weights)}
    x = torch.randn(product.rows, product.width, device="cuda", dtype=torch.bfloat16)

    def run(i: int) -> Tensor:
        return product.run(x, words[i], groups[i])

    found["us_before"] = round(quick(run, sets, product.bytes), 2)
    if tuned:
        tune(choices, product, run, sets)
        tuning.use(choices)
        found["error"] = max(found["error"], error_of(product, weights))
    found["us"] = round(quick(run, sets, product.bytes), 2)
    found["GB/s"] = round(product.bytes / found["us"] / 1e3)
    for name, dtype, size in (("bf16", torch.bfloat16, 2), ("fp8", FP8, 1)):
        count = max(1, min(32, round(150e6 / (product.weight_rows * product.width * size))))
        took = quick(others(product, dtype, count), count, product.weight_rows * product.width * size)
        found[f"{name}_us"] = round(took, 2)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tune", type=Path, help="time the candidates and keep the winners here")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of x")
    options = parser.parse_args()
    counts = tuple(int(rows) for rows in options.rows.split(","))
    torch.manual_seed(int(time.time()))
    begin = time.monotonic()
    wanted = list(products(counts))
    if options.tune:
        jobs = list(
            dict.fromkeys(
                (replace(p, outputs=256), replace_splits(choice)) for p in wanted for choice in p.candidates()
            )
        )
        with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_one, jobs, chunksize=4))
        print(f"{len(jobs)} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    choices = Choices.load(options.tune or CHOICES, torch.cuda.get_device_name(), triton.__version__)
    rows = []
    for product in wanted:
        rows.append(measure(product, choices, options.tune is not None))
        print(rows[-1], flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    for count in counts:
        mine = [row for row in rows if row["rows"] == count]
        total = {name: sum(row[name] for row in mine) for name in ("us", "bf16_us", "fp8_us")}
        print(f"{count:4d} rows, a layer: " + ", ".join(f"{name} {value:.1f}" for name, value in total.items()))
    if options.tune:
        choices.save()
    wrong = [row for row in rows if not row["error"] < TOLERANCE]
    print(f"{time.monotonic() - begin:.0f} s; wrong: {wrong or 'none'}")
    return 1 if wrong else 0


def replace_splits(choice: Choice) -> Choice:
    """Splits are no constant of the kernel."""
    return replace(choice, blocks=tuple((name, 1 if name == "SPLITS" else size) for name, size in choice.blocks))


if __name__ == "__main__":
    sys.exit(main())
