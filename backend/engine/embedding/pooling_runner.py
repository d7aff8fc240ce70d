"""One step of an embedding model that is a decoder: prompts in, a vector of each that is computed to its end.

The plain road of `model_runner`, chunks and prefix cache included, up to where a head would stand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.runner import Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.cpu.model_runner import ModelRunner, Run, in_order
from backend.models.checkpoints.pooling import Pooling
from backend.models.decoders.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Pooled:
    """A `runner.Launched` that has arrived, and draws nothing. vectors: one for each of the batch that is at its end,
    in its order; None where it is not numbers."""

    vectors: list[bytes | None]

    def tokens(self) -> list[int | None]:
        return []

    def logprobs(self) -> list[TokenLogprobs | None]:
        return []

    def prompt_logprobs(self) -> list[tuple[Sequence, int, list[TokenLogprobs]]]:
        return []

    def activations(self) -> list[bytes | None]:
        return []


class PoolingRunner(ModelRunner):
    """`Pooling.MEAN` needs every hidden state, so its prompts may not come out of a prefix cache."""

    def __init__(self, model: Decoder, cache: KVCache, pooling: Pooling) -> None:
        super().__init__(model, cache)
        self._pooling = pooling

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Pooled:
        runs = [Run(s.sequence, s.sequence.tokens, s.num_tokens, int(s.samples)) for s in batch]
        ordered = in_order(runs)
        ids, positions, attention = self._inputs(ordered)
        states = self.model.states(ids, positions, attention, torch.arange(len(ids))).float()
        of_runs = dict(zip(map(id, ordered), states.split_with_sizes([run.num_tokens for run in ordered]), strict=True))
        vectors = [pooled(self._pooling, run.sequence, run.num_tokens, of_runs[id(run)]) for run in runs]
        return Pooled(as_bytes([v for v, scheduled in zip(vectors, batch, strict=True) if scheduled.samples]))


def pooled(pooling: Pooling, sequence: Sequence, num_tokens: int, states: Tensor) -> Tensor:
    """Of all that was computed of a sequence so far. states: float32 [num_tokens, width], of this step."""
    begins = not sequence.num_computed
    if pooling is Pooling.LAST:
        return states[-1]
    if pooling is Pooling.FIRST:
        first: Tensor = states[0] if begins else sequence.partial
        sequence.partial = first
        return first
    total: Tensor = states.sum(0) if begins else sequence.partial + states.sum(0)
    sequence.partial = total
    return total / (sequence.num_computed + num_tokens)


def as_bytes(vectors: list[Tensor]) -> list[bytes | None]:
    """Each as float32, little-endian; None if it is not numbers. They come from the device together."""
    if not vectors:
        return []
    here = torch.stack(vectors).cpu()
    finite = here.isfinite().all(-1).tolist()
    return [row.numpy().astype("<f4").tobytes() if whole else None for row, whole in zip(here, finite, strict=True)]
