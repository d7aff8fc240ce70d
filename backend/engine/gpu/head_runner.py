"""The runner of a head that guesses from a model's hidden states, on a GPU: its steps are captured as those of models,
and read and write hidden states in memory that stays."""

from typing import Any

import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.core.scheduler import Scheduled
from backend.engine.gpu.graph_runner import GraphRunner
from backend.models.heads.paged_head import PagedHead


class HeadGraphRunner(GraphRunner):
    """A `drafting.head_drafter.HeadRunner`. model: with room for its steps (`PagedHead.reserve`)."""

    def __init__(self, model: PagedHead, cache: KVCache, **limits: Any) -> None:
        super().__init__(model, cache, **limits)
        self.head = model
        self._features: dict[int, Tensor] = {}
        self._rows: dict[int, int] = {}

    def feed(self, features: dict[int, Tensor]) -> None:
        self._features = features

    def output(self, id: int) -> Tensor:
        row = self._rows[id]
        return self.head.outputs[row : row + 1]

    @torch.inference_mode()
    def combined(self, states: Tensor) -> Tensor:
        return self.head.combined(states)

    @torch.inference_mode()
    def forget(self) -> None:
        super().forget()
        self._features = {}
        self.head.features.zero_()
        self.head.outputs.zero_()

    def _place(self, ordered: list[Scheduled]) -> None:
        super()._place(ordered)
        entering = torch.cat([self._features[s.sequence.id] for s in ordered])
        self.head.features[: len(entering)].copy_(entering)
        self._rows = {s.sequence.id: row for row, s in enumerate(ordered)}
