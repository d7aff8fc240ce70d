"""Kernels run compiled where there is a GPU, and in Triton's interpreter where there is none.

Three defects of the interpreter (Triton 3.6 to 3.8) are corrected or avoided here. It multiplies bfloat16 as if it were
integers, so bfloat16 is tested on a GPU only. Its FP8 rounding drops a carry out of the mantissa (7.9 becomes 4), so
torch converts FP8 in its place. Its `tl.dot` is numpy's matmul, that is the processor's BLAS, whose result for a row
depends on the row's place in the tile on some processors (OpenBLAS's Haswell and Zen kernels), so a sum in fixed order
takes its place.
"""

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = not torch.cuda.is_available()
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated: before any test module imports one
    # Triton decorates its own library on import, and tests collected earlier may have had it imported (transformers
    # does): then it has to come again. Its compiled part can be loaded only once, and stays.
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "triton" and not name.startswith("triton._C")
    ]:
        del sys.modules[name]

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def device() -> torch.device:
    return DEVICE


@pytest.fixture(autouse=True)
def fresh_random_numbers() -> None:
    """Inputs differ from run to run; a failure prints the seed that brings them back."""
    seed = int(os.environ.get("KERNEL_TEST_SEED") or torch.seed() % 2**31)
    torch.manual_seed(seed)
    print(f"KERNEL_TEST_SEED={seed}")  # shown for a failed test alone


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher asks for arrives full of NaN, so that an element no kernel wrote shows itself."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        allocate = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _allocate=allocate, **k: poison(_allocate(*a, **k)))


@pytest.fixture
def sparse_memory(device: torch.device) -> Callable[[int, torch.dtype], torch.Tensor]:
    """Zeros of any length that take no memory until they are written: offsets beyond 2**31 can be tested."""

    def reserve(elements: int, dtype: torch.dtype) -> torch.Tensor:
        if device.type == "cuda":
            return torch.zeros(elements, dtype=dtype, device=device)
        size = elements * dtype.itemsize
        flags = (
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        )  # named from Python 3.13 on
        return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype)

    return reserve


def poison(memory: torch.Tensor) -> torch.Tensor:
    if memory.dtype.itemsize == 1:
        memory.view(torch.uint8).fill_(0x7F)  # NaN of e4m3fn
    else:
        memory.fill_(float("nan") if memory.is_floating_point() else torch.iinfo(memory.dtype).max)
    return memory


@pytest.fixture(autouse=True)
def arithmetic_of_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FP8 rounds as on a GPU, an overflow to infinity is as silent, and a dot depends on its row and column only."""
    if INTERPRETED:
        from triton.runtime import interpreter

        monkeypatch.setattr(interpreter, "_convert_float", _through_torch(interpreter._convert_float))
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot_in_fixed_order)
    with np.errstate(all="ignore"):
        yield


def dot_in_fixed_order(a: np.ndarray, b: np.ndarray, accumulator: np.ndarray) -> np.ndarray:
    """``accumulator + a @ b``, whose elements depend on their row of `a`, column of `b` and accumulator only.

    a: [..., m, k]. b: [..., k, n]. accumulator: [..., m, n]; its dtype is that of the sum. One term after the other,
    with numpy's elementwise product and sum, which round each element alone on every processor.
    """
    total = np.zeros_like(accumulator)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None].astype(total.dtype) * b[..., k, None, :].astype(total.dtype)
    return total + accumulator


def _dot_in_fixed_order(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """In place of `InterpreterBuilder.create_dot`."""
    import triton.language as tl
    from triton.runtime import interpreter

    operands = []
    for handle in (a, b):
        narrow = handle.dtype.primitive_bitwidth == 8 and handle.dtype.is_floating()
        operands.append(
            interpreter._convert_float(handle.data, handle.dtype, tl.float16, None).view(np.float16)
            if narrow
            else handle.data
        )
    return interpreter.TensorHandle(dot_in_fixed_order(*operands, d.data), d.dtype.scalar)


def _through_torch(original: Any) -> Any:
    widths = {"fp8e4nv": torch.float8_e4m3fn, "fp16": torch.float16, "fp32": torch.float32}

    def convert(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if "fp8e4nv" not in (source.name, target.name):
            return original(values, source, target, rounding)
        integers = {1: np.uint8, 2: np.int16, 4: np.int32}
        bits = torch.from_numpy(np.ascontiguousarray(values).view(integers[values.dtype.itemsize]))
        out = bits.view(widths[source.name]).to(widths[target.name])
        return out.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[out.itemsize]).numpy().reshape(values.shape)

    return convert
