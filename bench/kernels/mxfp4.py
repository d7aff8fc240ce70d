"""Products by experts in MXFP4 at the shapes of gpt-oss-20b: right, and how fast beside their weights in bfloat16.

    python bench/kernels/mxfp4.py OUT.json [--tune CHOICES.json]

Each product is compared with its twin on fresh random inputs, its output poisoned before, then timed in a captured
graph over several routings, whose experts' weights are more than the L2 cache holds. ``--tune`` times all launch
choices at each size of blocks first and keeps the winners.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from backend.kernels.launching import tuning  # noqa: E402
from backend.kernels.launching.tuning import Choice, Choices  # noqa: E402
from backend.kernels.moe import mxfp4, mxfp4_reference, products  # noqa: E402
from backend.kernels.moe.blocks import blocks_by_expert  # noqa: E402
from backend.kernels.moe.mxfp4 import SIZES, block_size  # noqa: E402
from backend.kernels.moe.reference import Blocks  # noqa: E402
from bench.kernels.gpu_check import Forced, machine  # noqa: E402
from bench.kernels.gpu_tune import quick  # noqa: E402

EXPERTS, PER_TOKEN, WIDTH = 32, 4, 2880
TOKENS = (1, 8, 32, 128, 256, 1024, 8192)
GATE = 7.0, 1.702
ROUTINGS = 8
TOLERANCE = 1e-2
CHOICES = ROOT / "backend" / "kernels" / "choices.json"
FAILS = (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError)


@dataclass(frozen=True)
class Weights:
    words: Tensor
    groups: Tensor
    bias: Tensor

    @classmethod
    def random(cls, outputs: int) -> "Weights":
        columns = mxfp4_reference.padded(WIDTH)
        words = torch.randint(-(2**31), 2**31 - 1, (EXPERTS, outputs, columns // 8), dtype=torch.int32, device="cuda")
        groups = torch.randint(115, 121, (EXPERTS, columns // 128, outputs, 4), dtype=torch.uint8, device="cuda")
        bias = torch.randn(EXPERTS, outputs, device="cuda", dtype=torch.bfloat16)
        return cls(words, groups.view(torch.int32)[..., 0].contiguous(), bias)


@dataclass(frozen=True)
class Product:
    """Of so many tokens' pairs in blocks of `size`; gated: the first of the two, else the second."""

    tokens: int
    size: int
    gated: bool

    @property
    def bytes_read(self) -> int:
        """Of the experts that tokens take, each once."""
        taken = EXPERTS * (1 - (1 - PER_TOKEN / EXPERTS) ** self.tokens)
        return round(taken * (2 if self.gated else 1) * WIDTH * WIDTH * (1 / 2 + 1 / 32))

    def inputs(self) -> tuple[Tensor, Tensor | None, list[Blocks]]:
        rows = self.tokens * (1 if self.gated else PER_TOKEN)
        x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        factors = None if self.gated else torch.rand(self.tokens, PER_TOKEN, device="cuda")
        chosen = [torch.rand(self.tokens, EXPERTS, device="cuda").argsort(1)[:, :PER_TOKEN] for _ in range(ROUTINGS)]
        return x, factors, [blocks_by_expert(one.to(torch.int32).contiguous(), EXPERTS, self.size) for one in chosen]

    def run(self, ops: Any, x: Tensor, factors: Tensor | None, weights: Weights, blocks: Blocks) -> Tensor:
        found: Tensor = ops.grouped_mxfp4(
            x,
            weights.words,
            weights.groups,
            weights.bias,
            blocks,
            per_token=PER_TOKEN,
            gate=GATE if self.gated else None,
            factors=factors,
        )
        return found


