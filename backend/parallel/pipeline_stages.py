"""Hidden states from stage to stage, and logits from the last one to all (pipeline parallelism).

A stage is a group of consecutive layers, on a rank or on a tensor-parallel group of its own; rank t of a stage sends to
rank t of the next. Every stage draws from the same logits, as the ranks of a stage do (ADR 96), so that nothing else
has to be told.
"""

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor

from backend.parallel.shard import WHOLE, Shard, Stage


class Pipeline(ABC):
    """All stages call the same operations for the same steps, in the same order."""

    stage: Stage

    def __deepcopy__(self, memo: object) -> "Pipeline":
        """A copied model is of the same stages."""
        return self

    @abstractmethod
    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the stage before sends. Waits for it."""

    @abstractmethod
    def send(self, x: Tensor) -> None:
        """To the next stage; does not wait for it."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """The last stage's; of another one `x` is only a place for them."""

    @abstractmethod
    def least(self, number: int) -> int:
        """The smallest of the stages' numbers. Waits for all."""


class OneStage(Pipeline):
    stage = WHOLE

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        raise RuntimeError("there is no stage before the first")

    def send(self, x: Tensor) -> None:
        raise RuntimeError("there is no stage behind the last")

    def logits(self, x: Tensor) -> Tensor:
        return x

    def least(self, number: int) -> int:
        return number


ONE_STAGE = OneStage()


class DistributedPipeline(Pipeline):
    """Over torch.distributed. shard: this rank's in its stage. column: the group of the same rank of each stage."""

    def __init__(self, stage: Stage, shard: Shard, device: torch.device, column: dist.ProcessGroup | None) -> None:
        self.stage, self.device = stage, device
        self._column = column
        self._ranks = [index * shard.size + shard.rank for index in range(stage.count)]
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(x, self._ranks[self.stage.index - 1])
        return x

    def send(self, x: Tensor) -> None:
        x = x.contiguous()
        self._sent = [(work, kept) for work, kept in self._sent if not work.is_completed()]  # its memory is read until
        work = dist.isend(x, self._ranks[self.stage.index + 1])
        assert work is not None  # noqa: S101 -- this rank is one of the group
        self._sent.append((work, x))

    def logits(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.broadcast(x, self._ranks[-1], group=self._column)
        return x

    def least(self, number: int) -> int:
        held = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.all_reduce(held, op=dist.ReduceOp.MIN, group=self._column)
        return int(held)
