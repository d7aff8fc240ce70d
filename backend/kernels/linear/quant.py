# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Symmetric FP8 (e4m3fn) quantisation, one float32 scale a row.

A row of activations is a token (dynamic, per token); a row of a weight [out, in] is an output channel. So one kernel
serves W8A8 with per-token and per-channel scales, the form that `torch.nn.functional.scaled_mm` multiplies row-wise.
Format: Micikevicius et al. 2022, "FP8 formats for deep learning".
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, require_rows

SMALLEST_SCALE = 1e-12  # a row of zeros quantises to zeros, not to 0/0


@triton.jit
def row_scale(amax, FP8_MAX: tl.constexpr):
    """Scale that maps the row's largest magnitude to the largest FP8 value."""
    return tl.maximum(amax / FP8_MAX, 1e-12)


@triton.jit
def _quantize_rows(x_ptr, q_ptr, scale_ptr, width, FP8_MAX: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    base = row * width
    amax = 0.0
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + col, col < width, 0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.max(tl.abs(x), 0))
    scale = row_scale(amax, FP8_MAX)
    tl.store(scale_ptr + row, scale)
    for start in range(0, width, BLOCK):  # the second read comes from L2
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + col, col < width, 0.0).to(tl.float32)
        tl.store(q_ptr + base + col, tl.clamp(x / scale, -FP8_MAX, FP8_MAX), col < width)


@triton.jit
def _quantize_whole_rows(
    x_ptr, q_ptr, scale_ptr, width, FP8_MAX: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    """A row that fits into a program's registers: read once."""
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + col, col < width, 0.0).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(x), 0), FP8_MAX)
    tl.store(scale_ptr + row, scale)
    tl.store(q_ptr + row * width + col, tl.clamp(x / scale, -FP8_MAX, FP8_MAX), col < width)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row by its own largest magnitude.

    Args:
        x: [rows, width], contiguous, float16/bfloat16/float32; finite.
    Returns:
        (float8_e4m3fn [rows, width], scale float32 [rows, 1]); ``x ≈ fp8 * scale``.
    Raises:
        KernelArgumentError: x is not a contiguous matrix.
    """
    rows, width = require_rows("x", x)
    q = torch.empty_like(x, dtype=FP8)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        whole = triton.next_power_of_2(width)
        kernel, block = (_quantize_whole_rows, whole) if whole <= 16384 else (_quantize_rows, 8192)
        kernel[(rows,)](
            x,
            q,
            scale,
            width,
            FP8_MAX=FP8_MAX,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
            **chained(),
        )
    return q, scale
