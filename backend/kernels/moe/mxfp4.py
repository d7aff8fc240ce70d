# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Products of blocks of pairs by their experts' weights in MXFP4 (OCP Microscaling Formats 1.0), unpacked on their way
to the tensor cores: see `mxfp4_reference`.

A byte holds two neighbouring columns. They are multiplied apart, even columns of x by the lower halves and odd ones by
the upper, so that nothing is interleaved. Four bits become a float by their place in its exponent and mantissa, and are
scaled before the product: a power of two loses nothing in bfloat16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.moe.mxfp4_reference import GROUP, require_packed
from backend.kernels.moe.reference import Blocks


@triton.jit
def _numbers(four, scale):
    """e2m1 numbers, times 2 ** (scale - 127), in float32. four: int32, 0 to 15; scale: int32, of e8m0."""
    exponent = (four >> 1) & 3
    mantissa = four & 1
    bits = tl.where(exponent > 0, ((exponent + 126) << 23) | (mantissa << 22), mantissa * (126 << 23))
    size = bits.to(tl.float32, bitcast=True) * (scale << 23).to(tl.float32, bitcast=True)
    return tl.where(four > 7, -size, size)


@triton.jit(do_not_specialize=["rows"])
def _grouped_mxfp4(
    x_ptr, block_ptr, scale_ptr, slot_ptr, expert_ptr, y_ptr, rows, outputs, width,
    PER_TOKEN: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BYTES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    block = tl.program_id(1)
    expert = tl.load(expert_ptr + block)
    if expert < 0:
        return
    slots = tl.load(slot_ptr + block * SIZE + tl.arange(0, SIZE))
    taken = slots >= 0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight = expert.to(tl.int64) * outputs + tl.minimum(n, outputs - 1)
    x_row = x_ptr + (slots // PER_TOKEN)[None, :].to(tl.int64) * width
    acc = tl.zeros([BLOCK_N, SIZE], tl.float32)
    for start in tl.range(0, width // 2, BYTES):
        byte = start + tl.arange(0, BYTES)
        inside = byte < width // 2
        packed = tl.load(block_ptr + weight[:, None] * (width // 2) + byte[None, :], inside[None, :], 0).to(tl.int32)
        group = weight[:, None] * (width // 32) + (byte // 16)[None, :]
        scale = tl.load(scale_ptr + group, inside[None, :], 0).to(tl.int32)
        read = taken[None, :] & inside[:, None]
        even = tl.load(x_row + 2 * byte[:, None], read, 0.0)
        odd = tl.load(x_row + 2 * byte[:, None] + 1, read, 0.0)
        acc = tl.dot(_numbers(packed & 15, scale).to(even.dtype), even, acc, input_precision="ieee")
        acc = tl.dot(_numbers(packed >> 4, scale).to(odd.dtype), odd, acc, input_precision="ieee")
    at = slots[None, :].to(tl.int64) * outputs + n[:, None]
    tl.store(y_ptr + at, acc, (n < outputs)[:, None] & taken[None, :])


def grouped_mxfp4(x: Tensor, packed: Tensor, scales: Tensor, blocks: Blocks, *, pairs: int, per_token: int) -> Tensor:
    """The product of each pair by its expert's weight.

    Args:
        x: [pairs / per_token, width], contiguous, float16/bfloat16/float32; width a multiple of 32.
        packed: uint8 [experts, outputs, width / 2], contiguous; scales: uint8 [experts, outputs, width / 32].
        blocks: of the pairs, see `blocks.blocks_by_expert`. per_token: pairs that share a row of x.
    Returns:
        float32 [pairs, outputs].
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    outputs, width = require_packed(x, packed, scales, pairs, per_token)
    y = x.new_empty(pairs, outputs, dtype=torch.float32)
    if pairs:
        block_n = 64 if blocks.size <= 64 else 128
        _grouped_mxfp4[(triton.cdiv(outputs, block_n), len(blocks.experts))](
            x, packed, scales, blocks.slots, blocks.experts, y, len(x), outputs, width, PER_TOKEN=per_token,
            SIZE=blocks.size, BLOCK_N=block_n, BYTES=min(32, max(GROUP // 2, triton.next_power_of_2(width // 2))),
            num_warps=4, num_stages=3, **chained(),
        )  # fmt: skip
    return y
