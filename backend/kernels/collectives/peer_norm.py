# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What all ranks add to a residual, summed, added and normalised in one kernel over peer memory.

A row has a program on each card. It writes its own part where the others can read it, tells them, waits for theirs, and
adds all parts in the order of the ranks, so that every card gets the same bits. What would be a launch for the sum and
one for the norm behind it is one, and the kernel behind it is set up, and reads its first weights, while this one waits
for the other cards.

There are two places for a row, used in turn. A rank writes a place again only after it has seen the signal of the turn
between, which the others gave after they had read it; so one signal a turn is enough. Turns are counted on the device,
row by row, since captured steps follow one another in any order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, require, require_rows
from backend.kernels.linear.quant import row_scale

PLACES = 2


@triton.jit
def _peer_rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, h_ptr, scale_ptr, buffers, signals, turns_ptr, place, width, eps,
    PARTS: tl.constexpr, QUANTISE: tl.constexpr, FP8_MAX: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < width
    at = row * width + col
    weight = tl.load(weight_ptr + col, inside, 0.0).to(tl.float32)
    after_predecessors(CHAINED)
    turn = tl.load(turns_ptr + row)
    own = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        own += tl.load(x_ptr + part * tl.num_programs(0) * width + at, inside, 0.0)
    kind = residual_ptr.dtype.element_ty
    there = (turn & 1) * place + at
    told = own.to(kind)
    tl.store(buffers[RANK] + there, told, inside)
    residual = tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
    tl.debug_barrier()
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            tl.atomic_xchg(signals[rank] + row * SIZE + RANK, turn + 1, sem="release", scope="sys")
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            seen = tl.atomic_add(signals[RANK] + row * SIZE + rank, 0, sem="acquire", scope="sys")
            while seen - (turn + 1) < 0:  # turns pass 2**31 after some days
                seen = tl.atomic_add(signals[RANK] + row * SIZE + rank, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(SIZE):
        if rank == RANK:
            total += told.to(tl.float32)
        else:
            total += tl.load(buffers[rank] + there, inside, 0.0, cache_modifier=".cg").to(tl.float32)
    h = residual + total
    tl.store(h_ptr + at, h, inside)
    y = h * tl.rsqrt(tl.sum(h * h, 0) / width + eps) * weight
    if QUANTISE:
        scale = row_scale(tl.max(tl.abs(y), 0), FP8_MAX)
        tl.store(scale_ptr + row, scale)
        y = tl.clamp(y / scale, -FP8_MAX, FP8_MAX)
    tl.store(y_ptr + at, y, inside)
    tl.store(turns_ptr + row, turn + 1)


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """What the ranks share.

    Attributes:
        buffers: of each card, in the residual's dtype, [PLACES * most].
        signals: of each card, int32 [rows, ranks], zeros at first.
        turns: int32 [rows], of this rank, zeros at first.
        rank: whose card this is.
    """

    buffers: tuple[Tensor, ...]
    signals: tuple[Tensor, ...]
    turns: Tensor
    rank: int

    @property
    def most(self) -> int:
        """Numbers that are summed at a time."""
        return len(self.buffers[0]) // PLACES

    def holds(self, tokens: int, width: int) -> bool:
        return tokens <= len(self.turns) and tokens * width <= self.most


def peer_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: PeerMemory
) -> tuple[Tensor, Tensor]:
    """`rms_norm.add_rms_norm` of the sum of all ranks' x.

    Args:
        x: this rank's part, [tokens, width], or in parts, float32 [parts, tokens, width].
        residual: [tokens, width], the same on all ranks.
    Returns:
        (normalised, new residual), as `add_rms_norm`.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    y, h = torch.empty_like(residual), torch.empty_like(residual)
    _launch(x, residual, weight, eps, memory, y, h, None)
    return y, h


def peer_add_rms_norm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: PeerMemory
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, quantised as by `rms_norm.add_rms_norm_fp8`: (float8_e4m3fn, scale [tokens, 1], new residual)."""
    y, h = torch.empty_like(residual, dtype=FP8), torch.empty_like(residual)
    scale = torch.empty(len(residual), 1, dtype=torch.float32, device=residual.device)
    _launch(x, residual, weight, eps, memory, y, h, scale)
    return y, scale, h


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: PeerMemory, y: Tensor, h: Tensor,
    scale: Tensor | None,
) -> None:  # fmt: skip
    parts = len(x) if x.dim() == 3 else 1
    tokens, width = require_rows("x", x[0] if x.dim() == 3 else x)
    require(parts == 1 or x.is_contiguous(), "parts are contiguous")
    require(residual.shape == (tokens, width) and residual.is_contiguous(), "residual must be contiguous, of x's shape")
    require(weight.shape == (width,) and weight.is_contiguous(), f"weight must be [{width}], got {tuple(weight.shape)}")
    require(residual.dtype == memory.buffers[0].dtype, f"peer memory is of {memory.buffers[0].dtype}")
    require(memory.holds(tokens, width), f"{tokens} rows of {width} do not fit into peer memory")
    if tokens:
        block = triton.next_power_of_2(width)
        _peer_rms_norm[(tokens,)](
            x, residual, weight, y, h, scale, memory.buffers, memory.signals, memory.turns, memory.most, width, eps,
            PARTS=parts, QUANTISE=scale is not None, FP8_MAX=FP8_MAX, RANK=memory.rank, SIZE=len(memory.buffers),
            BLOCK=block, num_warps=min(16, max(1, block // 512)), **chained(),
        )  # fmt: skip
