# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products by weights of four bits, x @ weightᵀ, on tensor cores.

A weight is ``(number - zero) * scale`` with a zero and a scale for each output and group of 128 columns (Lin et al.
2024, AWQ; Frantar et al. 2023, GPTQ). `int4_reference` describes the layout of words and groups, and holds the torch
twins.

Numbers become floats without a conversion: a number in the mantissa of 128.0 (bfloat16) or 1024.0 (float16) is that
much more. Two at a time, the excess and the zero are taken off exactly, and the scale multiplies the sum of a group, so
that nothing is rounded before that; for many rows it may multiply the weights instead, which are rounded then. Weights
are the left operand, from registers; x, padded to eight rows, is the right one. Beyond `MOST_ROWS` rows it is cheaper
to write the weight out in the model's dtype for the library.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.linear.int4_reference import GROUP, MOST_ROWS, require_packed


@triton.jit
def _scale_and_zero(groups):
    scale = (groups & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, groups >> 16


@triton.jit
def _weights(words, groups, J: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr, FOLD: tl.constexpr):
    """Numbers of place J less their zero, exact in the model's dtype, [N, 32]; FOLD: times their scale, rounded.

    words: [N, 16]; groups: [N].
    """
    dtype: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    base: tl.constexpr = 0x43004300 if BF16 else 0x64006400
    scale, zero = _scale_and_zero(groups[:, None])
    pairs = ((words >> (4 * J)) & 0x000F000F) | base
    if PACKED:
        zeros = (zero | (zero << 16)) | base
        if BF16:  # one fused operation, since cards before Hopper subtract no bfloat16
            pairs = tl.inline_asm_elementwise(
                "{ .reg .b32 one, less; mov.b32 one, 0x3F803F80; xor.b32 less, $2, 0x80008000; "
                "fma.rn.bf16x2 $0, $1, one, less; }",
                "=r,r,r", [pairs, zeros], dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            pairs = tl.inline_asm_elementwise(
                "sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [pairs, zeros], dtype=tl.int32, is_pure=True, pack=1
            )
        if FOLD:
            half = scale.to(dtype).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            scales = half | (half << 16)
            if BF16:
                pairs = tl.inline_asm_elementwise(
                    "{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 $0, $1, $2, zero; }",
                    "=r,r,r", [pairs, scales], dtype=tl.int32, is_pure=True, pack=1,
                )  # fmt: skip
            else:
                pairs = tl.inline_asm_elementwise(
                    "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [pairs, scales], dtype=tl.int32, is_pure=True, pack=1
                )
    low = (pairs & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
    high = ((pairs >> 16) & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
    found = tl.reshape(tl.join(low, high), [words.shape[0], 32])
    if not PACKED:
        found -= ((zero & 0xFFFF) + (128 if BF16 else 1024)).to(dtype)
        if FOLD:
            found *= scale.to(dtype)
    return found


@triton.jit
def _added_group(
    acc, up, words, groups, up_words, up_groups, x_ptr, inside,
    GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """acc, [N, M] float32, and the product over a group of columns; where there is a gate, of gate and up.

    x_ptr: [32, M], of the first place.
    """
    part, up_part = tl.zeros_like(acc), tl.zeros_like(up)
    if FOLD:
        part, up_part = acc, up
    for j in tl.static_range(4):
        x = tl.load(x_ptr + j * 32, inside, 0.0)
        part = tl.dot(_weights(words, groups, j, BF16, PACKED, FOLD), x, part)
        if GATED:
            up_part = tl.dot(_weights(up_words, up_groups, j, BF16, PACKED, FOLD), x, up_part)
    if FOLD:
        return part, up_part
    scale, _ = _scale_and_zero(groups)
    up_scale, _ = _scale_and_zero(up_groups)
    return acc + part * scale[:, None], up + up_part * up_scale[:, None]


@triton.jit(do_not_specialize=["rows", "splits"])
def _int4_linear(
    x_ptr, word_ptr, group_ptr, y_ptr, bias_ptr, rows, outputs, chunks, splits,
    BIAS: tl.constexpr, GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UNROLL: tl.constexpr, FOLD: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = tl.minimum(n, outputs - 1)
    total = outputs * (2 if GATED else 1)
    part_of_split = chunks // splits  # the launcher has seen that UNROLL divides it
    begin = split * part_of_split
    lane = tl.arange(0, 16)
    word_row = word_ptr + real[:, None].to(tl.int64) * (chunks * 16) + lane[None, :]
    up_row = word_ptr + (outputs + real)[:, None].to(tl.int64) * (chunks * 16) + lane[None, :]  # gate above, up below
    x_row = x_ptr + m[None, :].to(tl.int64) * (chunks * 128) + tl.arange(0, 32)[:, None]
    inside_x = (m < rows)[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if CHAINED:
        cuda.gdc_wait()
    for first in tl.range(begin, begin + part_of_split, UNROLL):
        for i in tl.static_range(UNROLL):  # independent sums: one's products are computed beside the other's numbers
            chunk = first + i
            words, groups = tl.load(word_row + chunk * 16), tl.load(group_ptr + chunk * total + real)
            up_words, up_groups = words, groups
            if GATED:
                up_words = tl.load(up_row + chunk * 16)
                up_groups = tl.load(group_ptr + chunk * total + outputs + real)
            acc, up = _added_group(
                acc, up, words, groups, up_words, up_groups, x_row + chunk * 128, inside_x, GATED, BF16, PACKED, FOLD
            )
    if CHAINED:
        cuda.gdc_launch_dependents()
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if BIAS:
        acc += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)[:, None]
    inside = (n < outputs)[:, None] & (m < rows)[None, :]
    tl.store(y_ptr + (split * rows + m)[None, :].to(tl.int64) * outputs + n[:, None], acc, inside)


@triton.jit(do_not_specialize=["rows", "parts"])
def _sum_parts(
    part_ptr, y_ptr, bias_ptr, rows, outputs, parts, BIAS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(part_ptr + (part * rows + row) * outputs + n, n < outputs, 0.0)
    if BIAS:
        total += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)
    tl.store(y_ptr + row * outputs + n, total, n < outputs)


@triton.jit
def _dense(
    word_ptr, group_ptr, y_ptr, outputs, chunks, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = tl.minimum(n, outputs - 1)
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    lane = tl.arange(0, 16)[None, None, :]
    after_predecessors(CHAINED)
    words = tl.load(word_ptr + (real[:, None, None].to(tl.int64) * chunks + chunk[None, :, None]) * 16 + lane)
    scale, zero = _scale_and_zero(tl.load(group_ptr + chunk[None, :] * outputs + real[:, None]))
    shift = 4 * tl.arange(0, 4)[None, None, :, None]
    low = ((words[:, :, None, :] >> shift) & 0xF) - zero[:, :, None, None]
    high = ((words[:, :, None, :] >> (shift + 16)) & 0xF) - zero[:, :, None, None]
    pairs = tl.join(low, high).to(tl.float32) * scale[:, :, None, None, None]
    # Rows as they lie in memory, so that each thread stores 16 bytes and neighbours store beside each other.
    rows = tl.reshape(pairs.to(y_ptr.dtype.element_ty), [BLOCK_N, CHUNKS * 128])
    column = tl.program_id(1) * (CHUNKS * 128) + tl.arange(0, CHUNKS * 128)
    tl.store(y_ptr + real[:, None].to(tl.int64) * (chunks * 128) + column[None, :], rows, (n < outputs)[:, None])


def int4_linear(
    x: Tensor, words: Tensor, groups: Tensor, *, bias: Tensor | None = None, gated: bool = False
) -> Tensor:  # fmt: skip
    """``linear(x, weight, bias)``.

    Args:
        x: [rows ≤ 256, width], contiguous, float16/bfloat16.
        words, groups: the weight, see `int4_reference.pack`.
        bias: [outputs].
        gated: the weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with bias.
    Returns:
        [rows, outputs] in x's dtype; accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    rows, _, outputs = require_packed(x, words, groups, gated=gated, bias=bias)
    y = x.new_empty(rows, outputs)

    def launch(choice: tuning.Choice) -> Tensor:
        splits = dict(choice.blocks)["SPLITS"]
        if splits == 1 or rows == 0:
            _launch(x, words, groups, y, bias, gated, choice)
            return y
        parts = x.new_empty(splits, rows, outputs, dtype=torch.float32)
        _launch(x, words, groups, parts, None, gated, choice)
        block = min(1024, triton.next_power_of_2(outputs))
        grid = (rows, triton.cdiv(outputs, block))
        _sum_parts[grid](parts, y, bias, rows, outputs, splits, BIAS=bias is not None, BLOCK=block, **chained())
        return y

    return tuning.launched(_lookup(x, outputs, gated, parts=False), launch)


def int4_parts(x: Tensor, words: Tensor, groups: Tensor) -> Tensor:
    """`int4_linear`, its columns in parts: float32 [parts, rows, outputs], whose sum is the product."""
    rows, _, outputs = require_packed(x, words, groups)

    def launch(choice: tuning.Choice) -> Tensor:
        y = x.new_empty(dict(choice.blocks)["SPLITS"], rows, outputs, dtype=torch.float32)
        _launch(x, words, groups, y, None, False, choice)
        return y

    return tuning.launched(_lookup(x, outputs, False, parts=True), launch)


def int4_dense(words: Tensor, groups: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in that dtype, [outputs, width]."""
    outputs, chunks = groups.shape[1], len(groups)
    y = torch.empty(outputs, chunks * GROUP, dtype=dtype, device=words.device)
    step = min(8, chunks & -chunks)
    grid = (triton.cdiv(outputs, 8), triton.cdiv(chunks, step))
    _dense[grid](words, groups, y, outputs, chunks, BLOCK_N=8, CHUNKS=step, num_warps=4, **chained())
    return y


def _lookup(x: Tensor, outputs: int, gated: bool, *, parts: bool) -> tuning.Lookup:
    rows, width = x.shape
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most")
    padded = max(8, triton.next_power_of_2(rows))
    kind = ("gated" if gated else "") + ("parts" if parts else "")
    default = default_choice(padded, outputs, width, gated=gated, parts=parts)
    return tuning.Lookup(
        "int4_linear",
        f"m{padded} n{outputs} k{width} {kind}".strip(),
        default,
        partial(candidates, padded, outputs, width, gated=gated, parts=parts),
    )


def _launch(
    x: Tensor, words: Tensor, groups: Tensor, y: Tensor, bias: Tensor | None, gated: bool, choice: tuning.Choice
) -> None:
    rows, chunks = len(x), len(groups)
    arguments = choice.arguments()
    splits = arguments.pop("SPLITS")
    require(chunks % (splits * arguments["UNROLL"]) == 0, f"{choice} does not divide {chunks} groups of columns")
    if rows == 0:
        return
    outputs = y.shape[-1]
    grid = (triton.cdiv(outputs, arguments["BLOCK_N"]), splits, triton.cdiv(rows, arguments["BLOCK_M"]))
    _int4_linear[grid](
        x, words, groups, y, bias, rows, outputs, chunks, splits, BIAS=bias is not None, GATED=gated,
        BF16=x.dtype == torch.bfloat16, PACKED=not triton.knobs.runtime.interpret, **arguments, **chained(),
    )  # fmt: skip


def default_choice(padded: int, outputs: int, width: int, *, gated: bool, parts: bool) -> tuning.Choice:
    """As measured on an H200 at the shapes of an 8B model. padded: rows, to a power of two."""
    chunks = width // GROUP
    block_m, block_n, warps = min(padded, 64), 64, 4
    if padded <= 16:
        block_n, warps = (64 if parts else 32), 2
    splits, programs = 1, 264 if parts else 160  # whole products pay for a kernel that adds
    while not gated and splits < 8 and -(-outputs // block_n) * splits < programs and chunks % (2 * splits) == 0:
        splits *= 2
    stages = 4 if padded <= 64 else 3
    return tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, UNROLL=1, FOLD=0)


def candidates(padded: int, outputs: int, width: int, *, gated: bool, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over.

    Folding the scale into the weights rounds them, and pays only where the sums of a group would take the registers.
    """
    if padded <= 16:
        tiles = [(padded, 16, 1, 0), (padded, 32, 1, 0), (padded, 32, 2, 0), (padded, 64, 2, 0), (padded, 64, 4, 0)]
        depths = [(1, 4), (1, 6), (1, 8), (2, 3), (2, 4), (4, 2)]
    elif padded <= 64:
        tiles = [(padded, 64, 4, 0), (padded, 128, 4, 0), (padded, 128, 8, 0)]
        depths = [(1, 4), (2, 3)]
    else:
        tiles = [(64, 64, 4, 0), (128, 64, 4, 0), (128, 128, 8, 0), (128, 128, 8, 1), (128, 64, 4, 1), (64, 64, 4, 1)]
        tiles += [(128, 256, 8, 1), (64, 128, 4, 1)]
        depths = [(1, 3), (1, 4), (1, 2)]
    chunks = width // GROUP
    return [
        tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, UNROLL=unroll, FOLD=fold)
        for block_m, block_n, warps, fold in tiles
        for unroll, stages in depths
        for splits in ((1,) if gated else (2, 4, 8) if parts else (1, 2, 4, 8))
        if chunks % (splits * unroll) == 0
    ]
