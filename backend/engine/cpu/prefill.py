"""The states behind given tokens, computed at once: what a commitment is compared with (`backend.activations`)."""

from collections.abc import Sequence as Items

import torch

from backend.activations.largest_activations import Words, row_of
from backend.engine.cache.attention import KVCache
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.cpu.model_runner import ModelRunner, Run, packed
from backend.models.decoders.decoder import Decoder

CHUNK = 512  # tokens of one step
BLOCK_SIZE = 16


class Prefill(ModelRunner):
    """Computes one text, in a cache of its own."""

    def __init__(self, model: Decoder, tokens: int) -> None:
        blocks = -(-tokens // BLOCK_SIZE)
        super().__init__(model, KVCache(model.config, blocks, BLOCK_SIZE, model.embedding.dtype, "cpu"))

    @torch.inference_mode()
    def rows(self, tokens: Items[int], first: int) -> list[Words]:
        """The largest activations behind each token from place `first` on."""
        sequence = Sequence(0, list(tokens), SamplingParams(max_tokens=1), arrival=0)
        sequence.block_table = list(range(self.cache.keys.shape[1]))
        found: list[Words] = []
        for start in range(0, len(tokens), CHUNK):
            run = Run(sequence, sequence.tokens, min(CHUNK, len(tokens) - start), 0)
            ids, positions, attention = self._inputs([run])
            wanted = torch.arange(max(0, first - start), run.num_tokens)
            found += map(row_of, packed(self.model.states(ids, positions, attention, wanted)))
            sequence.num_computed += run.num_tokens
        return found


def rows_behind(model: Decoder, prompt: Items[int], answer: Items[int], count: int) -> list[Words]:
    """Of the first `count` tokens of an answer, the largest activations that each was drawn from: behind the prompt,
    and behind each token before it."""
    tokens = [*prompt, *answer[: count - 1]]
    return Prefill(model, len(tokens)).rows(tokens, len(prompt) - 1)
