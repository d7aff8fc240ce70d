"""Sums of small tensors over cards of one host, in one step over peer memory.

Each rank writes its tensor into memory that the others can read, waits for them, and adds up what all have written, in
the order of the ranks: one way of NVLink's latency where a ring takes several. The bits are the same on every rank. The
memory and the operation are torch's (`torch.distributed._symmetric_memory`); multicast is not used.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from backend.parallel.shard import Shard

log = logging.getLogger(__name__)

LIMITS = {2: 1 << 20, 4: 512 << 10, 8: 256 << 10}  # bytes from which the library is faster, by the number of ranks
ALIGNMENT = 16
DTYPES = (torch.bfloat16, torch.float32)


class OneShot:
    """Raises RuntimeError where cards cannot read each other's memory. All ranks make one at the same time."""

    def __init__(self, device: torch.device, size: int, group: dist.ProcessGroup | None = None) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.limit = next((limit for ranks, limit in LIMITS.items() if size <= ranks), 0)
        self._group = (group or dist.group.WORLD).group_name  # type: ignore[union-attr]
        self._memory = symmetric.empty(max(self.limit, ALIGNMENT), dtype=torch.uint8, device=device)
        symmetric.rendezvous(self._memory, self._group)

    def takes(self, x: Tensor) -> bool:
        size = x.numel() * x.element_size()
        return 0 < size <= self.limit and size % ALIGNMENT == 0 and x.dtype in DTYPES and x.is_contiguous()

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in new memory. x: as `takes` says, the same shape on all ranks."""
        place = self._memory[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        found: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(place, x, "sum", self._group)
        return found


NORM_ROWS = 256  # that a card runs at once, so that none waits for one that cannot begin
NORM_LIMITS = {2: 4 << 20, 4: 1 << 20, 8: 512 << 10}  # bytes, as above, of sums with a norm behind them


class NormedSums:
    """Sums whose norm is made in the same kernel (`kernels.collectives.peer_norm`). All ranks make one at the same
    time."""

    def __init__(
        self,
        shard: Shard,
        device: torch.device,
        width: int,
        dtype: torch.dtype,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        import torch.distributed._symmetric_memory as symmetric

        from backend.kernels.collectives.peer_norm import PLACES, PeerMemory

        limit = next((limit for ranks, limit in NORM_LIMITS.items() if shard.size <= ranks), 0)
        rows = max(1, min(NORM_ROWS, limit // (width * dtype.itemsize)))
        numbers = PLACES * rows * width
        size = numbers * dtype.itemsize
        self._memory = symmetric.empty(size + 4 * rows * shard.size, dtype=torch.uint8, device=device)
        self._memory.zero_()
        handle = symmetric.rendezvous(self._memory, (group or dist.group.WORLD).group_name)  # type: ignore[union-attr]
        self._peers = PeerMemory(
            buffers=tuple(handle.get_buffer(rank, (numbers,), dtype, 0) for rank in range(shard.size)),
            signals=tuple(
                handle.get_buffer(rank, (rows, shard.size), torch.int32, size // 4) for rank in range(shard.size)
            ),
            turns=torch.zeros(rows, dtype=torch.int32, device=device),
            rank=shard.rank,
        )
        torch.cuda.synchronize(device)
        dist.barrier(group, device_ids=[device.index or 0])  # no rank may signal before all signals are zero

    def takes(self, tokens: int, width: int) -> bool:
        return self._peers.holds(tokens, width)

    def add_rms_norm(self, added: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from backend.kernels.collectives.peer_norm import peer_add_rms_norm

        return peer_add_rms_norm(added, residual, weight, eps, self._peers)

    def add_rms_norm_fp8(
        self, added: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        from backend.kernels.collectives.peer_norm import peer_add_rms_norm_fp8

        return peer_add_rms_norm_fp8(added, residual, weight, eps, self._peers)


T = TypeVar("T")


def where_all_can(make: Callable[[], T], device: torch.device, group: dist.ProcessGroup | None = None) -> T | None:
    """What `make` makes; None where any rank cannot make it, for all ranks have to sum in one way."""
    made = None
    try:
        made = make()
    except (RuntimeError, ImportError, AttributeError, TypeError) as error:
        log.warning(
            "sums over cards take NCCL alone: %s; small batches are slower, and nothing else changes",
            str(error).splitlines()[0],
        )
    works = torch.tensor([made is not None], dtype=torch.int64, device=device)
    dist.all_reduce(works, op=dist.ReduceOp.MIN, group=group)
    return made if int(works) else None
