# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products of blocks of pairs by their experts' weights, and the sum over a token's experts.

A program multiplies a block by a tile of its expert's outputs. The weight is the left operand, as in `linear.narrow`,
so a block may have as few as eight pairs, which suits decode steps, where reading weights dominates. The program of a
block without pairs returns at once. Rows of x are gathered by token, without a copy in the order of experts, and each
result is written to the place of its pair. A token's experts are summed in the order in which they were chosen, so the
bits of a token depend on that token only.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, require
from backend.kernels.moe.reference import SIZES, Blocks, block_size, require_grouped

__all__ = ["block_size", "candidates", "combine", "default_choice", "grouped_linear"]


@triton.jit
def _tile(ptr, n, k, width, EVEN: tl.constexpr):
    """Load columns k of rows n of an expert's weight."""
    at = ptr + n[:, None].to(tl.int64) * width + k[None, :]
    if EVEN:
        return tl.load(at)
    return tl.load(at, (k < width)[None, :], 0.0)


@triton.jit
def _scales(ptr, n, start, width, SPAN: tl.constexpr):
    """Load the scales of rows n of the stacked weights of all experts, for the 128 columns from `start` on."""
    return tl.load(ptr + n // SPAN * (width // 128) + start // 128)


@triton.jit(do_not_specialize=["rows"])
def _grouped_linear(
    x_ptr, weight_ptr, slot_ptr, expert_ptr, y_ptr, row_scale_ptr, column_scale_ptr, factor_ptr, rows, outputs, width,
    PER_TOKEN: tl.constexpr, OWN: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, SPAN: tl.constexpr,
    EVEN: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """OWN: x has one row per pair, and its product is multiplied by the pair's factor and written to the pair's part.
    SPAN: rows of a weight that share the scale of a group of 128 columns; 0: no such scales."""
    if CHAINED:
        cuda.gdc_wait()
    block = tl.program_id(1)
    expert = tl.load(expert_ptr + block)
    if expert < 0:
        return
    slots = tl.load(slot_ptr + block * SIZE + tl.arange(0, SIZE))
    taken = slots >= 0
    row = slots if OWN else slots // PER_TOKEN
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = tl.minimum(n, outputs - 1)
    lane = tl.arange(0, BLOCK_K)
    first = expert.to(tl.int64) * outputs * (2 if GATED else 1)
    weight = weight_ptr + first * width
    x_row = x_ptr + row[None, :].to(tl.int64) * width
    acc = tl.zeros([BLOCK_N, SIZE], tl.float32)
    up = tl.zeros([BLOCK_N, SIZE], tl.float32)
    for start in tl.range(0, width, BLOCK_K):
        k = start + lane
        inside = taken[None, :] if EVEN else taken[None, :] & (k < width)[:, None]
        x = tl.load(x_row + k[:, None], inside, 0.0)
        if SPAN > 0:
            by_group = tl.load(row_scale_ptr + start // 128 * rows + row, taken, 0.0)[None, :]
            part = tl.dot(_tile(weight, real, k, width, EVEN), x)
            acc += part * (_scales(column_scale_ptr, first + real, start, width, SPAN)[:, None] * by_group)
            if GATED:
                part = tl.dot(_tile(weight, outputs + real, k, width, EVEN), x)
                up += part * (_scales(column_scale_ptr, first + outputs + real, start, width, SPAN)[:, None] * by_group)
        else:
            acc = tl.dot(_tile(weight, real, k, width, EVEN), x, acc, input_precision="ieee")
            if GATED:
                up = tl.dot(_tile(weight, outputs + real, k, width, EVEN), x, up, input_precision="ieee")
    if CHAINED:
        cuda.gdc_launch_dependents()
    if SCALED:
        by_row = tl.load(row_scale_ptr + row, taken, 0.0)[None, :]
        acc *= by_row * tl.load(column_scale_ptr + first + real)[:, None]
        if GATED:
            up *= by_row * tl.load(column_scale_ptr + first + outputs + real)[:, None]
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    to = slots
    if OWN:
        acc *= tl.load(factor_ptr + slots, taken, 0.0)[None, :]
        to = slots % PER_TOKEN * (rows // PER_TOKEN) + slots // PER_TOKEN
    inside_y = (n < outputs)[:, None] & taken[None, :]
    tl.store(y_ptr + to[None, :].to(tl.int64) * outputs + n[:, None], acc, inside_y)


@triton.jit
def _combine(part_ptr, residual_ptr, y_ptr, width, PARTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row * width + column
    total = tl.load(residual_ptr + at, column < width, 0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(part_ptr + part * tl.num_programs(0) * width + at, column < width, 0.0).to(tl.float32)
    tl.store(y_ptr + at, total, column < width)


def grouped_linear(
    x: Tensor, weight: Tensor, blocks: Blocks, *, per_token: int, gated: bool = False,
    scales: tuple[Tensor, Tensor] | None = None, span: int = 0, factors: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Multiply each pair by its expert's weight.

    Args:
        x: [tokens, width], or with factors [pairs, width], contiguous, float16/bfloat16/float32/float8_e4m3fn.
        weight: [experts, outputs, width], contiguous, of x's dtype.
        blocks: the pairs, see `blocks.blocks_by_expert`. per_token: experts of a token.
        gated: the weights are gate and up, [experts, 2 * outputs, width]; the result is ``silu(gate) * up``.
        scales: FP8 scales, float32 [rows of x, 1] and [experts, weight's rows, 1]; with span, as in
            `linear.fp8_block`, [width / 128, rows of x] and [rows of all weights / span, width / 128].
        span: rows of a weight that share a scale; 0: one scale per row.
        factors: float32 [tokens, per_token], factors of the products.
        out_dtype: dtype of the result; None: x's dtype, and bfloat16 for FP8.
    Returns:
        [pairs, outputs], or with factors [per_token, tokens, outputs], where the sum over the first dimension is the
        result of a token. Accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    pairs, outputs = require_grouped(x, weight, blocks, per_token, gated, scales, span, factors)
    require(blocks.size in (8, *SIZES), f"blocks of {blocks.size}; a power of two from 8 to {SIZES[-1]}")
    dtype = out_dtype or (torch.bfloat16 if x.dtype == FP8 else x.dtype)
    shape = (pairs, outputs) if factors is None else (per_token, pairs // per_token, outputs)
    y = x.new_empty(shape, dtype=dtype)
    if pairs == 0:
        return y
    width = x.shape[1]
    row_scale, column_scale = scales or (None, None)

    def launch(choice: tuning.Choice) -> None:
        arguments = choice.arguments()
        require(span == 0 or arguments["BLOCK_K"] == 128, f"{choice} does not go with scales of 128 columns")
        _grouped_linear[(triton.cdiv(outputs, arguments["BLOCK_N"]), len(blocks.experts))](
            x, weight, blocks.slots, blocks.experts, y, row_scale, column_scale, factors, len(x), outputs, width,
            PER_TOKEN=per_token, OWN=factors is not None, GATED=gated, SCALED=scales is not None and not span,
            SPAN=span, EVEN=width % arguments["BLOCK_K"] == 0, SIZE=blocks.size, **arguments, **chained(),
        )  # fmt: skip

    tuning.launched(_lookup(x, outputs, width, blocks.size, len(weight), gated, span > 0), launch)
    return y


def combine(parts: Tensor, residual: Tensor) -> Tensor:
    """Add ``residual`` and all parts, in order, in float32.

    Args:
        parts: [parts, tokens, width], contiguous, any float dtype. residual: [tokens, width], contiguous.
    Returns:
        [tokens, width] in residual's dtype.
    Raises:
        KernelArgumentError: shapes do not fit.
    """
    fits = parts.dim() == 3 and parts.shape[1:] == residual.shape and parts.is_contiguous() and residual.is_contiguous()
    require(fits, f"parts {list(parts.shape)} do not add to {list(residual.shape)}")
    y = torch.empty_like(residual)
    tokens, width = residual.shape
    if tokens:
        block = min(2048, triton.next_power_of_2(width))
        _combine[(tokens, triton.cdiv(width, block))](
            parts,
            residual,
            y,
            width,
            PARTS=len(parts),
            BLOCK=block,
            num_warps=min(8, max(1, block // 256)),
            **chained(),
        )
    return y


def _lookup(
    x: Tensor, outputs: int, width: int, size: int, experts: int, gated: bool, in_blocks: bool
) -> tuning.Lookup:
    kind = ("gated " if gated else "") + ("blocks " if in_blocks else "") + str(x.dtype).removeprefix("torch.")
    default = default_choice(size, outputs, width, x.element_size(), gated=gated, in_blocks=in_blocks)
    return tuning.Lookup(
        "grouped_linear",
        f"b{size} e{experts} n{outputs} k{width} {kind}",
        default,
        partial(candidates, size, outputs, width, x.element_size(), gated=gated, in_blocks=in_blocks),
    )


def default_choice(
    size: int, outputs: int, width: int, item_size: int, *, gated: bool, in_blocks: bool = False
) -> tuning.Choice:
    """Return the choice by the rules of `linear.narrow`, not yet timed. in_blocks: sums per group need registers."""
    block_k = {1: 128, 4: 32}.get(item_size, 64)
    if size <= 32:
        block_n, warps, stages = 64, 4, 4
    elif in_blocks:
        block_n, warps, stages = 64, 8, 3
    else:
        block_n, warps, stages = (64, 4, 3) if gated else (128, 8, 3)
    return tuning.Choice.of(
        warps, stages, BLOCK_N=block_n, BLOCK_K=min(block_k, max(16, triton.next_power_of_2(width)))
    )


def candidates(
    size: int, outputs: int, width: int, item_size: int, *, gated: bool, in_blocks: bool = False
) -> list[tuning.Choice]:
    """Return the choices to time on a GPU. One that needs too much shared memory fails to launch and is skipped."""
    unit = 2 // item_size if item_size < 2 else 1
    tiles = [(32, 128, 2, 4), (64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4), (128, 64, 8, 3)]
    if size >= 64:
        tiles += [(128, 64, 8, 4), (256, 64, 8, 3), (128, 128, 8, 3)]
    else:
        tiles += [(16, 256, 1, 4), (32, 256, 2, 3)]
    return [
        tuning.Choice.of(warps, stages, BLOCK_N=block_n, BLOCK_K=block_k * unit)
        for block_n, block_k, warps, stages in tiles
        if block_k * unit <= triton.next_power_of_2(width) and (not in_blocks or block_k * unit == 128)
    ]
