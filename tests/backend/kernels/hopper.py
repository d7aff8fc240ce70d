"""Compile the kernels for a card where there is no GPU; run as a script, it prints one JSON line a compiled kernel.

    python -m tests.backend.kernels.hopper [--sample SEED] [--known FILE] [--write FILE] [--target 89]

With ``--sample SEED`` it compiles of each kernel the first variant and a few of the others.

What the compiler makes of a variant depends on nothing but the source of the kernel and of what it calls, the types and
constants it is called with, and the versions of Triton and of its assembler: `digest` is of all these. With ``--known
FILE`` a variant whose digest is in FILE is not compiled: its line is that of FILE, with ``known`` set. ``--write FILE``
keeps the lines for that.

Triton brings its own assembler and needs a card only to be told what to compile for. Here it is told, and launches stop
after compilation; tensors on the meta device stand for those of any size. A launch that needs more shared memory than
the card has fails as it would there, so that what is launched in its place is compiled too: its line has ``too_large``.
What the target does not compile is a line with ``refused``.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler.errors import CompilationError
from triton.runtime import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITCallable, JITFunction

from backend.kernels.collectives.peer_norm import PeerMemory, peer_add_rms_norm, peer_add_rms_norm_fp8
from backend.kernels.launching.launch import FP8
from bench.kernels.attention import decode_case, prefill_case
from bench.kernels.case import Case, Shape
from bench.kernels.run import cases

CAP = 50.0  # Gemma 2's
OTHERS = 0.06
"""The share of launches behind the first of a kernel that a sample compiles."""
PACKAGE = Path(triton.__file__).parent
HOPPER = 90
SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of a block, by compute capability (CUDA programming guide, technical specifications)."""
ALWAYS = "_silu_mul"
"""The kernel that is compiled although its digest is known: what is kept is what the compiler says."""


