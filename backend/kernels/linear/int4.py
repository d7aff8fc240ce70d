# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products by weights of four bits, x @ weightᵀ, on tensor cores.

A weight is ``(number - zero) * scale`` with a zero and a scale for each output and group of 128 columns (Lin et al.
2024, AWQ; Frantar et al. 2023, GPTQ). `int4_reference` describes the layout of words and groups, and holds the torch
twins.

Numbers become floats without a conversion: a number in the mantissa of 128.0 (bfloat16) or 1024.0 (float16) is that
much more. Two at a time, the excess and the zero are taken off exactly, and the scale multiplies the sum of a group, so
that nothing is rounded before that. Weights are the left operand, from registers; x, padded to eight rows, is the right
one. Beyond `MOST_ROWS` rows it is cheaper to write the weight out in the model's dtype for the library.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.linear.int4_reference import GROUP, require_packed

MOST_ROWS = 512


@triton.jit
def _scale_and_zero(groups):
    scale = (groups & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, groups >> 16


@triton.jit
def _centred(words, zero, J: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr):
    """Numbers of place J less their zero, exact in the model's dtype. words: [N, 16]; zero: [N, 1]; [N, 32]."""
    base: tl.constexpr = 0x43004300 if BF16 else 0x64006400
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
    dtype: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    low = (pairs & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
    high = ((pairs >> 16) & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
    found = tl.reshape(tl.join(low, high), [words.shape[0], 32])
    if not PACKED:
        found -= ((zero & 0xFFFF) + (128 if BF16 else 1024)).to(dtype)
    return found


@triton.jit
def _group_products(
    words, groups, up_words, up_groups, x_ptr, inside, GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr
):
    """Sums over a group of columns, [N, M] float32, times their scale: of the weight, or of gate and up.

    x_ptr: [32, M], of the first place.
    """
    scale, zero = _scale_and_zero(groups)
    up_scale, up_zero = _scale_and_zero(up_groups)
    x = tl.load(x_ptr, inside, 0.0)
    part = tl.dot(_centred(words, zero[:, None], 0, BF16, PACKED), x)
    up = part
    if GATED:
        up = tl.dot(_centred(up_words, up_zero[:, None], 0, BF16, PACKED), x)
    for j in tl.static_range(1, 4):
        x = tl.load(x_ptr + j * 32, inside, 0.0)
        part = tl.dot(_centred(words, zero[:, None], j, BF16, PACKED), x, part)
        if GATED:
            up = tl.dot(_centred(up_words, up_zero[:, None], j, BF16, PACKED), x, up)
    return part * scale[:, None], up * up_scale[:, None]


@triton.jit(do_not_specialize=["rows", "splits"])
def _int4_linear(
    x_ptr, word_ptr, group_ptr, y_ptr, bias_ptr, rows, outputs, chunks, splits,
    BIAS: tl.constexpr, GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UNROLL: tl.constexpr, CHAINED: tl.constexpr,
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
            part, up_part = _group_products(
                words, groups, up_words, up_groups, x_row + chunk * 128, inside_x, GATED, BF16, PACKED
            )
            acc += part
            if GATED:
                up += up_part
    if CHAINED:
        cuda.gdc_launch_dependents()
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if BIAS:
        acc += tl.load(bias_ptr + n, n < outputs, 0.0).to(tl.float32)[:, None]
    inside = (n < outputs)[:, None] & (m < rows)[None, :]
    tl.store(y_ptr + (split * rows + m)[None, :].to(tl.int64) * outputs + n[:, None], acc, inside)


@triton.jit
def _dense(
    word_ptr, group_ptr, y_ptr, outputs, chunks, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None, None]
    chunk = (tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS))[None, :, None]
    lane = tl.arange(0, 16)[None, None, :]
    after_predecessors(CHAINED)
    real = tl.minimum(n, outputs - 1)
    words = tl.load(word_ptr + (real.to(tl.int64) * chunks + chunk) * 16 + lane)
    scale, zero = _scale_and_zero(tl.load(group_ptr + chunk * outputs + real))
    inside = n < outputs
    for j in tl.static_range(4):
        low = (((words >> (4 * j)) & 0xF) - zero).to(tl.float32) * scale
        high = (((words >> (16 + 4 * j)) & 0xF) - zero).to(tl.float32) * scale
        at = y_ptr + (real.to(tl.int64) * chunks + chunk) * 128 + j * 32 + 2 * lane
        pairs = tl.join(low, high)
        tl.store(at[:, :, :, None] + tl.arange(0, 2)[None, None, None, :], pairs, inside[:, :, :, None])


def int4_linear(
    x: Tensor, words: Tensor, groups: Tensor, *, bias: Tensor | None = None, gated: bool = False
) -> Tensor:  # fmt: skip
    """``linear(x, weight, bias)``.

    Args:
        x: [rows ≤ 512, width], contiguous, float16/bfloat16.
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
    _launch(x, words, groups, y, bias, gated, _choice(x, outputs, gated, parts=False))
    return y


def int4_parts(x: Tensor, words: Tensor, groups: Tensor) -> Tensor:
    """`int4_linear`, its columns in parts: float32 [parts, rows, outputs], whose sum is the product."""
    rows, _, outputs = require_packed(x, words, groups)
    choice = _choice(x, outputs, False, parts=True)
    y = x.new_empty(dict(choice.blocks)["SPLITS"], rows, outputs, dtype=torch.float32)
    _launch(x, words, groups, y, None, False, choice)
    return y


def int4_dense(words: Tensor, groups: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in that dtype, [outputs, width]."""
    outputs, chunks = groups.shape[1], len(groups)
    y = torch.empty(outputs, chunks * GROUP, dtype=dtype, device=words.device)
    step = min(8, chunks & -chunks)
    grid = (triton.cdiv(outputs, 8), triton.cdiv(chunks, step))
    _dense[grid](words, groups, y, outputs, chunks, BLOCK_N=8, CHUNKS=step, num_warps=4, **chained())
    return y


def _choice(x: Tensor, outputs: int, gated: bool, *, parts: bool) -> tuning.Choice:
    rows, width = x.shape
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most")
    padded = max(8, triton.next_power_of_2(rows))
    kind = ("gated" if gated else "") + ("parts" if parts else "")
    default = default_choice(padded, outputs, width, gated=gated, parts=parts)
    return tuning.choice("int4_linear", f"m{padded} n{outputs} k{width} {kind}".strip(), default)


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
    """padded: rows, to a power of two."""
    chunks = width // GROUP
    if padded <= 16:
        block_n, warps, stages = 32, 2, 4
    else:
        block_n, warps, stages = (64, 4, 4) if padded <= 64 or gated else (128, 8, 3)
    splits = 1
    while parts and splits < 8 and -(-outputs // block_n) * splits < 264 and chunks % (2 * splits) == 0:
        splits *= 2
    unroll = 2 if padded <= 64 and chunks % (2 * splits) == 0 else 1
    return tuning.Choice.of(warps, stages, BLOCK_M=min(padded, 128), BLOCK_N=block_n, SPLITS=splits, UNROLL=unroll)


def candidates(padded: int, outputs: int, width: int, *, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    if padded <= 16:
        tiles = [(padded, 32, 1), (padded, 32, 2), (padded, 64, 2), (padded, 64, 4)]
    elif padded <= 64:
        tiles = [(padded, 64, 4), (padded, 128, 4), (padded, 128, 8)]
    else:
        tiles = [(64, 64, 4), (64, 128, 8), (128, 64, 4), (128, 128, 8), (128, 64, 8)]
    depths = [(1, 4), (1, 6), (2, 2), (2, 3), (2, 4), (4, 2)] if padded <= 64 else [(1, 3), (1, 4), (2, 2)]
    chunks = width // GROUP
    return [
        tuning.Choice.of(warps, stages, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits, UNROLL=unroll)
        for block_m, block_n, warps in tiles
        for unroll, stages in depths
        for splits in ((2, 4, 8) if parts else (1,))
        if chunks % (splits * unroll) == 0
    ]
