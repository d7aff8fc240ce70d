# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Product of one row and a large weight, fused with the operations before and after it in a decoder layer.

Decoding a single sequence is reading weights: the time is bytes over bandwidth, and a ramp and a tail for each kernel,
in which no bytes flow. So a layer's small operations ride along. RMSNorm in front is a factor per column, which goes
into x, and one for the row, whose sum of squares is collected on the way and applied at the end; the gate of SwiGLU and
the residual add behind it happen on the accumulator. Weights may be FP8 with a scale per output channel; they widen in
registers, x stays as precise as it was.

No tensor cores: they would want 16 rows and a detour through shared memory. Weights go straight to registers, each
thread sums its own columns, and the threads meet once, at the end. Further rows would read the weights again. The loop
is unrolled and two stretches of weights are always on their way, the first two before x is there.
"""

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, require

MOST_ROWS = 1 << 15
MOST_STEPS = 32  # of the loop, which is unrolled


@triton.jit
def _weights(weight_ptr, n, k, outputs, width, EVEN: tl.constexpr, GATED: tl.constexpr):
    """Columns k of rows n, of up and gate where there is a gate (gate above, up below, `outputs` rows each)."""
    up_ptr = weight_ptr
    if GATED:
        up_ptr += outputs.to(tl.int64) * width
    up = _stretch(up_ptr, n, k, outputs, width, EVEN)
    gate = up
    if GATED:
        gate = _stretch(weight_ptr, n, k, outputs, width, EVEN)
    return up, gate


@triton.jit
def _stretch(weight_ptr, n, k, outputs, width, EVEN: tl.constexpr):
    at = weight_ptr + n[:, None].to(tl.int64) * width + k[None, :]
    # Eight columns a thread, as x has them: sixteen, of FP8, would send x through shared memory, a barrier each time.
    at = tl.max_contiguous(at, [1, 8])
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, (n < outputs)[:, None] & (k < width)[None, :], 0.0, eviction_policy="evict_first")


@triton.jit
def _fold(
    acc, gate_acc, squares, weight, gate_weight, x_ptr, norm_ptr, k, width, NORM: tl.constexpr, GATED: tl.constexpr
):
    """Take in columns k of x and of the weights; each thread sums its own columns."""
    x = tl.load(x_ptr + k, k < width, 0.0).to(tl.float32)
    if NORM:
        squares += x * x
        x *= tl.load(norm_ptr + k, k < width, 0.0).to(tl.float32)
    acc += weight.to(tl.float32) * x[None, :]
    if GATED:
        gate_acc += gate_weight.to(tl.float32) * x[None, :]
    return acc, gate_acc, squares


@triton.jit
def _skinny_linear(
    x_ptr, weight_ptr, y_ptr, norm_ptr, residual_ptr, bias_ptr, scale_ptr, outputs, width, eps,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, STEPS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1)
    lane = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    gate_acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    weight, gate_weight = _weights(weight_ptr, n, lane, outputs, width, EVEN, GATED)  # nobody writes weights
    coming, gate_coming = weight, gate_weight
    if STEPS > 1:
        coming, gate_coming = _weights(weight_ptr, n, BLOCK_K + lane, outputs, width, EVEN, GATED)
    after_predecessors(CHAINED)
    for step in tl.static_range(STEPS):
        acc, gate_acc, squares = _fold(
            acc, gate_acc, squares, weight, gate_weight, x_ptr + row * width, norm_ptr, step * BLOCK_K + lane, width,
            NORM, GATED,
        )  # fmt: skip
        weight, gate_weight = coming, gate_coming
        if step + 2 < STEPS:
            k = (step + 2) * BLOCK_K + lane
            coming, gate_coming = _weights(weight_ptr, n, k, outputs, width, EVEN, GATED)
    inside = n < outputs
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, 0) / width + eps)
    y = tl.sum(acc, 1) * factor
    if SCALED:
        y *= tl.load(scale_ptr + n + (outputs if GATED else 0), inside, 0.0)
    if BIAS:
        y += tl.load(bias_ptr + n, inside, 0.0).to(tl.float32)
    if GATED:
        gate = tl.sum(gate_acc, 1) * factor
        if SCALED:
            gate *= tl.load(scale_ptr + n, inside, 0.0)
        y *= gate / (1.0 + tl.exp(-gate))
    at = row * outputs + n
    if RESIDUAL:
        y += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + at, y, inside)


def skinny_linear(
    x: Tensor, weight: Tensor, *, scale: Tensor | None = None, bias: Tensor | None = None, norm: Tensor | None = None,
    eps: float = 1e-6, residual: Tensor | None = None, gated: bool = False,
) -> Tensor:  # fmt: skip
    """``linear(rms_norm(x, norm), weight, bias) + residual``, each part but the product optional.

    Args:
        x: [rows, width], contiguous, float16/bfloat16/float32; meant for one row.
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
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most, and one is what it is for")
    require(weight.shape[1] == width, f"x is {width} wide, the weight {weight.shape[1]}")
    require((weight.dtype == FP8) == (scale is not None), "an FP8 weight needs a scale, others have none")
    require(weight.dtype in (FP8, x.dtype), f"x is {x.dtype}, the weight {weight.dtype}")
    require(residual is None or (residual.shape == (rows, outputs) and residual.is_contiguous()), "residual must fit y")
    require(not (gated and bias is not None), "a gated product has no bias")
    y = x.new_empty(rows, outputs)
    if rows == 0:
        return y
    kind = (
        ("norm " if norm is not None else "") + ("gated " if gated else "") + str(weight.dtype).removeprefix("torch.")
    )
    lookup = tuning.Lookup(
        "skinny_linear", f"n{outputs} k{width} {kind}",
        default_choice(width, weight.element_size(), norm=norm is not None, gated=gated),
        partial(candidates, width, weight.element_size(), gated),
    )  # fmt: skip

    def launch(choice: tuning.Choice) -> None:
        arguments = choice.arguments()
        even = outputs % arguments["BLOCK_N"] == 0 and width % arguments["BLOCK_K"] == 0
        _skinny_linear[(triton.cdiv(outputs, arguments["BLOCK_N"]), rows)](
            x, weight, y, norm, residual, bias, scale, outputs, width, eps,
            NORM=norm is not None, RESIDUAL=residual is not None, BIAS=bias is not None, SCALED=scale is not None,
            GATED=gated, EVEN=even, STEPS=triton.cdiv(width, arguments["BLOCK_K"]), **arguments, **chained(),
        )  # fmt: skip

    tuning.launched(lookup, launch)
    return y


