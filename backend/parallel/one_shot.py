"""Sums of small tensors over cards of one host, in one step over peer memory.

Each rank writes its tensor into memory that the others can read, waits for them, and adds up what all have written, in
the order of the ranks: one way of NVLink's latency where a ring takes several. The bits are the same on every rank. The
memory and the operation are torch's (`torch.distributed._symmetric_memory`); multicast is not used.
"""

import logging

import torch
import torch.distributed as dist
from torch import Tensor

log = logging.getLogger(__name__)

LIMITS = {2: 1 << 20, 4: 512 << 10, 8: 256 << 10}  # bytes from which the library is faster, by the number of ranks
ALIGNMENT = 16
DTYPES = (torch.bfloat16, torch.float32)


class OneShot:
    """Raises RuntimeError where cards cannot read each other's memory. All ranks make one at the same time."""

    def __init__(self, device: torch.device, size: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.limit = next((limit for ranks, limit in LIMITS.items() if size <= ranks), 0)
        self._group = dist.group.WORLD.group_name  # type: ignore[union-attr]
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


def one_shot(device: torch.device, size: int) -> OneShot | None:
    """None where any rank cannot do it: all ranks have to sum in one way."""
    made = None
    try:
        made = OneShot(device, size)
    except (RuntimeError, ImportError, AttributeError) as error:
        log.warning("small sums take NCCL: %s", str(error).splitlines()[0])
    works = torch.tensor([made is not None], dtype=torch.int64, device=device)
    dist.all_reduce(works, op=dist.ReduceOp.MIN)
    return made if int(works) else None
