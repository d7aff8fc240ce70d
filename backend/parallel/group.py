"""The collective operations of a tensor-parallel group.

A group of one is `Alone`, whose operations return what they are given: a model on one card pays nothing for them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from backend.parallel.one_shot import NormedSums, where_all_can
from backend.parallel.pipeline_stages import ONE_STAGE, Pipeline
from backend.parallel.shard import ALONE, Shard

if TYPE_CHECKING:
    from backend.kernels.interface import Kernels


class ParallelGroup(ABC):
    """All ranks call the same operations in the same order, with tensors of the same shape and type.

    ordered: sums are made in one order, whatever their size and however many ranks there are (`layers.in_parts`):
    neighbours first, in float32, as a balanced tree. A library's own order depends on the size of the message, so that
    a token's bits would depend on its batch.
    pipeline: the stages, of which this group computes one.
    spare: each rank holds experts as wholes, and so many slots for copies of others'; None: a part of each expert.
    """

    shard: Shard
    ordered: bool = False
    pipeline: Pipeline = ONE_STAGE
    spare: int | None = None

    def __deepcopy__(self, memo: object) -> "ParallelGroup":
        """A copied model is of the same group."""
        return self

    @property
    def size(self) -> int:
        return self.shard.size

    @property
    def alone(self) -> bool:
        return self.shard.alone

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, the same bits on each. It may write into `x`."""

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`: [size, *x.shape]."""

    @abstractmethod
    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """That of rank `source`, written into `x`."""

    @abstractmethod
    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers. Waits for all."""

    def reserve(self, width: int, dtype: torch.dtype) -> None:
        """Make ready for sums of rows so wide with a norm behind them."""
        return

    def takes_parts(self, tokens: int, width: int) -> bool:
        """Whether `add_rms_norm` had better be given a product in parts."""
        return False

    def add_rms_norm(
        self, kernels: "Kernels", added: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """`kernels.add_rms_norm` of the sum of all ranks' `added`: (normalised, new residual).

        added: [tokens, width], or float32 [parts, tokens, width], which may be written to.
        """
        return kernels.add_rms_norm(self._summed(added, residual.dtype), residual, weight, eps)

    def add_rms_norm_fp8(
        self, kernels: "Kernels", added: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same, quantised: (float8_e4m3fn, scale, new residual)."""
        return kernels.add_rms_norm_fp8(self._summed(added, residual.dtype), residual, weight, eps)

    def _summed(self, added: Tensor, dtype: torch.dtype) -> Tensor:
        return self.all_reduce(added if added.dim() == 2 else added.sum(0).to(dtype))

    @abstractmethod
    def logits(self, x: Tensor, vocabulary: int) -> Tensor:
        """[rows, vocabulary], of all ranks' tokens. x: [rows, columns], of this rank's (`Shard.tokens`), perhaps with
        spare columns behind."""


class Alone(ParallelGroup):
    """One rank."""

    shard = ALONE

    def __init__(self, *, ordered: bool = False, pipeline: Pipeline = ONE_STAGE) -> None:
        self.ordered, self.pipeline = ordered, pipeline

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0)

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        return x

    def least(self, number: int) -> int:
        return number

    def logits(self, x: Tensor, vocabulary: int) -> Tensor:
        return x


SINGLE = Alone()
SINGLE_ORDERED = Alone(ordered=True)


class SmallSums(Protocol):
    """See `one_shot`."""

    def takes(self, x: Tensor) -> bool: ...

    def all_reduce(self, x: Tensor) -> Tensor: ...


class DistributedGroup(ParallelGroup):
    """Ranks of torch.distributed: those of a stage.

    group: theirs; None: the default group, of all ranks. small: a faster way for small tensors, if there is one.
    """

    def __init__(
        self,
        shard: Shard,
        device: torch.device,
        *,
        ordered: bool = False,
        small: SmallSums | None = None,
        pipeline: Pipeline = ONE_STAGE,
        group: dist.ProcessGroup | None = None,
        spare: int | None = None,
    ) -> None:
        self.shard, self.pipeline, self.spare = shard, pipeline, spare
        self._group = group
        self.device = device
        self.ordered = ordered
        self.small = small
        self._normed: NormedSums | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.ordered:
            return tree_sum(self.all_gather(x)).to(x.dtype)
        x = x.contiguous()
        if self.small is not None and self.small.takes(x):
            return self.small.all_reduce(x)
        dist.all_reduce(x, group=self._group)
        return x

    def reserve(self, width: int, dtype: torch.dtype) -> None:
        if self.small is not None:
            group = self._group
            self._normed = where_all_can(
                lambda: NormedSums(self.shard, self.device, width, dtype, group), self.device, group
            )

    def takes_parts(self, tokens: int, width: int) -> bool:
        return self._normed is not None and self._normed.takes(tokens, width)

    def add_rms_norm(
        self, kernels: "Kernels", added: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if self._normed is not None and self._normed.takes(*residual.shape):
            return self._normed.add_rms_norm(added, residual, weight, eps)
        return super().add_rms_norm(kernels, added, residual, weight, eps)

    def add_rms_norm_fp8(
        self, kernels: "Kernels", added: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._normed is not None and self._normed.takes(*residual.shape):
            return self._normed.add_rms_norm_fp8(added, residual, weight, eps)
        return super().add_rms_norm_fp8(kernels, added, residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(self.size, *x.shape)
        _gather(out.view(-1), x.view(-1), group=self._group)
        return out

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        dist.broadcast(x, self.pipeline.stage.index * self.size + source, group=self._group)
        return x

    def least(self, number: int) -> int:
        held = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.all_reduce(held, op=dist.ReduceOp.MIN, group=self._group)
        return int(held)

    def logits(self, x: Tensor, vocabulary: int) -> Tensor:
        each = self.shard.most_tokens(vocabulary)
        gathered = self.all_gather(x)
        parts = [gathered[rank][:, : max(0, min(each, vocabulary - rank * each))] for rank in range(self.size)]
        return torch.cat(parts, 1)


_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""Its name from torch 2.13 on, and before."""


def tree_sum(parts: Tensor) -> Tensor:
    """The sum over the first dimension in float32, neighbours first: 0 + 1, 2 + 3, then their sums, and so on. parts:
    [count, ...]; a count that is no power of two leaves its last to the next level."""
    rows = list(parts.float().unbind(0))
    while len(rows) > 1:
        added = [rows[i] + rows[i + 1] for i in range(0, len(rows) - 1, 2)]
        rows = added + rows[len(rows) - len(rows) % 2 :]
    return rows[0]
