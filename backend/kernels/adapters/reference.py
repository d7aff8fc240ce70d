"""Products of adapters (Hu et al. 2022, LoRA) in torch: ``y += (x @ aᵀ) @ bᵀ`` with the adapter of each row.

This is also the CPU path. The rows of one adapter are a segment (Chen et al. 2024, Punica). The kernels divide segments
into blocks of one adapter each, as `kernels.moe` does for pairs of token and expert, so that shapes do not depend on
the use of adapters and a step can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.launching.launch import require
from backend.kernels.moe.reference import MOST_EXPERTS, Blocks

MOST_RANK = 256
MOST_ADAPTERS = MOST_EXPERTS - 1


@dataclass(frozen=True, slots=True)
class Segments:
    """The adapters of a step's rows.

    Attributes:
        slots: int32 [rows], the adapter of each row, -1 for none.
        blocks: the rows in blocks by adapter; None where the torch twin is used.
        batch_invariant: tiles do not depend on the number of rows.
    """

    slots: Tensor
    blocks: Blocks | None = None
    batch_invariant: bool = False


def segments(slots: Tensor, adapters: int, *, batch_invariant: bool = False) -> Segments:
    """See `deltas.segments`."""
    require_slots(slots, adapters)
    return Segments(slots, batch_invariant=batch_invariant)


def shrink(x: Tensor, a: Tensor, rows: Segments, groups: int = 1, *, chain: bool = True) -> Tensor:
    """See `deltas.shrink`. Rows without an adapter get zeros."""
    require_shrink(x, a, rows, groups)
    h = x.new_zeros(1, len(x), a.shape[1], dtype=torch.float32)
    for slot, own in _segments(rows):
        h[0, own] = x[own].float() @ a[slot].float().t()
    return h


def expand(y: Tensor, h: Tensor, b: Tensor, rows: Segments, heights: tuple[int, ...], *, chain: bool = True) -> None:
    """See `deltas.expand`."""
    rank = require_expand(y, h, b, rows, heights)
    found = h.sum(0).to(b.dtype)
    for slot, own in _segments(rows):
        inner = found[own]
        added = [
            inner[:, i * rank : (i + 1) * rank].float() @ part.float().t()
            for i, part in enumerate(torch.split(b[slot], list(heights)))
        ]
        y[own] = (y[own].float() + torch.cat(added, 1)).to(y.dtype)


def _segments(rows: Segments) -> list[tuple[int, Tensor]]:
    """Return each adapter in use and the indices of its rows."""
    used = sorted(slot for slot in set(rows.slots.tolist()) if slot >= 0)
    return [(slot, (rows.slots == slot).nonzero(as_tuple=True)[0]) for slot in used]


def slots_of_tokens(rows: Tensor, query_start: Tensor, slots: Tensor, out: Tensor) -> None:
    """Write the adapter of each token of a flat batch, without a wait for the device.

    Args:
        rows: int32 [sequences], row of each sequence in the device's tables, -1 for none.
        query_start: int32 [sequences + 1], first token of each sequence; tokens from the last entry on are padding.
        slots: int32 [rows of the tables], the adapter of each row, -1 for none.
        out: int32 [tokens], written.
    """
    own = torch.where(rows >= 0, slots[rows.clamp(min=0).long()], -1)
    own = torch.cat((own, own.new_full((1,), -1)))  # for padding
    token = torch.arange(len(out), dtype=query_start.dtype, device=out.device)
    out.copy_(own[torch.searchsorted(query_start[1:].contiguous(), token, right=True)])


def require_slots(slots: Tensor, adapters: int) -> None:
    """Raise KernelArgumentError if the shape or dtype of `slots`, or the number of adapters, is wrong."""
    fits = slots.dim() == 1 and slots.dtype == torch.int32 and slots.is_contiguous()
    require(fits, f"slots are contiguous int32 [rows], got {slots.dtype} {tuple(slots.shape)}")
    require(0 < adapters <= MOST_ADAPTERS, f"{adapters} adapters; 1 to {MOST_ADAPTERS}")


def require_shrink(x: Tensor, a: Tensor, rows: Segments, groups: int) -> None:
    """Raise KernelArgumentError for shapes or dtypes that do not fit."""
    fits = x.dim() == 2 and a.dim() == 3 and x.shape[1] == a.shape[2] and x.dtype == a.dtype
    require(fits, f"x {list(x.shape)} {x.dtype} is not multiplied by {list(a.shape)} {a.dtype}")
    require(x.is_contiguous() and a.is_contiguous(), "x and a must be contiguous")
    require(groups > 0 and a.shape[1] % groups == 0, f"{a.shape[1]} rows of a do not make {groups} groups")
    require(a.shape[1] // groups <= MOST_RANK, f"rank {a.shape[1] // groups}; {MOST_RANK} at most")
    require(len(rows.slots) == len(x), f"{len(rows.slots)} slots for {len(x)} rows")


def require_expand(y: Tensor, h: Tensor, b: Tensor, rows: Segments, heights: tuple[int, ...]) -> int:
    """Return the rank. Raises KernelArgumentError for shapes or dtypes that do not fit."""
    require(y.dim() == 2 and y.is_contiguous() and b.dim() == 3 and b.is_contiguous(), "y and b must be contiguous")
    rank = b.shape[2]
    fits = h.dim() == 3 and h.shape[1:] == (len(y), rank * len(heights)) and h.dtype == torch.float32
    require(
        fits and h.is_contiguous(), f"h {list(h.shape)} {h.dtype} does not fit y {list(y.shape)}, b {list(b.shape)}"
    )
    require(sum(heights) == y.shape[1] == b.shape[1], f"heights {heights} are not those of {y.shape[1]} outputs")
    require(1 <= len(heights) <= 3 and len(set(heights[1:])) <= 1, f"heights {heights}: one, two, or two equal last")
    require(0 < rank <= MOST_RANK, f"rank {rank}; {MOST_RANK} at most")
    require(len(rows.slots) == len(y), f"{len(rows.slots)} slots for {len(y)} rows")
    return rank
