"""What a step on the device drew, on its way to the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.progress import TokenLogprobs
from backend.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Arriving:
    """An `engine.Launched`: ids on their way to pinned memory. places: where in it the batch's samplers stand."""

    ids: Tensor
    places: list[int]
    arrived: "torch.cuda.Event | None"

    def tokens(self) -> list[int | None]:
        if self.arrived is not None:
            self.arrived.synchronize()
        ids = self.ids.tolist()
        return [ids[place] if ids[place] >= 0 else None for place in self.places]

    def logprobs(self) -> list[TokenLogprobs | None]:
        return [None] * len(self.places)

    def prompt_logprobs(self) -> list[tuple[Sequence, int, list[TokenLogprobs]]]:
        return []