def default_choice(width: int, item_size: int, *, norm: bool, gated: bool) -> tuning.Choice:
    """As measured on an H200 at the shapes of 0.6B and 8B models, where it is within a few percent of the best."""
    if item_size == 1:
        block_n, block_k, warps = (2, 512, 2) if gated else (4, 1024, 2) if norm or width <= 8192 else (4, 1024, 4)
    elif gated:
        block_n, block_k, warps = (2, 1024, 4) if width > 2048 else (4, 512, 2)
    elif norm:
        block_n, block_k, warps = (4, 2048, 8) if width > 2048 else (4, 512, 2)
    else:
        block_n, block_k, warps = (4, 2048, 8) if width <= 2048 else (2, 1024, 4) if width <= 8192 else (2, 2048, 4)
    block_k = min(max(block_k, triton.next_power_of_2(width) // MOST_STEPS), triton.next_power_of_2(width))
    return tuning.Choice.of(warps, stages=1, BLOCK_N=block_n, BLOCK_K=block_k)


def candidates(width: int, item_size: int, gated: bool) -> list[tuning.Choice]:
    """What is worth timing on a card: each thread holds 16 to 64 bytes of weights at a time, and as many are coming."""
    return [
        tuning.Choice.of(warps, stages=1, BLOCK_N=block_n, BLOCK_K=block_k)
        for block_n in (1, 2, 4, 8)
        for block_k in (512, 1024, 2048, 4096)
        for warps in (2, 4, 8)
        if block_k <= width <= MOST_STEPS * block_k
        and 16 <= block_n * block_k * item_size * (2 if gated else 1) / (32 * warps) <= 64
    ]
