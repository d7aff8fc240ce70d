# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products of blocks of pairs by the experts' weights in MXFP4 (OCP Microscaling Formats 1.0), which are unpacked in
registers before the tensor cores: see `mxfp4_reference`.

For bfloat16, two numbers at a time are shifted so that their bits are at bfloat16's sign, lowest exponent bits and
highest mantissa bit. The result is too small by 2 ** 126, for subnormal numbers too. Half of this factor is included in
the scale, which multiplies a pair at once, and half is applied to the sum, so that no exponent overflows. Powers of two
are exact, except that a product below 2 ** -62 becomes zero. Biases, the gate and the factors of a token's experts are
applied to the sums in registers.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.moe import reference
from backend.kernels.moe.mxfp4_reference import CHUNK, Gate, require_packed
from backend.kernels.moe.reference import Blocks

SIZES: tuple[int, ...] = (8, *reference.SIZES)  # block sizes
FEW_BLOCKS = 16  # up to this many blocks, too few programs run to hide the memory latency


@triton.jit
def _pairs(words, scale, J: tl.constexpr, PACKED: tl.constexpr):
    """Return the numbers at place J times 2 ** (scale - 191), bfloat16 [N, 32]. words: [N, 16]; scale: e8m0 [N, 1]."""
    low_bits: tl.constexpr = 0x01C001C0
    if J < 2:  # noqa: SIM108 -- a constant condition, resolved by the compiler
        size = (words << (6 - 4 * J)) & low_bits
    else:
        size = (words >> (4 * J - 6)) & low_bits
    pairs = ((words << (12 - 4 * J)) & -0x7FFF8000) | size
    factor = (scale + 62) << 7
    if PACKED:
        pairs = tl.inline_asm_elementwise(
            "{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 $0, $1, $2, zero; }",
            "=r,r,r", [pairs, factor | (factor << 16)], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    low = (pairs & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = ((pairs >> 16) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    found = tl.reshape(tl.join(low, high), [words.shape[0], 32])
    if not PACKED:
        found *= factor.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return found


@triton.jit
def _numbers(four, scale):
    """Return e2m1 numbers times 2 ** (scale - 127), float32. four: int32, 0 to 15; scale: int32, e8m0."""
    bits = ((four & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2 ** 126
    size = bits * (scale << 23).to(tl.float32, bitcast=True)
    return tl.where(four > 7, -size, size)


@triton.jit
def _weights(words, groups, J: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr, dtype: tl.constexpr):
    scale = ((groups >> (8 * J)) & 0xFF)[:, None]
    if BF16:
        return _pairs(words, scale, J, PACKED)
    low, high = _numbers((words >> (4 * J)) & 0xF, scale), _numbers((words >> (4 * J + 16)) & 0xF, scale)
    return tl.reshape(tl.join(low, high), [words.shape[0], 32]).to(dtype)


@triton.jit(do_not_specialize=["rows"])
def _grouped_mxfp4(
    x_ptr, word_ptr, group_ptr, bias_ptr, slot_ptr, expert_ptr, factor_ptr, y_ptr, rows, outputs, width, limit, slope,
    PER_TOKEN: tl.constexpr, OWN: tl.constexpr, GATED: tl.constexpr, BF16: tl.constexpr, PACKED: tl.constexpr,
    EVEN: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """outputs: columns of y. With a gate, the rows of the weights are gate and up interleaved. OWN: see `products`."""
    after_predecessors(CHAINED)
    block = tl.program_id(1)
    expert = tl.load(expert_ptr + block)
    if expert < 0:
        return
    slots = tl.load(slot_ptr + block * SIZE + tl.arange(0, SIZE))
    taken = slots >= 0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_n = n < outputs
    real = tl.minimum(n, outputs - 1) * (2 if GATED else 1)
    total = outputs * (2 if GATED else 1)
    chunks = (width + 127) // 128
    lane = tl.arange(0, 16)
    first = expert.to(tl.int64) * total
    word_row = word_ptr + (first + real)[:, None] * (chunks * 16) + lane[None, :]
    group_row = group_ptr + first * chunks + real
    column = tl.arange(0, 32)
    row = slots if OWN else slots // PER_TOKEN
    x_row = x_ptr + row[None, :].to(tl.int64) * width + column[:, None]
    acc = tl.zeros([BLOCK_N, SIZE], tl.float32)
    up = tl.zeros([BLOCK_N, SIZE], tl.float32)
    for chunk in tl.range(0, chunks):
        words, groups = tl.load(word_row + chunk * 16), tl.load(group_row + chunk * total)
        if GATED:
            up_words = tl.load(word_row + chunks * 16 + chunk * 16)
            up_groups = tl.load(group_row + chunk * total + 1)
        for j in tl.static_range(4):
            at = chunk * 128 + j * 32
            inside = taken[None, :] if EVEN else taken[None, :] & (at + column < width)[:, None]
            x = tl.load(x_row + at, inside, 0.0)
            weights = _weights(words, groups, j, BF16, PACKED, x.dtype)
            acc = tl.dot(weights, x, acc, input_precision="ieee")
            if GATED:
                weights = _weights(up_words, up_groups, j, BF16, PACKED, x.dtype)
                up = tl.dot(weights, x, up, input_precision="ieee")
    if BF16:
        acc *= 18446744073709551616.0  # 2 ** 64
        up *= 18446744073709551616.0
    acc += tl.load(bias_ptr + first + real).to(tl.float32)[:, None]
    if GATED:
        up += tl.load(bias_ptr + first + real + 1).to(tl.float32)[:, None]
        gate = tl.minimum(acc, limit)
        acc = gate / (1.0 + tl.exp(-slope * gate)) * (tl.minimum(tl.maximum(up, -limit), limit) + 1.0)
    to = slots
    if OWN:
        acc *= tl.load(factor_ptr + slots, taken, 0.0)[None, :]
        to = slots % PER_TOKEN * (rows // PER_TOKEN) + slots // PER_TOKEN
    tl.store(y_ptr + to[None, :].to(tl.int64) * outputs + n[:, None], acc, inside_n[:, None] & taken[None, :])


def grouped_mxfp4(
    x: Tensor, words: Tensor, groups: Tensor, bias: Tensor, blocks: Blocks, *, per_token: int, gate: Gate | None = None,
    factors: Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Multiply each pair by its expert's weight and add the expert's bias.

    Args:
        x: [tokens, width], or with factors [pairs, width], contiguous, float16/bfloat16/float32; width a multiple of
            32.
        words, groups: int32, see `mxfp4_reference`. bias: [experts, outputs], contiguous, any float type.
        blocks: the pairs, see `blocks.blocks_by_expert`. per_token: experts of a token.
        gate: the weights have gate and up rows interleaved, and the result is `reference.clamped_gate` of them.
        factors: float32 [tokens, per_token], factors of the products.
        out_dtype: dtype of the result; None: x's dtype.
    Returns:
        [pairs, outputs], or with factors [per_token, tokens, outputs], where the sum over the first dimension is the
        result of a token. Accumulated in float32 and rounded once.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    pairs, outputs = require_packed(x, words, groups, bias, per_token, gate, factors)
    own, width = factors is not None, x.shape[1]
    shape = (per_token, pairs // per_token, outputs) if own else (pairs, outputs)
    y = x.new_empty(shape, dtype=out_dtype or x.dtype)
    limit, slope = gate or (0.0, 0.0)

    def launch(choice: tuning.Choice) -> None:
        arguments = choice.arguments()
        _grouped_mxfp4[(triton.cdiv(outputs, arguments["BLOCK_N"]), len(blocks.experts))](
            x, words, groups, bias, blocks.slots, blocks.experts, factors, y, len(x), outputs, width, limit, slope,
            PER_TOKEN=per_token, OWN=own, GATED=gate is not None, BF16=x.dtype == torch.bfloat16,
            PACKED=not triton.knobs.runtime.interpret, EVEN=width % CHUNK == 0, SIZE=blocks.size, **arguments,
            **chained(),
        )  # fmt: skip

    if pairs:
        tuning.launched(_lookup(x, outputs, blocks, len(words), gated=gate is not None), launch)
    return y


def _lookup(x: Tensor, outputs: int, blocks: Blocks, experts: int, *, gated: bool) -> tuning.Lookup:
    size, few = blocks.size, len(blocks.experts) <= FEW_BLOCKS
    kind = ("few " if few else "") + ("gated " if gated else "") + str(x.dtype).removeprefix("torch.")
    default = default_choice(size, gated=gated, few=few)
    return tuning.Lookup(
        "grouped_mxfp4",
        f"b{size} e{experts} n{outputs} k{x.shape[1]} {kind}",
        default,
        partial(candidates, size, gated=gated),
    )


def default_choice(size: int, *, gated: bool, few: bool) -> tuning.Choice:
    """Return the choice measured on an H200 at the shapes of gpt-oss-20b. The choice for few blocks was not measured:
    many small programs, each with many loads in flight."""
    if size == 8 and few:
        return tuning.Choice.of(1, 6, BLOCK_N=16)
    if size <= 16:
        return tuning.Choice.of(2, 3 if gated else 4, BLOCK_N=32 if gated and size == 8 else 64)
    if size <= 64:
        return tuning.Choice.of(4, 3, BLOCK_N=64 if gated else 128)
    return tuning.Choice.of(8, 4, BLOCK_N=128 if gated else 256)


def candidates(size: int, *, gated: bool) -> list[tuning.Choice]:
    """Return the choices to time on a GPU. One that needs too much shared memory fails to launch and is skipped."""
    tiles, depths = [(64, 4), (128, 4), (128, 8), (64, 8), (256, 8)], [2, 3, 4]
    if size == 8:
        tiles, depths = [(16, 1), (32, 1), (32, 2), (64, 2), (64, 4)], [3, 4, 6, 8]
    elif size < 64:
        tiles, depths = [(32, 2), (64, 2), (64, 4), (128, 4), (128, 8)], [2, 3, 4, 6]
    return [
        tuning.Choice.of(warps, stages, BLOCK_N=block_n)
        for block_n, warps in tiles
        for stages in depths
        if not (gated and block_n == 256)
    ]


def block_size(pairs: int, experts: int, *, batch_invariant: bool = False) -> int:
    """Return the slots of a block: twice the average number of pairs per expert, so that most experts have one block
    and their weights are unpacked once.

    batch_invariant: one size for every number of pairs.
    """
    if batch_invariant:
        return reference.INVARIANT_SIZE
    return next((size for size in SIZES if size * experts >= 2 * pairs), SIZES[-1])
