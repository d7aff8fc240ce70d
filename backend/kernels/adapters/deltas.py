# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels for the products of adapters, in blocks of rows of one adapter: see `reference`.

Two kernels. `shrink` multiplies rows by A of their adapter; its columns are split among programs, because a decode step
has few blocks. `expand` sums these parts, multiplies by B of the adapter and adds the result to the product of the base
weight. The program of a block without an adapter returns at once. There is no atomic addition: with fixed tiles the
bits of a row depend on that row only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.adapters.reference import Segments, require_expand, require_shrink, require_slots
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.moe.blocks import blocks_by_expert
from backend.kernels.moe.reference import Blocks

FEW_ROWS, SMALL, LARGE, INVARIANT = 512, 16, 64, 32  # rows of a step, and block sizes
COLUMNS = 512  # least number of columns in a part of `shrink`
MOST_PARTS = 8


@triton.jit(do_not_specialize=["rows"])
def _shrink(
    x_ptr, a_ptr, slot_ptr, adapter_ptr, h_ptr, rows, width, rank, part,
    GROUPS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """part: number of columns of a program, a multiple of BLOCK_K."""
    after_predecessors(CHAINED)
    block = tl.program_id(0)
    adapter = tl.load(adapter_ptr + block)
    if adapter < 0:
        return
    group = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(slot_ptr + block * SIZE + tl.arange(0, SIZE))
    taken = row >= 0
    r = tl.arange(0, RANK)
    a_row = a_ptr + ((adapter.to(tl.int64) * GROUPS + group) * rank + r[:, None]) * width
    x_row = x_ptr + row[None, :].to(tl.int64) * width
    acc = tl.zeros([RANK, SIZE], tl.float32)
    for start in tl.range(split * part, (split + 1) * part, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_row + k[None, :], (r < rank)[:, None] & (k < width)[None, :], 0.0)
        x = tl.load(x_row + k[:, None], taken[None, :] & (k < width)[:, None], 0.0)
        acc = tl.dot(a, x, acc, input_precision="ieee")
    at = (split * rows + row[None, :]).to(tl.int64) * (GROUPS * rank) + group * rank + r[:, None]
    tl.store(h_ptr + at, acc, (r < rank)[:, None] & taken[None, :])


@triton.jit(do_not_specialize=["rows"])
def _expand(
    y_ptr, h_ptr, b_ptr, slot_ptr, adapter_ptr, rows, outputs, rank, first, other,
    GROUPS: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """first, other: outputs of the first group, and of each other group. A tile lies within one group."""
    after_predecessors(CHAINED)
    block = tl.program_id(0)
    adapter = tl.load(adapter_ptr + block)
    if adapter < 0:
        return
    tile = tl.program_id(1)
    group = 0
    begin = tile * BLOCK_N
    end = first
    if GROUPS > 1:
        tiles = (first + BLOCK_N - 1) // BLOCK_N
        if tile >= tiles:
            each = (other + BLOCK_N - 1) // BLOCK_N
            group = 1 + (tile - tiles) // each
            end = first + group * other
            begin = end - other + (tile - tiles) % each * BLOCK_N
    row = tl.load(slot_ptr + block * SIZE + tl.arange(0, SIZE))
    taken = row >= 0
    r = tl.arange(0, RANK)
    n = begin + tl.arange(0, BLOCK_N)
    h = tl.zeros([RANK, SIZE], tl.float32)
    for split in tl.static_range(PARTS):
        at = (split * rows + row[None, :]).to(tl.int64) * (GROUPS * rank) + group * rank + r[:, None]
        h += tl.load(h_ptr + at, (r < rank)[:, None] & taken[None, :], 0.0)
    b_at = (adapter.to(tl.int64) * outputs + n[:, None]) * rank + r[None, :]
    b = tl.load(b_ptr + b_at, (n < end)[:, None] & (r < rank)[None, :], 0.0)
    added = tl.dot(b, h.to(b.dtype), input_precision="ieee")
    inside = (n < end)[:, None] & taken[None, :]
    y_at = y_ptr + row[None, :].to(tl.int64) * outputs + n[:, None]
    tl.store(y_at, tl.load(y_at, inside, 0.0).to(tl.float32) + added, inside)


def segments(slots: Tensor, adapters: int, *, batch_invariant: bool = False) -> Segments:
    """Group rows by adapter. Shapes depend on the number of rows only, and the host does not wait for the device.

    Args:
        slots: int32 [rows], contiguous, from 0 to `adapters` - 1, or -1 for a row without an adapter.
        adapters: number of slots.
        batch_invariant: use one block size for every number of rows.
    Returns:
        The rows in blocks of one adapter each.
    Raises:
        KernelArgumentError: the shape or the dtype of `slots` is wrong.
    """
    require_slots(slots, adapters)
    size = INVARIANT if batch_invariant else SMALL if len(slots) <= FEW_ROWS else LARGE
    named = torch.where(slots < 0, adapters, slots).view(-1, 1)  # rows without an adapter get blocks of their own
    if not len(slots):
        return Segments(slots, Blocks(slots, slots, size), batch_invariant)
    found = blocks_by_expert(named, adapters + 1, size)
    owners = torch.where(found.experts == adapters, -1, found.experts)
    return Segments(slots, Blocks(found.slots, owners, size), batch_invariant)


def shrink(x: Tensor, a: Tensor, rows: Segments, groups: int = 1, *, chain: bool = True) -> Tensor:
    """Multiply each row by A of its adapter.

    Args:
        x: [rows, width], contiguous, float16/bfloat16/float32.
        a: [adapters, groups * rank, width], contiguous, of x's dtype.
        rows: from `segments`.
        groups: modules stacked in one matrix.
        chain: take part in `launching.chaining`, where what is before it on its stream does.
    Returns:
        float32 [parts, rows, groups * rank]. The sum over the parts is the product; rows without an adapter are not
        written.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    require_shrink(x, a, rows, groups)
    width, rank = x.shape[1], a.shape[1] // groups
    blocks = _blocks(rows)
    block_k = min(32 if x.element_size() == 4 else 128, max(16, triton.next_power_of_2(width)))
    large = blocks.size == LARGE and not rows.batch_invariant
    parts = 1 if large else max(1, min(MOST_PARTS, width // COLUMNS))
    part = triton.cdiv(width, parts * block_k) * block_k
    parts = triton.cdiv(width, part)
    h = x.new_empty(parts, len(x), groups * rank, dtype=torch.float32)
    if len(x):
        _shrink[(len(blocks.experts), groups, parts)](
            x, a, blocks.slots, blocks.experts, h, len(x), width, rank, part, GROUPS=groups,
            RANK=max(16, triton.next_power_of_2(rank)), SIZE=blocks.size, BLOCK_K=block_k,
            num_warps=4, num_stages=3, **chained(chain),
        )  # fmt: skip
    return h


def expand(
    y: Tensor, h: Tensor, b: Tensor, rows: Segments, heights: tuple[int, ...], *, chain: bool = True
) -> None:  # fmt: skip
    """Multiply the result of `shrink` by B of each row's adapter and add it to `y`.

    Args:
        y: [rows, outputs], contiguous, float16/bfloat16/float32; written in place.
        h: from `shrink`, float32 [parts, rows, groups * rank].
        b: [adapters, outputs, rank], contiguous, scaled.
        rows: from `segments`.
        heights: outputs of each group, in order; all but the first are equal.
        chain: as for `shrink`.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    rank = require_expand(y, h, b, rows, heights)
    blocks = _blocks(rows)
    first, other = heights[0], heights[-1] if len(heights) > 1 else 1
    block_n = 64 if blocks.size == LARGE or b.element_size() == 4 else 128
    tiles = triton.cdiv(first, block_n) + (len(heights) - 1) * triton.cdiv(other, block_n)
    if len(y):
        _expand[(len(blocks.experts), tiles)](
            y, h, b, blocks.slots, blocks.experts, len(y), y.shape[1], rank, first, other, GROUPS=len(heights),
            PARTS=len(h), RANK=max(16, triton.next_power_of_2(rank)), SIZE=blocks.size, BLOCK_N=block_n,
            num_warps=4, **chained(chain),
        )  # fmt: skip


def _blocks(rows: Segments) -> Blocks:
    require(rows.blocks is not None, "segments are laid out in blocks by this module's `segments`")
    assert rows.blocks is not None  # noqa: S101 -- checked above
    return rows.blocks
