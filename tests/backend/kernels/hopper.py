"""Compile the kernels for Hopper where there is no GPU; run as a script, it prints one JSON line a compiled kernel.

With ``--sample SEED`` it compiles of each kernel the first variant and a few of the others.

Triton brings its own assembler and needs a card only to be told what to compile for. Here it is told, and launches stop
after compilation; tensors on the meta device stand for those of any size.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from backend.kernels.launching.launch import FP8
from bench.kernels.attention import decode_case, prefill_case
from bench.kernels.case import Case, Shape
from bench.kernels.run import cases

CAP = 50.0  # Gemma 2's
OTHERS = 0.06
"""The share of launches behind the first of a kernel that a sample compiles."""
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


class AbsentHopper:
    """As much of a driver as compilation asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def other_shapes() -> Iterator[Case]:
    """Head sizes and groups beside those of the models in `cases`."""
    meta = torch.device("meta")
    for q_heads, kv_heads, head_dim in ((9, 3, 64), (4, 4, 80), (8, 1, 96), (8, 2, 256)):
        shape = Shape(f"q{q_heads} kv{kv_heads} d{head_dim}", 576, q_heads, kv_heads, head_dim, 1536, 32000, False)
        yield decode_case(shape, 4, 1024, 1, torch.bfloat16, torch.bfloat16, meta)
        yield prefill_case(shape, 512, 0, 2, torch.bfloat16, torch.bfloat16, meta)
    for name, q_heads, kv_heads, head_dim in (("2b", 8, 4, 256), ("27b", 32, 16, 128)):
        shape = Shape(f"gemma-2-{name}", 2304, q_heads, kv_heads, head_dim, 9216, 256000, False)
        for cache_dtype in (torch.bfloat16, FP8):
            for sequences in (1, 256):
                yield decode_case(shape, sequences, 1024, 1, torch.bfloat16, cache_dtype, meta, cap=CAP)
            yield prefill_case(shape, 512, 512, 2, torch.bfloat16, cache_dtype, meta, cap=CAP)


def compiled(case: Case, launches: list[Any]) -> Iterator[dict[str, Any]]:
    launches.clear()
    case.run(0)
    for name, kernel in launches:
        report = subprocess.run(
            [PTXAS, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "/dev/stdin"],
            input=kernel.asm["ptx"], capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        registers, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
        assert registers and spilled, report
        yield {
            "case": case.name,
            "kernel": name,
            "registers": int(registers[1]),
            "spilled": int(spilled[1]),
            "shared": kernel.metadata.shared,
            "threads": kernel.metadata.num_warps * 32,
            "tensor_cores": "wgmma.mma_async" in kernel.asm["ptx"] or "mma.sync" in kernel.asm["ptx"],
        }


def main(seed: str | None) -> None:
    driver.set_active(AbsentHopper())
    launches: list[Any] = []
    seen: set[str] = set()
    first: dict[Any, Any] = {}
    chance = random.Random(seed)
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if seed is not None and self in first and chance.random() >= OTHERS:
            return first[self]
        kernel = first[self] = launch(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            launches.append((self.fn.__name__, kernel))
        return kernel

    JITFunction.run = compile_only
    for source in (cases(torch.device("meta")), other_shapes()):
        for case in source:
            for found in compiled(case, launches):
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--sample"] else None))