class AbsentCard:
    """As much of a driver as compilation asks for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

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


def sums_over_cards() -> Iterator[Case]:
    """Of two cards and of four, which a benchmark on one cannot run."""
    meta = torch.device("meta")

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=meta)

    for cards, width, parts in ((2, 4096, 1), (2, 8192, 1), (2, 8192, 4), (2, 2048, 8), (4, 8192, 1)):
        memory = PeerMemory(
            (empty(2 * 256 * width),) * cards,
            (empty(256, cards, dtype=torch.int32),) * cards,
            empty(256, dtype=torch.int32),
            cards - 1,
        )
        own = empty(32, width) if parts == 1 else empty(parts, 32, width, dtype=torch.float32)
        arguments = own, empty(32, width), empty(width), 1e-5, memory
        for name, launch in (("", peer_add_rms_norm), (" fp8", peer_add_rms_norm_fp8)):

            def run(_: int, launch: Any = launch, arguments: Any = arguments) -> Any:
                return launch(*arguments)

            yield Case(f"peer_norm x{cards} w{width} p{parts}{name}", 1, 0, run, run, 0)


@cache
def assembler() -> str:
    """Its version."""
    return subprocess.run([get_ptxas(HOPPER).path, "--version"], capture_output=True, text=True, check=True).stdout


def digest(kernel: JITFunction, key: str, signature: Any, constants: Any, options: Any, attributes: Any) -> str:
    """Of all that the compiled kernel depends on. The place of the source is left out: it makes no difference."""
    parts = (triton.__version__, assembler(), kernel.cache_key, key, signature, constants, options, attributes)
    return sha256(repr(parts).replace(str(PACKAGE), "").encode()).hexdigest()[:32]


def facts(name: str, kernel: Any, target: int) -> dict[str, Any]:
    """What the assembler says of a compiled kernel."""
    arch = sm_arch_from_capability(target)
    report = subprocess.run(
        [get_ptxas(target).path, "-v", f"--gpu-name={arch}", "-o", "/dev/null", "/dev/stdin"],
        input=kernel.asm["ptx"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    registers, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
    assert registers and spilled, report
    return {
        "kernel": name,
        "registers": int(registers[1]),
        "spilled": int(spilled[1]),
        "shared": kernel.metadata.shared,
        "threads": kernel.metadata.num_warps * 32,
        "tensor_cores": any(each in kernel.asm["ptx"] for each in ("wgmma.mma_async", "mma.sync", "tcgen05.mma")),
    }


class Compiler:
    """Stands in the place of `JITFunction.run` and `_do_compile`: compiles what the sample draws and is not known."""

    def __init__(self, seed: str | None, known: dict[str, dict[str, Any]], target: int = HOPPER) -> None:
        self._every, self._target = seed is None, target
        self._chance = random.Random(seed)
        self._known = known
        self._launch, self._compile = JITFunction.run, JITFunction._do_compile
        self._first: dict[Any, Any] = {}
        self._said: set[str] = set()
        self.found: list[dict[str, Any]] = []

    def install(self) -> None:
        driver.set_active(AbsentCard(self._target))
        JITCallable.starting_line_number = property(lambda _: 0, lambda *_: None)
        JITFunction.run = lambda kernel, *args, **more: self._run(kernel, *args, **more)
        JITFunction._do_compile = lambda kernel, *args: self._done(kernel, *args)

    def _run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **more: Any) -> Any:
        if not self._every and kernel in self._first and self._chance.random() >= OTHERS:
            return self._first[kernel]
        made = self._first[kernel] = self._launch(kernel, *args, grid=grid, warmup=True, **more)
        return made

    def _done(
        self, kernel: Any, key: str, signature: Any, device: int, constants: Any, options: Any, *more: Any
    ) -> Any:
        name, it = kernel.fn.__name__, digest(kernel, key, signature, constants, options, more[0])
        if it in self._said:
            return object()
        self._said.add(it)
        if it in self._known and name != ALWAYS:
            self.found.append({**self._known[it], "known": True})
            self._require_room(it, self._known[it].get("too_large", 0))
            return object()
        try:
            made = self._compile(kernel, key, signature, device, constants, options, *more)
        except CompilationError as error:
            self.found.append({"digest": it, "kernel": name, "refused": str(error).rpartition("\n")[2]})
            return object()
        found = facts(name, made, self._target)
        if found["shared"] > SHARED_MEMORY[self._target] * 1024:
            self.found.append({"digest": it, "kernel": name, "too_large": found["shared"]})
            self._require_room(it, found["shared"])
        self.found.append({"digest": it, **found})
        return made

    def _require_room(self, digest: str, shared: int) -> None:
        if shared > SHARED_MEMORY[self._target] * 1024:
            self._said.discard(digest)  # asked for again, it fails again
            raise OutOfResources(shared, SHARED_MEMORY[self._target] * 1024, "shared memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", help="seed of the sample; by default every variant is compiled")
    parser.add_argument("--known", type=Path, help="lines of variants that need not be compiled again")
    parser.add_argument("--write", type=Path, help="keep the lines of this run here")
    parser.add_argument("--target", type=int, choices=sorted(SHARED_MEMORY), default=HOPPER, help="compute capability")
    options = parser.parse_args()
    lines = options.known.read_text().splitlines() if options.known and options.known.exists() else []
    known = {line["digest"]: line for line in map(json.loads, lines)}
    compiler = Compiler(options.sample, known, options.target)
    compiler.install()
    kept = []
    for source in (cases(torch.device("meta")), other_shapes(), sums_over_cards()):
        for case in source:
            case.run(0)
            for found in compiler.found:  # what making the case compiled is among it
                kept.append({name: value for name, value in found.items() if name != "known"})
                print(json.dumps({"case": case.name, **found}), flush=True)
            compiler.found.clear()
    if options.write:
        options.write.write_text("".join(json.dumps(line) + "\n" for line in kept))


if __name__ == "__main__":
    sys.exit(main())
