# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""SwiGLU's gate: ``silu(gate) * up`` (Shazeer 2020), and the same quantised to FP8 for the down projection."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, require, require_rows
from backend.kernels.linear.quant import row_scale


@triton.jit
def _gated(gate_up_ptr, row, col, width):
    """silu(gate) * up in float32 at `col` of `row`; zero outside the row."""
    at = row * 2 * width + col
    gate = tl.load(gate_up_ptr + at, col < width, 0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + width, col < width, 0.0).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _silu_mul(
    gate_up_ptr, y_ptr, width, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + row * width + col, _gated(gate_up_ptr, row, col, width), col < width)


@triton.jit
def _silu_mul_fp8_row(
    gate_up_ptr, q_ptr, scale_ptr, width, FP8_MAX: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """A row that fits into a program's registers: read once."""
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    y = _gated(gate_up_ptr, row, col, width)
    scale = row_scale(tl.max(tl.abs(y), 0), FP8_MAX)
    tl.store(scale_ptr + row, scale)
    tl.store(q_ptr + row * width + col, tl.clamp(y / scale, -FP8_MAX, FP8_MAX), col < width)


@triton.jit
def _silu_mul_fp8(
    gate_up_ptr, q_ptr, scale_ptr, width, FP8_MAX: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    amax = 0.0
    for start in range(0, width, BLOCK):
        y = _gated(gate_up_ptr, row, start + tl.arange(0, BLOCK), width)
        amax = tl.maximum(amax, tl.max(tl.abs(y), 0))
    scale = row_scale(amax, FP8_MAX)
    tl.store(scale_ptr + row, scale)
    for start in range(0, width, BLOCK):  # computed twice: cheaper than a trip through memory
        col = start + tl.arange(0, BLOCK)
        y = _gated(gate_up_ptr, row, col, width)
        tl.store(q_ptr + row * width + col, tl.clamp(y / scale, -FP8_MAX, FP8_MAX), col < width)


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate_up[:, :width]) * gate_up[:, width:]``.

    Args:
        gate_up: [tokens, 2 * width], contiguous, float16/bfloat16/float32.
    Returns:
        [tokens, width] in gate_up's dtype.
    Raises:
        KernelArgumentError: not a contiguous matrix, or of odd width.
    """
    tokens, width = _split(gate_up)
    y = gate_up.new_empty(tokens, width)
    if tokens:
        block = min(2048, triton.next_power_of_2(width))
        grid = (tokens, triton.cdiv(width, block))
        _silu_mul[grid](gate_up, y, width, BLOCK=block, num_warps=min(8, max(1, block // 256)), **chained())
    return y


def silu_mul_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`silu_mul`, quantised: (float8_e4m3fn [tokens, width], scale float32 [tokens, 1]), value = fp8 * scale."""
    tokens, width = _split(gate_up)
    q = gate_up.new_empty(tokens, width, dtype=FP8)
    scale = gate_up.new_empty(tokens, 1, dtype=torch.float32)
    if tokens:
        whole = triton.next_power_of_2(width)
        kernel, block = (_silu_mul_fp8_row, whole) if whole <= 16384 else (_silu_mul_fp8, 8192)
        kernel[(tokens,)](
            gate_up,
            q,
            scale,
            width,
            FP8_MAX=FP8_MAX,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
            **chained(),
        )
    return q, scale


def _split(gate_up: Tensor) -> tuple[int, int]:
    tokens, both = require_rows("gate_up", gate_up)
    require(both % 2 == 0, f"gate_up holds gate and up side by side; its width {both} is odd")
    return tokens, both // 2
