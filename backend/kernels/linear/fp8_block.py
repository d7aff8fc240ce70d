# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""FP8 in blocks (DeepSeek-AI 2024, section 3.3): quantising activations in groups of 128 columns, and the products by
weights with a scale for each 128 outputs × 128 columns.

`fp8_block_reference` describes layouts and holds the torch twins. Tensor cores multiply a group of 128 columns; its sum
is multiplied by both scales and added in float32, which is also what keeps the sum precise, for Hopper's FP8 units add
up in fewer bits than float32 has. Weights are the left operand, as in `narrow`, for any number of rows: a row of x only
fills a column of the tile. Tiles of a strip of rows run one after another, so that a strip of x and the weights that it
meets stay in the L2 cache.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, require, require_rows
from backend.kernels.linear import rms_norm
from backend.kernels.linear.fp8_block_reference import GROUP, require_blocks
from backend.kernels.linear.quant import row_scale

INVARIANT = tuning.Choice.of(4, 3, BLOCK_M=64, BLOCK_N=64, SPLITS=1, STRIP=8)
GROUPS_OF_PROGRAM = 8  # that a program quantises


@triton.jit
def _quantize_groups(
    x_ptr, q_ptr, scale_ptr, groups, GATED: tl.constexpr, FP8_MAX: tl.constexpr, GROUPS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """GATED: of silu(gate) * up, which lie side by side in a row of x."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = (group < groups)[:, None]
    after_predecessors(CHAINED)
    width = groups * 128
    if GATED:
        at = x_ptr + row * 2 * width + column
        gate = tl.load(at, inside, 0.0).to(tl.float32)
        x = gate / (1.0 + tl.exp(-gate)) * tl.load(at + width, inside, 0.0).to(tl.float32)
    else:
        x = tl.load(x_ptr + row * width + column, inside, 0.0).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(x), 1), FP8_MAX)
    tl.store(scale_ptr + group * tl.num_programs(0) + row, scale, group < groups)
    tl.store(q_ptr + row * width + column, tl.clamp(x / scale[:, None], -FP8_MAX, FP8_MAX), inside)


@triton.jit
def _tile_of(tile, down, across, STRIP: tl.constexpr):
    """(tile of rows, tile of outputs): strips of STRIP tiles of rows, each from the first output to the last."""
    strip = tile // (STRIP * across)
    height = tl.minimum(down - strip * STRIP, STRIP)
    place = tile - strip * STRIP * across
    return strip * STRIP + place % height, place // height


@triton.jit(do_not_specialize=["rows", "splits"])
def _fp8_block_linear(
    x_ptr, x_scale_ptr, weight_ptr, weight_scale_ptr, y_ptr, bias_ptr, rows, outputs, groups, splits,
    SPAN: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STRIP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    m_tile, n_tile = _tile_of(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(outputs, BLOCK_N), STRIP)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, 128)
    real = tl.minimum(n, outputs - 1)
    begin = split * (groups // splits)  # the launcher has seen that this leaves nothing over
    width = groups * 128
    weight = weight_ptr + real.to(tl.int64)[:, None] * width + lane[None, :]
    up_weight = weight_ptr + (outputs + real).to(tl.int64)[:, None] * width + lane[None, :]  # gate above, up below
    scale = weight_scale_ptr + (real // SPAN) * groups
    up_scale = weight_scale_ptr + ((outputs + real) // SPAN) * groups
    x_row = x_ptr + m.to(tl.int64)[None, :] * width + lane[:, None]
    inside_x = m < rows
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if CHAINED:
        cuda.gdc_wait()
    for group in tl.range(begin, begin + groups // splits):
        x = tl.load(x_row + group * 128, inside_x[None, :], 0.0)
        by_row = tl.load(x_scale_ptr + group * rows + m, inside_x, 0.0)[None, :]
        part = tl.dot(tl.load(weight + group * 128), x)
        acc += part * (tl.load(scale + group)[:, None] * by_row)
        if GATED:
            part = tl.dot(tl.load(up_weight + group * 128), x)
            up += part * (tl.load(up_scale + group)[:, None] * by_row)
    if CHAINED:
        cuda.gdc_launch_dependents()
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if BIAS:
        acc += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)[:, None]
    inside = (n < outputs)[:, None] & inside_x[None, :]
    tl.store(y_ptr + (split * rows + m).to(tl.int64)[None, :] * outputs + n[:, None], acc, inside)


def quantize_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row's groups of 128 columns by their own largest magnitude.

    Args:
        x: [rows, width], contiguous, float16/bfloat16/float32; finite; width a multiple of 128.
    Returns:
        (float8_e4m3fn [rows, width], scale float32 [width / 128, rows]).
    Raises:
        KernelArgumentError: x is not such a matrix.
    """
    return _quantised(x, gated=False)


def silu_mul_groups(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_groups` of ``silu(gate) * up``. gate_up: [rows, 2 * width], gate before up."""
    return _quantised(gate_up, gated=True)


def _quantised(x: Tensor, *, gated: bool) -> tuple[Tensor, Tensor]:
    rows, width = require_rows("x", x)
    width = width // 2 if gated else width
    require(width % GROUP == 0 and x.shape[1] == width * (1 + gated), f"a width of {width} is no multiple of {GROUP}")
    groups = width // GROUP
    q = x.new_empty(rows, width, dtype=FP8)
    scale = x.new_empty(groups, rows, dtype=torch.float32)
    if rows and groups:
        block = min(GROUPS_OF_PROGRAM, triton.next_power_of_2(groups))
        _quantize_groups[(rows, triton.cdiv(groups, block))](
            x, q, scale, groups, GATED=gated, FP8_MAX=FP8_MAX, GROUPS=block, num_warps=max(1, block // 2), **chained()
        )
    return q, scale


def rms_norm_groups(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`rms_norm.rms_norm`, quantised as by `quantize_groups` without being rounded before."""
    y, scale = _groups_like(x)
    rms_norm.launch(x, None, weight, eps, y, None, scale)
    return y, scale


def add_rms_norm_groups(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`rms_norm.add_rms_norm`, likewise: (float8_e4m3fn, scale, new residual in residual's dtype)."""
    h = torch.empty_like(residual)
    y, scale = _groups_like(residual)
    rms_norm.launch(x, residual, weight, eps, y, h, scale, scales)
    return y, scale, h


def _groups_like(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = require_rows("x", x)
    require(width % GROUP == 0, f"a width of {width} is no multiple of {GROUP}")
    return torch.empty_like(x, dtype=FP8), x.new_empty(width // GROUP, rows, dtype=torch.float32)


def fp8_block_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    span: int,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    batch_invariant: bool = False,
) -> Tensor:
    """``linear(x * x_scale, weight * weight_scale, bias)``.

    Args:
        x, x_scale, weight, weight_scale, span: see `fp8_block_reference`.
        bias: [outputs].
        gated: the weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with bias.
        batch_invariant: tiles are the same for any number of rows.
    Returns:
        [rows, outputs] bfloat16; accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    rows, groups, outputs = require_blocks(x, x_scale, weight, weight_scale, span, bias, gated=gated)
    y = x.new_empty(rows, outputs, dtype=torch.bfloat16)
    launch = partial(_launch, x, x_scale, weight, weight_scale, y, bias, gated, span)
    if batch_invariant:
        launch(INVARIANT)
    else:
        tuning.launched(_lookup(rows, outputs, groups, gated=gated, parts=False), launch)
    return y


def fp8_block_parts(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, span: int) -> Tensor:
    """`fp8_block_linear`, its columns in parts: float32 [parts, rows, outputs], whose sum is the product."""
    rows, groups, outputs = require_blocks(x, x_scale, weight, weight_scale, span)

    def launch(choice: tuning.Choice) -> Tensor:
        y = x.new_empty(dict(choice.blocks)["SPLITS"], rows, outputs, dtype=torch.float32)
        _launch(x, x_scale, weight, weight_scale, y, None, False, span, choice)
        return y

    return tuning.launched(_lookup(rows, outputs, groups, gated=False, parts=True), launch)


def _lookup(rows: int, outputs: int, groups: int, *, gated: bool, parts: bool) -> tuning.Lookup:
    padded = min(8192, max(8, triton.next_power_of_2(max(1, rows))))
    kind = "gated" if gated else "parts" if parts else ""
    default = default_choice(padded, outputs, groups, gated=gated, parts=parts)
    return tuning.Lookup(
        "fp8_block_linear",
        f"m{padded} n{outputs} k{groups * GROUP} {kind}".strip(),
        default,
        partial(candidates, padded, outputs, groups, gated=gated, parts=parts),
    )


def _launch(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, y: Tensor, bias: Tensor | None, gated: bool,
    span: int, choice: tuning.Choice,
) -> None:  # fmt: skip
    rows, groups, outputs = len(x), len(x_scale), y.shape[-1]
    arguments = choice.arguments()
    splits = arguments.pop("SPLITS")
    require(groups % splits == 0, f"{choice} does not divide {groups} groups of columns")
    if rows == 0:
        return
    tiles = triton.cdiv(rows, arguments["BLOCK_M"]) * triton.cdiv(outputs, arguments["BLOCK_N"])
    _fp8_block_linear[(tiles, splits)](
        x, x_scale, weight, weight_scale, y, bias, rows, outputs, groups, splits, SPAN=span, BIAS=bias is not None,
        GATED=gated, **arguments, **chained(),
    )  # fmt: skip


def default_choice(padded: int, outputs: int, groups: int, *, gated: bool, parts: bool) -> tuning.Choice:
    """As measured on an H200 at the shapes of an 8B model. padded: rows, to a power of two."""
    block_m, block_n, warps, stages = (padded, 64, 4, 4) if padded <= 64 else (64, 64 if gated else 128, 4, 4)
    splits, tiles = 1, -(-outputs // block_n) * -(-padded // block_m)
    while parts and splits < 8 and tiles * splits < 264 and groups % (2 * splits) == 0:
        splits *= 2
    return tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, STRIP=8)


def candidates(padded: int, outputs: int, groups: int, *, gated: bool, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    if padded <= 16:
        tiles = [(padded, 16, 1, 6), (padded, 32, 2, 6), (padded, 64, 4, 4), (padded, 64, 4, 6), (padded, 128, 4, 4)]
    elif padded <= 64:
        tiles = [(padded, 64, 4, 4), (padded, 64, 4, 6), (padded, 128, 4, 4), (padded, 128, 8, 4)]
    else:
        tiles = [(128, 64, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3), (128, 128, 8, 4), (64, 128, 4, 4), (256, 64, 8, 3)]
        tiles += [(256, 128, 8, 3), (128, 128, 4, 3), (64, 64, 4, 4)]
    return [
        tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, STRIP=strip)
        for block_m, block_n, warps, stages in tiles
        for strip in ((4, 8, 16) if padded > 256 else (8,))
        for splits in ((1, 2, 4, 8) if parts else (1,))
        if groups % splits == 0
    ]
