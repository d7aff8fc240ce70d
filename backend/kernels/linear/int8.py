# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""INT8 times INT8 on tensor cores, a scale a row of x and of the weight (W8A8; Xiao et al. 2023, SmoothQuant).

Sums are integers, so they are exact whatever their order: a row of the product has the same bits among any others.
`int8_reference` describes layouts and holds the torch twins.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require, require_rows
from backend.kernels.linear.int8_reference import LARGEST, require_int8


@triton.jit
def _quantize_int8(x_ptr, q_ptr, scale_ptr, width, LARGEST: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    amax = 0.0
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + column, column < width, 0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.max(tl.abs(x), 0))
    scale = tl.maximum(amax / LARGEST, 1e-12)
    tl.store(scale_ptr + row, scale)
    for start in range(0, width, BLOCK):  # the second read comes from L2
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + column, column < width, 0.0).to(tl.float32) / scale
        whole = (x + 12582912.0) - 12582912.0  # to the nearest integer, ties to even: float32 has no room for more
        tl.store(q_ptr + row * width + column, tl.clamp(whole, -LARGEST, LARGEST).to(tl.int8), column < width)


@triton.jit(do_not_specialize=["rows", "splits"])
def _int8_linear(
    x_ptr, x_scale_ptr, weight_ptr, weight_scale_ptr, y_ptr, bias_ptr, rows, outputs, width, splits,
    BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_K)
    real = tl.minimum(n, outputs - 1)
    part = width // (splits * BLOCK_K) * BLOCK_K  # the launcher has seen that this leaves nothing over
    begin = split * part
    weight = weight_ptr + real.to(tl.int64)[:, None] * width + lane[None, :]
    up_weight = weight_ptr + (outputs + real).to(tl.int64)[:, None] * width + lane[None, :]  # gate above, up below
    x_row = x_ptr + m.to(tl.int64)[None, :] * width + lane[:, None]
    inside_x = (m < rows)[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
    if CHAINED:
        cuda.gdc_wait()
    for start in tl.range(begin, begin + part, BLOCK_K):
        x = tl.load(x_row + start, inside_x, 0)
        acc = tl.dot(tl.load(weight + start), x, acc, out_dtype=tl.int32)
        if GATED:
            up = tl.dot(tl.load(up_weight + start), x, up, out_dtype=tl.int32)
    if CHAINED:
        cuda.gdc_launch_dependents()
    by_row = tl.load(x_scale_ptr + m, m < rows, 0.0)[None, :]
    y = acc.to(tl.float32) * (by_row * tl.load(weight_scale_ptr + real)[:, None])
    if GATED:
        y = (
            y
            / (1.0 + tl.exp(-y))
            * (up.to(tl.float32) * (by_row * tl.load(weight_scale_ptr + outputs + real)[:, None]))
        )
    if BIAS:
        y += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)[:, None]
    inside = (n < outputs)[:, None] & inside_x
    tl.store(y_ptr + (split * rows + m).to(tl.int64)[None, :] * outputs + n[:, None], y, inside)


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row by its own largest magnitude, without a zero point.

    Args:
        x: [rows, width], contiguous, float16/bfloat16/float32; finite.
    Returns:
        (int8 [rows, width], -127 to 127, scale float32 [rows, 1]).
    Raises:
        KernelArgumentError: x is not a contiguous matrix.
    """
    rows, width = require_rows("x", x)
    q = torch.empty_like(x, dtype=torch.int8)
    scale = x.new_empty(rows, 1, dtype=torch.float32)
    if rows:
        block = min(8192, triton.next_power_of_2(width))
        _quantize_int8[(rows,)](
            x, q, scale, width, LARGEST=LARGEST, BLOCK=block, num_warps=min(16, max(1, block // 512)), **chained()
        )
    return q, scale


def int8_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    """``linear(x * x_scale, weight * weight_scale, bias)`` in bfloat16.

    Args:
        x, x_scale, weight, weight_scale: see `int8_reference`.
        bias: [outputs].
        gated: the weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with bias.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    rows, width, outputs = require_int8(x, x_scale, weight, weight_scale, bias, gated=gated)
    y = x.new_empty(rows, outputs, dtype=torch.bfloat16)
    tuning.launched(
        _lookup(rows, outputs, width, gated=gated, parts=False),
        partial(_launch, x, x_scale, weight, weight_scale, y, bias, gated),
    )
    return y