def every() -> Iterator[Product]:
    for tokens in TOKENS:
        own = block_size(tokens * PER_TOKEN, EXPERTS)
        near = [size for size in SIZES if own // 2 <= size <= own * 2]
        yield from (Product(tokens, size, gated) for size in near for gated in (True, False))


def compile_all(job: tuple[int, bool, list[Choice]]) -> None:
    size, gated, choices = job
    forced = Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    product, weights = Product(1, size, gated), Weights.random(WIDTH * (2 if gated else 1))
    x, factors, blocks = product.inputs()
    for forced.choice in choices:
        try:
            product.run(mxfp4, x, factors, weights, blocks[0])
            torch.cuda.synchronize()
        except FAILS:
            pass  # `tune` passes it over too


def compiled(begin: float) -> None:
    jobs = [
        (size, gated, choices[i::3])
        for size in SIZES
        for gated in (True, False)
        for choices in (mxfp4.candidates(size, gated=gated),)
        for i in range(3)
    ]
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_all, jobs))
    print(f"{sum(len(job[2]) for job in jobs)} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)


def error(product: Product, weights: Weights) -> float:
    """Of a few tokens, against the twin."""
    small = Product(min(product.tokens, 256), product.size, product.gated)
    x, factors, blocks = small.inputs()
    poisoned = torch.full((1 << 26,), float("nan"), device="cuda")  # what the output is made of next
    del poisoned
    found = small.run(mxfp4, x, factors, weights, blocks[0]).double()
    expected = small.run(mxfp4_reference, x, factors, weights, blocks[0]).double()
    return float((found - expected).norm() / expected.norm())


def measure(product: Product, weights: Weights, dense: Tensor, choices: Choices, tuned: bool) -> dict[str, Any]:
    x, factors, blocks = product.inputs()

    def run(i: int) -> Tensor:
        return product.run(mxfp4, x, factors, weights, blocks[i])

    def in_bf16(i: int) -> Tensor:
        return products.grouped_linear(x, dense, blocks[i], per_token=PER_TOKEN, gated=product.gated, factors=factors)

    tuning.use(choices)
    if tuned:
        tune(choices, product, run)
        tuning.use(choices)
    took, beside = timed(product, run), timed(product, in_bf16)
    return {
        "tokens": product.tokens, "block": product.size, "product": "gate_up" if product.gated else "down",
        "us": round(took, 2), "bf16_us": round(beside, 2), "GB/s": round(product.bytes_read / took / 1e3),
        "error": error(product, weights),
    }  # fmt: skip


def timed(product: Product, run: Callable[[int], Any]) -> float:
    return quick(run, ROUTINGS, max(product.bytes_read, 15_000_000 * product.tokens // 256, 1))


def tune(choices: Choices, product: Product, run: Callable[[int], Any]) -> None:
    forced = Forced()
    tuning.use(Choices("candidates", known=forced, strict=True))
    run(0)

    def taken(choice: Choice) -> float | None:
        forced.choice = choice
        try:
            return timed(product, run)
        except FAILS:
            return None

    if forced.asked not in choices.known or product.size == block_size(product.tokens * PER_TOKEN, EXPERTS):
        choices.tune(forced.asked, mxfp4.candidates(product.size, gated=product.gated), taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tune", type=Path, help="time the candidates and keep the winners here")
    options = parser.parse_args()
    torch.manual_seed(int(time.time()))
    begin = time.monotonic()
    if options.tune:
        compiled(begin)
    choices = Choices.load(options.tune or CHOICES, torch.cuda.get_device_name(), triton.__version__)
    weights = {gated: Weights.random(WIDTH * (2 if gated else 1)) for gated in (True, False)}
    dense = {
        gated: torch.randn(EXPERTS, len(it.words[0]), WIDTH, device="cuda", dtype=torch.bfloat16)
        for gated, it in weights.items()
    }
    rows = []
    for product in every():
        gated = product.gated
        rows.append(measure(product, weights[gated], dense[gated], choices, options.tune is not None))
        print(rows[-1], flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    if options.tune:
        choices.save()
    wrong = [row for row in rows if not row["error"] < TOLERANCE]
    print(f"{time.monotonic() - begin:.0f} s; wrong: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
