"""The plain runner of a head that guesses from a model's hidden states."""

import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.cpu.model_runner import ModelRunner, Run
from backend.models.decoders.decoder import Begun
from backend.models.heads.head_decoder import HeadDecoder


class HeadModelRunner(ModelRunner):
    """A `drafting.head_drafter.HeadRunner`."""

    model: HeadDecoder

    def __init__(self, model: HeadDecoder, cache: KVCache) -> None:
        super().__init__(model, cache)
        self._features: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}

    def feed(self, features: dict[int, Tensor]) -> None:
        self._features = features

    def output(self, id: int) -> Tensor:
        return self._outputs[id]

    @torch.inference_mode()
    def combined(self, states: Tensor) -> Tensor:
        return self.model.combined(states)

    def _begin(self, ordered: list[Run]) -> Begun:
        self.model.features = torch.cat([self._features[run.sequence.id] for run in ordered])
        begun = super()._begin(ordered)
        self._outputs, at = {}, 0
        for run in ordered:
            self._outputs[run.sequence.id] = self.model.outputs[at : at + run.num_draws]
            at += run.num_draws
        return begun
