# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products by weights of four bits, x @ weightᵀ, for one row, for some rows and for many.

A weight is ``(number - zero) * scale`` with a zero and a scale for each output and group of 128 columns (Lin et al.
2024, AWQ; Frantar et al. 2023, GPTQ). `int4_reference` describes the layout of words and groups, and holds the torch
twins.

Numbers become floats without a conversion: a number in the mantissa of 128.0 or 1024.0 is that much more. For one row
this happens in float32 and the excess is taken off the sum of a group; for more rows in pairs of the model's dtype,
where the excess and the zero are taken off exactly, and the scale multiplies the sum of a group, so that nothing is
rounded before that. Beyond `MOST_ROWS` it is cheaper to write the weight out in the model's dtype for the library.
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
TILE_ROWS = 128  # of x, at most


@triton.jit
def _halves(pairs, BF16: tl.constexpr):
    """Both numbers of pairs in 32 bits, in float32: the one in the low half, the one in the high half."""
    if BF16:
        low = (pairs << 16).to(tl.float32, bitcast=True)
        high = (pairs & -65536).to(tl.float32, bitcast=True)
    else:
        low = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        high = ((pairs >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def _scale_and_zero(groups):
    scale = (groups & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, groups >> 16


@triton.jit
def _raised(words, J: tl.constexpr):
    """The two numbers of place J of each word in float32, each in the mantissa of 128.0 (J even) or 2048.0 (odd)."""
    mask: tl.constexpr = 0xF0000 if J % 2 == 0 else 0xF000
    base: tl.constexpr = 0x43000000 if J % 2 == 0 else 0x45000000
    if J == 0:
        low, high = words << 16, words
    elif J == 3:
        low, high = words, words >> 16
    else:
        low, high = words << 8, words >> 8
    return ((low & mask) | base).to(tl.float32, bitcast=True), ((high & mask) | base).to(tl.float32, bitcast=True)


@triton.jit
def _stretch(word_ptr, group_ptr, n, chunk, lane, outputs, chunks, EVEN: tl.constexpr):
    """Words [N, CHUNKS, 16] and groups [N, CHUNKS, 1] of rows n and of those chunks of columns."""
    words = word_ptr + (n.to(tl.int64) * chunks + chunk) * 16 + lane
    groups = group_ptr + chunk * outputs + n
    if EVEN:
        return tl.load(words, eviction_policy="evict_first"), tl.load(groups)
    inside = chunk < chunks
    return tl.load(words, inside, 0, eviction_policy="evict_first"), tl.load(groups, inside, 0)


@triton.jit
def _one_row(
    x_ptr, word_ptr, group_ptr, y_ptr, norm_ptr, residual_ptr, bias_ptr, outputs, chunks, eps,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BF16: tl.constexpr,
    EVEN: tl.constexpr, STEPS: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    rows: tl.constexpr = 2 if GATED else 1  # of the weight for each output
    total = outputs * rows
    own = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = own < outputs
    real = tl.minimum(own, outputs - 1)
    n = real[:, None, None]
    within = tl.arange(0, CHUNKS)[None, :, None]
    lane = tl.arange(0, 16)[None, None, :]
    row = tl.program_id(1)
    x_ptr += row * chunks * 64
    acc = tl.zeros([BLOCK_N, CHUNKS, 16], tl.float32)
    gate_acc = tl.zeros([BLOCK_N, CHUNKS, 16], tl.float32)
    squares = tl.zeros([1, CHUNKS, 16], tl.float32)
    up = n + (outputs if GATED else 0)  # gate above, up below
    words, groups = _stretch(word_ptr, group_ptr, up, within, lane, total, chunks, EVEN)  # no kernel writes weights
    gate_words, gate_groups = words, groups
    if GATED:
        gate_words, gate_groups = _stretch(word_ptr, group_ptr, n, within, lane, total, chunks, EVEN)
    after_predecessors(CHAINED)
    for step in tl.static_range(STEPS):
        coming, coming_groups, gate_coming, gate_coming_groups = words, groups, gate_words, gate_groups
        chunk = step * CHUNKS + within
        if step + 1 < STEPS:
            following = chunk + CHUNKS
            coming, coming_groups = _stretch(word_ptr, group_ptr, up, following, lane, total, chunks, EVEN)
            if GATED:
                gate_coming, gate_coming_groups = _stretch(word_ptr, group_ptr, n, following, lane, total, chunks, EVEN)
        part = tl.zeros([BLOCK_N, CHUNKS, 16], tl.float32)
        gate_part = tl.zeros([BLOCK_N, CHUNKS, 16], tl.float32)
        sums = tl.zeros([1, CHUNKS, 16], tl.float32)
        excess = tl.zeros([1, CHUNKS, 16], tl.float32)
        for j in tl.static_range(4):
            at = chunk * 64 + j * 16 + lane
            low, high = _halves(tl.load(x_ptr + at, chunk < chunks, 0), BF16)
            if NORM:
                squares += low * low + high * high
                norm_low, norm_high = _halves(tl.load(norm_ptr + at, chunk < chunks, 0), BF16)
                low *= norm_low
                high *= norm_high
            q_low, q_high = _raised(words, j)
            part += q_low * low + q_high * high
            if GATED:
                gate_low, gate_high = _raised(gate_words, j)
                gate_part += gate_low * low + gate_high * high
            sums += low + high
            excess += (128.0 if j % 2 == 0 else 2048.0) * (low + high)
        scale, zero = _scale_and_zero(groups)
        acc += scale * (part - excess - zero.to(tl.float32) * sums)
        if GATED:
            scale, zero = _scale_and_zero(gate_groups)
            gate_acc += scale * (gate_part - excess - zero.to(tl.float32) * sums)
        words, groups, gate_words, gate_groups = coming, coming_groups, gate_coming, gate_coming_groups
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(tl.reshape(squares, [CHUNKS * 16]), 0) / (chunks * 128) + eps)
    y = tl.sum(tl.reshape(acc, [BLOCK_N, CHUNKS * 16]), 1) * factor
    if BIAS:
        y += tl.load(bias_ptr + own, inside, 0.0).to(tl.float32)
    if GATED:
        gate = tl.sum(tl.reshape(gate_acc, [BLOCK_N, CHUNKS * 16]), 1) * factor
        y *= gate / (1.0 + tl.exp(-gate))
    at = row * outputs + own
    if RESIDUAL:
        y += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + at, y, inside)


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
def _group_product(words, groups, x_ptr, inside, BF16: tl.constexpr, PACKED: tl.constexpr, PLACES: tl.constexpr):
    """Sum over a group of columns, [N, M] float32, not yet times its scale; x_ptr: [32, M], of the first place."""
    _, zero = _scale_and_zero(groups)
    x = tl.load(x_ptr, inside, 0.0)
    part = tl.dot(_centred(words, zero[:, None], 0, BF16, PACKED), x)
    for j in tl.static_range(1, PLACES):
        x = tl.load(x_ptr + j * 32, inside, 0.0)
        part = tl.dot(_centred(words, zero[:, None], j, BF16, PACKED), x, part)
    return part


@triton.jit(do_not_specialize=["rows", "splits"])
def _some_rows(
    x_ptr, word_ptr, group_ptr, y_ptr, bias_ptr, rows, outputs, chunks, splits,
    BIAS: tl.constexpr, GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = tl.minimum(n, outputs - 1)
    total = outputs * (2 if GATED else 1)
    part_of_split = chunks // splits  # the launcher has seen that this leaves nothing over
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
    for chunk in tl.range(begin, begin + part_of_split):
        words, groups = tl.load(word_row + chunk * 16), tl.load(group_ptr + chunk * total + real)
        part = _group_product(words, groups, x_row + chunk * 128, inside_x, BF16, PACKED, 4)
        acc += part * _scale_and_zero(groups)[0][:, None]
        if GATED:
            words, groups = tl.load(up_row + chunk * 16), tl.load(group_ptr + chunk * total + outputs + real)
            part = _group_product(words, groups, x_row + chunk * 128, inside_x, BF16, PACKED, 4)
            up += part * _scale_and_zero(groups)[0][:, None]
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
    word_ptr, group_ptr, y_ptr, outputs, chunks, EVEN: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None, None]
    chunk = (tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS))[None, :, None]
    lane = tl.arange(0, 16)[None, None, :]
    after_predecessors(CHAINED)
    real = tl.minimum(n, outputs - 1)
    words, groups = _stretch(word_ptr, group_ptr, real, chunk, lane, outputs, chunks, EVEN)
    scale, zero = _scale_and_zero(groups)
    inside = (n < outputs) & (chunk < chunks)
    for j in tl.static_range(4):
        low = (((words >> (4 * j)) & 0xF) - zero).to(tl.float32) * scale
        high = (((words >> (16 + 4 * j)) & 0xF) - zero).to(tl.float32) * scale
        at = y_ptr + (real.to(tl.int64) * chunks + chunk) * 128 + j * 32 + 2 * lane
        pairs = tl.join(low, high)
        tl.store(at[:, :, :, None] + tl.arange(0, 2)[None, None, None, :], pairs, inside[:, :, :, None])


def int4_one_row(
    x: Tensor, words: Tensor, groups: Tensor, *, bias: Tensor | None = None, norm: Tensor | None = None,
    eps: float = 1e-6, residual: Tensor | None = None, gated: bool = False,
) -> Tensor:  # fmt: skip
    """``linear(rms_norm(x, norm), weight, bias) + residual``, each part but the product optional.

    Args:
        x: [rows, width], contiguous, float16/bfloat16; meant for one row.
        words, groups: the weight, see `int4_reference.pack`.
        bias: [outputs].
        norm, eps: RMSNorm's weight, [width] in x's dtype, and epsilon.
        residual: [rows, outputs], contiguous.
        gated: the weight holds gate and up, [2 * outputs, width]; the result is ``silu(gate) * up``. Not with bias.
    Returns:
        [rows, outputs] in x's dtype; accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    rows, width, outputs = require_packed(x, words, groups, gated=gated, bias=bias)
    require(residual is None or (residual.shape == (rows, outputs) and residual.is_contiguous()), "residual must fit y")
    require(norm is None or (norm.shape == (width,) and norm.dtype == x.dtype), f"norm must be [{width}] {x.dtype}")
    y = x.new_empty(rows, outputs)
    if rows == 0:
        return y
    kind = ("norm " if norm is not None else "") + ("gated " if gated else "")
    choice = tuning.choice("int4_one_row", f"n{outputs} k{width} {kind}".strip(), one_row_choice(width, gated=gated))
    arguments = choice.arguments()
    chunks = width // GROUP
    pairs = norm.view(torch.int32) if norm is not None else None
    _one_row[(triton.cdiv(outputs, arguments["BLOCK_N"]), rows)](
        x.view(torch.int32), words, groups, y, pairs, residual, bias, outputs, chunks, eps,
        NORM=norm is not None, RESIDUAL=residual is not None, BIAS=bias is not None, GATED=gated,
        BF16=x.dtype == torch.bfloat16, EVEN=chunks % arguments["CHUNKS"] == 0,
        STEPS=triton.cdiv(chunks, arguments["CHUNKS"]), **arguments, **chained(),
    )  # fmt: skip
    return y


def int4_linear(
    x: Tensor, words: Tensor, groups: Tensor, *, bias: Tensor | None = None, gated: bool = False
) -> Tensor:  # fmt: skip
    """``linear(x, weight, bias)``. x: [rows ≤ 512, width]; otherwise as `int4_one_row`."""
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
    _dense[grid](words, groups, y, outputs, chunks, EVEN=True, BLOCK_N=8, CHUNKS=step, num_warps=4, **chained())
    return y


def _choice(x: Tensor, outputs: int, gated: bool, *, parts: bool) -> tuning.Choice:
    rows, width = x.shape
    require(rows <= MOST_ROWS, f"{rows} rows; {MOST_ROWS} at most")
    block_m = min(TILE_ROWS, max(8, triton.next_power_of_2(rows)))
    kind = ("gated" if gated else "") + ("parts" if parts else "")
    default = some_rows_choice(block_m, outputs, width, gated=gated, parts=parts)
    return tuning.choice("int4_linear", f"m{block_m} n{outputs} k{width} {kind}".strip(), default)


def _launch(
    x: Tensor, words: Tensor, groups: Tensor, y: Tensor, bias: Tensor | None, gated: bool, choice: tuning.Choice
) -> None:
    rows, chunks = len(x), len(groups)
    arguments = choice.arguments()
    splits = arguments.pop("SPLITS")
    require(chunks % splits == 0, f"{choice} does not divide {chunks} groups of columns")
    if rows == 0:
        return
    block_m = min(TILE_ROWS, max(8, triton.next_power_of_2(rows)))
    outputs = y.shape[-1]
    grid = (triton.cdiv(outputs, arguments["BLOCK_N"]), splits, triton.cdiv(rows, block_m))
    _some_rows[grid](
        x, words, groups, y, bias, rows, outputs, chunks, splits, BIAS=bias is not None, GATED=gated,
        BF16=x.dtype == torch.bfloat16, PACKED=not triton.knobs.runtime.interpret, BLOCK_M=block_m, **arguments,
        **chained(),
    )  # fmt: skip


def one_row_choice(width: int, *, gated: bool) -> tuning.Choice:
    """Warps side by side along the columns, 8 groups each: then words, groups and x meet in a thread's registers."""
    block_n, warps = (1, 2) if gated else (2, 2)
    return tuning.Choice.of(warps, stages=1, BLOCK_N=block_n, CHUNKS=8 * warps)


def some_rows_choice(block_m: int, outputs: int, width: int, *, gated: bool, parts: bool) -> tuning.Choice:
    block_n, warps, stages = (16, 1, 6) if block_m <= 16 else (64, 4, 4) if block_m <= 64 or gated else (128, 8, 4)
    splits, chunks = 1, width // GROUP
    while parts and splits < 8 and -(-outputs // block_n) * splits < 264 and chunks % (2 * splits) == 0:
        splits *= 2
    return tuning.Choice.of(warps, stages, BLOCK_N=block_n, SPLITS=splits)


def one_row_candidates(width: int) -> list[tuning.Choice]:
    """What is worth timing on a card."""
    return [
        tuning.Choice.of(warps, stages=1, BLOCK_N=block_n, CHUNKS=8 * warps)
        for block_n in (1, 2, 4)
        for warps in (1, 2, 4)
        if width // GROUP >= 8 * warps
    ]


def some_rows_candidates(block_m: int, outputs: int, width: int, *, parts: bool) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    if block_m <= 16:
        tiles = [(16, 1), (32, 1), (32, 2), (64, 2), (64, 4)]
    elif block_m <= 64:
        tiles = [(32, 2), (64, 4), (128, 4), (128, 8)]
    else:
        tiles = [(64, 4), (128, 4), (128, 8)]
    chunks = width // GROUP
    return [
        tuning.Choice.of(warps, stages, BLOCK_N=block_n, SPLITS=splits)
        for block_n, warps in tiles
        for stages in (3, 4, 6)
        for splits in ((1, 2, 4, 8) if parts else (1,))
        if chunks % splits == 0 and -(-outputs // block_n) * splits <= max(1100, -(-outputs // block_n))
    ]
