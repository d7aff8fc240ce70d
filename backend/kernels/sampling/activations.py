# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The largest activations of each row of a step, for commitments (`backend.activations`).

Which magnitude is the smallest that is taken is found bit by bit: as integers, the magnitudes of bfloat16 have 15 bits,
so that 15 counts over a row in registers take the place of a sort. Of equal magnitudes the lower places are taken.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require, require_rows

MOST_BITS = 15


@triton.jit
def _largest(states_ptr, out_ptr, width, MOST: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < width
    x = tl.load(states_ptr + row * width + place, inside, 0.0).to(tl.float32).to(tl.uint32, bitcast=True)
    bits = ((x + 0x7FFF + ((x >> 16) & 1)) >> 16).to(tl.int32)  # bfloat16, rounded to nearest even
    magnitude = tl.where(inside, bits & 0x7FFF, -1)
    least = 0
    for step in tl.static_range(BITS):
        candidate = least | (1 << (BITS - 1 - step))
        least = tl.where(tl.sum((magnitude >= candidate).to(tl.int32), 0) >= MOST, candidate, least)
    above = magnitude > least
    equal = magnitude == least
    left = MOST - tl.sum(above.to(tl.int32), 0)
    taken = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))
    to = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(out_ptr + row * MOST + to, (bits << 16) | place, taken)


def largest_activations(states: Tensor, most: int, out: Tensor | None = None) -> Tensor:
    """The values of largest magnitude of each row, rounded to bfloat16, with their places, in the order of these.

    Args:
        states: [rows, width], contiguous, float32/float16/bfloat16, at most 65536 wide.
        most: how many; a narrower row is taken whole. out: where to leave them, contiguous; None: in new memory.
    Returns:
        [rows, min(most, width)] int32: the bits of the value above 16 bits of its place.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    rows, width = require_rows("states", states)
    require(0 < width <= 1 << 16, f"states are {width} wide, and a place takes 16 bits")
    most = min(most, width)
    if out is None:
        out = states.new_empty((rows, most), dtype=torch.int32)
    fits = out.shape == (rows, most) and out.dtype == torch.int32 and out.is_contiguous()
    require(fits, f"out must be contiguous int32 [{rows}, {most}], got {out.dtype} {tuple(out.shape)}")
    if rows:
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // 512))
        _largest[(rows,)](states, out, width, MOST=most, BLOCK=block, BITS=MOST_BITS, num_warps=warps)
    return out
