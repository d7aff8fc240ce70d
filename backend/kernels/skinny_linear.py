# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""A few rows times a large weight, with what stands before and after it in a decoder layer.

Decoding a small batch is reading weights: the time is bytes over bandwidth, plus a ramp and a tail for every kernel, in
which no bytes flow. So a layer's small operations ride along. RMSNorm in front is a factor per column, which goes into
x, and one per row, whose sum of squares is collected on the way and applied at the end; the gate of SwiGLU and the
residual add behind it happen on the accumulator. Weights may be FP8 with a scale per output channel; they widen in
registers, x stays as precise as it was.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels import tuning
from backend.kernels.launch import FP8, require

MOST_ROWS = 64


@triton.jit
def _product(x, weight_ptr, acc, n, k, outputs, width, BLOCK_N: tl.constexpr, EVEN: tl.constexpr):
    """acc + x @ weight[n, k]ᵀ"""
    at = weight_ptr + n[None, :].to(tl.int64) * width + k[:, None]
    if EVEN:
        weight = tl.load(at, eviction_policy="evict_first")
    else:
        weight = tl.load(at, (n < outputs)[None, :] & (k < width)[:, None], 0.0, eviction_policy="evict_first")
    return tl.dot(x, weight.to(x.dtype), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["rows"])
def _skinny_linear(
    x_ptr, weight_ptr, y_ptr, norm_ptr, residual_ptr, bias_ptr, scale_ptr, rows, outputs, width, eps,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, BLOCK_K)
    real = (row < rows)[:, None]
    acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
    gate_acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    up_ptr = weight_ptr
    if GATED:  # gate above, up below, `outputs` rows each
        up_ptr += outputs.to(tl.int64) * width
    for start in tl.range(0, width, BLOCK_K):
        k = start + lane
        x = tl.load(x_ptr + row[:, None] * width + k[None, :], real & (k < width)[None, :], 0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            x = (wide * tl.load(norm_ptr + k, k < width, 0.0).to(tl.float32)[None, :]).to(x.dtype)
        acc = _product(x, up_ptr, acc, n, k, outputs, width, BLOCK_N, EVEN)
        if GATED:
            gate_acc = _product(x, weight_ptr, gate_acc, n, k, outputs, width, BLOCK_N, EVEN)
    inside = n < outputs
    if SCALED:
        acc *= tl.load(scale_ptr + n + (outputs if GATED else 0), inside, 0.0)[None, :]
        if GATED:
            gate_acc *= tl.load(scale_ptr + n, inside, 0.0)[None, :]
    if NORM:
        factor = tl.rsqrt(squares / width + eps)[:, None]
        acc *= factor
        gate_acc *= factor
    if BIAS:
        acc += tl.load(bias_ptr + n, inside, 0.0).to(tl.float32)[None, :]
    if GATED:
        acc *= gate_acc / (1.0 + tl.exp(-gate_acc))
    at = row[:, None].to(tl.int64) * outputs + n[None, :]
    if RESIDUAL:
        acc += tl.load(residual_ptr + at, real & inside[None, :], 0.0).to(tl.float32)
    tl.store(y_ptr + at, acc, real & inside[None, :])


def skinny_linear(
    x: Tensor, weight: Tensor, *, scale: Tensor | None = None, bias: Tensor | None = None, norm: Tensor | None = None,
    eps: float = 1e-6, residual: Tensor | None = None, gated: bool = False,
) -> Tensor:  # fmt: skip
    """``linear(rms_norm(x, norm), weight, bias) + residual``, each part but the product optional.

    Args:
        x: [rows ≤ 64, width], contiguous, float16/bfloat16/float32.
        weight: [outputs, width], contiguous; x's dtype, or float8_e4m3fn with ``scale``.
        scale: [outputs, 1] float32 of an FP8 weight; weight ≈ fp8 * scale.
        bias: [outputs].
        norm, eps: RMSNorm's weight, [width], and epsilon.
        residual: [rows, outputs], contiguous.
        gated: weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with bias.
    Returns:
        [rows, outputs] in x's dtype; accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    require(x.dim() == 2 and x.is_contiguous() and weight.dim() == 2 and weight.is_contiguous(), "contiguous matrices")
    rows, width = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most")
    require(weight.shape[1] == width, f"x is {width} wide, the weight {weight.shape[1]}")
    require((weight.dtype == FP8) == (scale is not None), "an FP8 weight needs a scale, others have none")
    require(weight.dtype in (FP8, x.dtype), f"x is {x.dtype}, the weight {weight.dtype}")
    require(residual is None or (residual.shape == (rows, outputs) and residual.is_contiguous()), "residual must fit y")
    require(not (gated and bias is not None), "a gated product has no bias")
    y = x.new_empty(rows, outputs)
    if rows == 0:
        return y
    padded = max(16, triton.next_power_of_2(rows))
    kind = (
        ("norm " if norm is not None else "") + ("gated " if gated else "") + str(weight.dtype).removeprefix("torch.")
    )
    choice = tuning.choice(
        "skinny_linear", f"m{padded} n{outputs} k{width} {kind}",
        default_choice(padded, outputs, width, gated, weight.element_size(), x.element_size()),
    )  # fmt: skip
    arguments = choice.arguments()
    even = outputs % arguments["BLOCK_N"] == 0 and width % arguments["BLOCK_K"] == 0
    _skinny_linear[(triton.cdiv(outputs, arguments["BLOCK_N"]),)](
        x, weight, y, norm, residual, bias, scale, rows, outputs, width, eps,
        NORM=norm is not None, RESIDUAL=residual is not None, BIAS=bias is not None, SCALED=scale is not None,
        GATED=gated, EVEN=even, ROWS=padded, **arguments,
    )  # fmt: skip
    return y


def default_choice(rows: int, outputs: int, width: int, gated: bool, weight_size: int, x_size: int) -> tuning.Choice:
    """Two programs or so a multiprocessor, each with 16 to 32 KiB of weights on their way."""
    if x_size == 4:
        return tuning.Choice.of(warps=4, stages=2, BLOCK_N=16, BLOCK_K=32)
    block_n = 8 if outputs <= 2048 else 16 if outputs <= 8192 else 32
    block_n = max(8, block_n // 2) if gated else block_n
    block_k = min(256 if weight_size == 2 else 512, triton.next_power_of_2(width))
    return tuning.Choice.of(warps=4, stages=4 if rows <= 16 else 3, BLOCK_N=block_n, BLOCK_K=block_k)


def candidates(rows: int, weight_size: int, gated: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    return [
        tuning.Choice.of(warps, stages, BLOCK_N=block_n, BLOCK_K=block_k)
        for block_n in (8, 16, 32, 64)
        for block_k in (64, 128, 256, 512)
        for warps in (2, 4, 8)
        for stages in (3, 4, 6)
        if 12_000 <= block_n * block_k * weight_size * (stages - 1) * (2 if gated else 1) <= 100_000
        and block_k * (block_n * weight_size * (2 if gated else 1) + 2 * rows) * stages <= 200_000
    ]
