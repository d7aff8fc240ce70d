# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""A few rows times a large weight, on tensor cores: what a decode step of 2 to 32 sequences is made of.

Such a product is reading weights. The library reaches 80 to 90 % of the bandwidth while it runs; what is lost is the
ramp of each kernel, and the kernels between them, in which no weights flow. So this one is set up ahead of its
predecessor's end (see `chaining`) and, before it waits, asks for the beginning of its weights in the L2 cache; it lets
its successor do so when its own weights are read, no sooner, or they would be evicted again. Weights are the left
operand, so that a tile of outputs fills the tensor core's 16 or 64 rows and x, padded to 8, its columns; they go
through shared memory by asynchronous copies, untouched.

Where there are few outputs the columns are split, and whoever reads the result sums the parts: cheaper than a kernel,
or an atomic counter, that does nothing else. Scales of FP8 and SwiGLU's gate happen on the accumulator.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import chained
from backend.kernels.launching.launch import FP8, require

MOST_ROWS = 64


@triton.jit
def _prefetch(row_ptr, size):
    """Ask for the first `size` bytes of each row in L2 (PTX ISA, cp.async.bulk.prefetch)."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [row_ptr.to(tl.int64), size],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits", "prefetch"])
def _narrow_linear(
    x_ptr, weight_ptr, y_ptr, bias_ptr, row_scale_ptr, column_scale_ptr, rows, outputs, width, splits, prefetch,
    SCALED: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_K)
    part = width // (splits * BLOCK_K) * BLOCK_K  # the launcher has seen that this leaves nothing over
    begin = split * part
    real = tl.minimum(n, outputs - 1)
    weight_row = weight_ptr + real.to(tl.int64) * width
    up_row = weight_ptr + (outputs + real).to(tl.int64) * width  # gate above, up below
    if CHAINED:
        ITEM: tl.constexpr = weight_ptr.dtype.element_ty.primitive_bitwidth // 8
        size = tl.full([BLOCK_N], 0, tl.int32) + tl.minimum(part * ITEM, prefetch)
        _prefetch(weight_row + begin, size)
        if GATED:
            _prefetch(up_row + begin, size)
        cuda.gdc_wait()
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(begin, begin + part, BLOCK_K):
        k = start + lane
        x = tl.load(x_ptr + m[None, :] * width + k[:, None], (m < rows)[None, :], 0.0)
        acc = tl.dot(tl.load(weight_row[:, None] + k[None, :]), x, acc, input_precision="ieee")
        if GATED:
            up = tl.dot(tl.load(up_row[:, None] + k[None, :]), x, up, input_precision="ieee")
    if CHAINED:
        cuda.gdc_launch_dependents()
    if SCALED:
        by_row = tl.load(row_scale_ptr + m, m < rows, 0.0)[None, :]
        acc *= by_row * tl.load(column_scale_ptr + real)[:, None]
        if GATED:
            up *= by_row * tl.load(column_scale_ptr + outputs + real)[:, None]
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if BIAS:
        acc += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)[:, None]
    inside = (n < outputs)[:, None] & (m < rows)[None, :]
    tl.store(y_ptr + (split * rows + m)[None, :] * outputs + n[:, None], acc, inside)


def narrow_linear(
    x: Tensor,
    weight: Tensor,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """``linear(x, weight, bias)``.

    Args:
        x: [rows ≤ 64, width], contiguous, float16/bfloat16/float32/float8_e4m3fn; width a multiple of 16, of 32 in FP8.
        weight: [outputs, width], contiguous, of x's dtype.
        scales: of the product by row and by column, float32 [rows, 1] and [weight's rows, 1], as FP8 wants them.
        bias: [outputs].
        gated: weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with a bias.
    Returns:
        [rows, outputs] in x's dtype, of FP8 in bfloat16; accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    require(not gated or bias is None, "a gated product has no bias")
    outputs = len(weight) // 2 if gated else len(weight)
    y = x.new_empty(len(x), outputs, dtype=torch.bfloat16 if x.dtype == FP8 else x.dtype)
    tuning.launched(
        _lookup(x, weight, gated, parts=False), lambda choice: _launch(x, weight, y, scales, bias, gated, choice)
    )
    return y


def narrow_parts(x: Tensor, weight: Tensor, *, scales: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """`narrow_linear`, its columns in parts: float32 [parts, rows, outputs], whose sum is the product."""

    def launch(choice: tuning.Choice) -> Tensor:
        y = x.new_empty(dict(choice.blocks)["SPLITS"], len(x), len(weight), dtype=torch.float32)
        _launch(x, weight, y, scales, None, False, choice)
        return y

    return tuning.launched(_lookup(x, weight, False, parts=True), launch)


def _lookup(x: Tensor, weight: Tensor, gated: bool, *, parts: bool) -> tuning.Lookup:
    require(x.dim() == 2 and x.is_contiguous() and weight.dim() == 2 and weight.is_contiguous(), "contiguous matrices")
    rows, width = x.shape
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most")
    require(weight.shape[1] == width and weight.dtype == x.dtype, f"x is {x.dtype}, {width} wide; the weight is not")
    require(width % (32 if x.dtype == FP8 else 16) == 0, f"a width of {width} does not fill tensor cores")
    outputs, block_m = len(weight) // 2 if gated else len(weight), max(8, triton.next_power_of_2(max(1, rows)))
    kind = ("gated " if gated else "parts " if parts else "") + str(x.dtype).removeprefix("torch.")
    default = default_choice(block_m, outputs, width, x.element_size(), gated=gated, parts=parts)
    return tuning.Lookup(
        "narrow_linear",
        f"m{block_m} n{outputs} k{width} {kind}",
        default,
        partial(candidates, block_m, outputs, width, x.element_size(), parts=parts),
    )


def _launch(
    x: Tensor, weight: Tensor, y: Tensor, scales: tuple[Tensor, Tensor] | None, bias: Tensor | None, gated: bool,
    choice: tuning.Choice,
) -> None:  # fmt: skip
    rows, width = x.shape
    by_row, by_column = scales or (None, None)
    if by_row is not None and by_column is not None:
        fits = by_row.shape == (rows, 1) and by_column.shape == (len(weight), 1)
        require(fits and by_row.is_contiguous() and by_column.is_contiguous(), "scales must be one a row and column")
    arguments = choice.arguments()
    splits, prefetch = arguments.pop("SPLITS"), arguments.pop("PREFETCH")
    require(width % (splits * arguments["BLOCK_K"]) == 0, f"{choice} does not divide {width} columns")
    if rows:
        _narrow_linear[(triton.cdiv(y.shape[-1], arguments["BLOCK_N"]), splits)](
            x, weight, y, bias, by_row, by_column, rows, y.shape[-1], width, splits, prefetch,
            SCALED=scales is not None, BIAS=bias is not None, GATED=gated,
            BLOCK_M=max(8, triton.next_power_of_2(rows)), **arguments, **chained(),
        )  # fmt: skip


def default_choice(
    block_m: int, outputs: int, width: int, item_size: int, *, gated: bool, parts: bool
) -> tuning.Choice:
    """As measured on an H100 for 8 to 32 rows at the shapes of 0.6B and 8B models.

    Few rows, or 16 of a small model: one warp a program, so that there are many, each with its weights on their way.
    """
    small = block_m == 8 or (block_m == 16 and outputs * width * item_size < 1 << 24)
    block_n, warps, programs = (16, 1, 384) if small else (64, 4, 96)
    block_k, stages = {1: (256, 4), 4: (32, 3)}.get(item_size, (128, 4))
    if small and item_size < 4:
        block_k, stages = (256, 4) if item_size == 2 and width <= 8192 and not gated else (128 * (3 - item_size), 6)
    block_k = min(block_k, width & -width)
    splits = 1
    while parts and splits < 8 and -(-outputs // block_n) * splits < programs and width % (2 * splits * block_k) == 0:
        splits *= 2
    return tuning.Choice.of(warps, stages, BLOCK_N=block_n, BLOCK_K=block_k, SPLITS=splits, PREFETCH=1024)


def candidates(block_m: int, outputs: int, width: int, item_size: int, *, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    unit = 2 // item_size if item_size < 2 else 1
    tiles = [(16, 128, 1, 6), (16, 256, 1, 4), (32, 128, 2, 5), (64, 128, 4, 4), (64, 64, 4, 6), (128, 64, 4, 4)]
    return [
        tuning.Choice.of(warps, stages, BLOCK_N=block_n, BLOCK_K=block_k * unit, SPLITS=splits, PREFETCH=prefetch)
        for block_n, block_k, warps, stages in tiles
        for splits in ((1, 2, 4, 8) if parts else (1,))
        for prefetch in (1024, 2048)
        if width % (splits * block_k * unit) == 0
        and -(-outputs // block_n) * splits <= max(1100, -(-outputs // block_n))
        and (block_n >= 32 or block_m <= 16)
    ]
