# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Sorts pairs of token and expert into blocks by expert: see `reference`.

One kernel handles the pairs of a decode step. Each of its programs counts the pairs of every expert, which costs less
than a round trip to memory between two kernels, and places some of the pairs. Prompts use torch's sort, because their
products take a hundred times as long.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.moe import reference
from backend.kernels.moe.reference import MOST_EXPERTS, Blocks, blocks_needed

FEW_PAIRS = 1024
PLACED = 32  # pairs, and blocks, per program
CHUNK = 64  # pairs counted at once


@triton.jit(do_not_specialize=["pairs", "blocks"])
def _place(
    chosen_ptr, slot_ptr, expert_ptr, pairs, blocks, size, experts, EXPERTS: tl.constexpr, PLACED: tl.constexpr,
    CHUNK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    mine = tl.program_id(0) * PLACED + tl.arange(0, PLACED)
    expert = tl.load(chosen_ptr + mine, mine < pairs, -1)
    names = tl.arange(0, EXPERTS)
    count = tl.zeros([EXPERTS], tl.int32)
    rank = tl.zeros([PLACED], tl.int32)  # position among the pairs of the same expert
    for start in range(0, pairs, CHUNK):
        other = start + tl.arange(0, CHUNK)
        others = tl.load(chosen_ptr + other, other < pairs, -1)
        count += tl.sum((others[None, :] == names[:, None]).to(tl.int32), 1)
        before = (others[None, :] == expert[:, None]) & (other[None, :] < mine[:, None])
        rank += tl.sum(before.to(tl.int32), 1)
    filled = (count + size - 1) // size
    ends = tl.cumsum(filled, 0)
    first = tl.sum(tl.where(names[None, :] < expert[:, None], filled[None, :], 0), 1)
    tl.store(slot_ptr + first * size + rank, mine, mine < pairs)
    owner = tl.sum((ends[None, :] <= mine[:, None]).to(tl.int32), 1)
    tl.store(expert_ptr + mine, tl.where(owner < experts, owner, -1), mine < blocks)


def blocks_by_expert(chosen: Tensor, experts: int, size: int) -> Blocks:
    """Sort the routed pairs into blocks.

    Args:
        chosen: int32 [tokens, per_token], contiguous, the experts of each token, 0 to `experts` - 1.
        experts: number of experts. size: slots of a block.
    Returns:
        Blocks of one expert each, see `reference.Blocks`.
    Raises:
        KernelArgumentError: the shape or the dtype of `chosen` is wrong.
    """
    require(chosen.dim() == 2 and chosen.is_contiguous() and chosen.dtype == torch.int32, "experts are int32, by token")
    require(0 < experts <= MOST_EXPERTS and size > 0, f"{experts} experts in blocks of {size}")
    pairs = chosen.numel()
    if not 0 < pairs <= FEW_PAIRS:
        return reference.blocks_by_expert(chosen, experts, size)
    blocks = blocks_needed(pairs, experts, size)
    slots = torch.full((blocks * size,), -1, dtype=torch.int32, device=chosen.device)
    owners = chosen.new_empty(blocks)
    _place[(triton.cdiv(max(pairs, blocks), PLACED),)](
        chosen, slots, owners, pairs, blocks, size, experts, EXPERTS=triton.next_power_of_2(experts), PLACED=PLACED,
        CHUNK=CHUNK, num_warps=4 if experts <= 64 else 8, **chained(),  # counting takes EXPERTS x CHUNK registers
    )  # fmt: skip
    return Blocks(slots, owners, size)