def int8_parts(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """`int8_linear`, its columns in parts: float32 [parts, rows, outputs], whose sum is the product."""
    rows, width, outputs = require_int8(x, x_scale, weight, weight_scale)

    def launch(choice: tuning.Choice) -> Tensor:
        y = x.new_empty(dict(choice.blocks)["SPLITS"], rows, outputs, dtype=torch.float32)
        _launch(x, x_scale, weight, weight_scale, y, None, False, choice)
        return y

    return tuning.launched(_lookup(rows, outputs, width, gated=False, parts=True), launch)


def _lookup(rows: int, outputs: int, width: int, *, gated: bool, parts: bool) -> tuning.Lookup:
    padded = min(8192, max(8, triton.next_power_of_2(max(1, rows))))
    kind = "gated" if gated else "parts" if parts else ""
    default = default_choice(padded, outputs, width, gated=gated, parts=parts)
    return tuning.Lookup(
        "int8_linear",
        f"m{padded} n{outputs} k{width} {kind}".strip(),
        default,
        partial(candidates, padded, outputs, width, gated=gated, parts=parts),
    )


def _launch(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, y: Tensor, bias: Tensor | None, gated: bool,
    choice: tuning.Choice,
) -> None:  # fmt: skip
    rows, width = x.shape
    outputs = y.shape[-1]
    arguments = choice.arguments()
    splits = arguments.pop("SPLITS")
    require(width % (splits * arguments["BLOCK_K"]) == 0, f"{choice} does not divide {width} columns")
    if rows == 0:
        return
    grid = (triton.cdiv(outputs, arguments["BLOCK_N"]), splits, triton.cdiv(rows, arguments["BLOCK_M"]))
    _int8_linear[grid](
        x, x_scale, weight, weight_scale, y, bias, rows, outputs, width, splits, BIAS=bias is not None, GATED=gated,
        **arguments, **chained(),
    )  # fmt: skip


def default_choice(padded: int, outputs: int, width: int, *, gated: bool, parts: bool) -> tuning.Choice:
    """As measured on an H200 at the shapes of an 8B model. padded: rows, to a power of two."""
    if padded <= 64:
        block_m, block_n, warps, stages = padded, 64, 4, 4
    elif parts:
        block_m, block_n, warps, stages = 64, 128, 4, 4
    else:
        block_m, block_n, warps, stages = (128, 64, 8, 3) if gated else (128, 128, 8, 3)
    block_k = min(128, width & -width)
    splits, tiles = 1, -(-outputs // block_n) * -(-padded // block_m)
    while parts and splits < 8 and tiles * splits < 264 and width % (2 * splits * block_k) == 0:
        splits *= 2
    return tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, SPLITS=splits)


def candidates(padded: int, outputs: int, width: int, *, gated: bool, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    if padded <= 64:
        tiles = [(padded, 32, 2, 6), (padded, 64, 4, 4), (padded, 64, 4, 6), (padded, 128, 4, 4)]
    else:
        tiles = [(128, 64, 4, 4), (128, 128, 8, 3), (128, 128, 8, 4), (64, 128, 4, 4), (256, 128, 8, 3)]
    return [
        tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=128, SPLITS=splits)
        for block_m, block_n, warps, stages in tiles
        for splits in ((1, 2, 4, 8) if parts else (1,))
        if width % (128 * splits) == 0
    ]
