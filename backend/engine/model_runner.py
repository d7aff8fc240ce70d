"""One step on the device: a scheduled batch in, one sampled token a finished prompt or decode out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.attention import Decodes, KVCache, PagedAttention, Prefill
from backend.engine.sampler import Draw, sample
from backend.engine.scheduler import Scheduled
from backend.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Done:
    """An `engine.Launched` that has arrived already."""

    drawn: list[int | None]

    def tokens(self) -> list[int | None]:
        return self.drawn


class ModelRunner:
    """The plain `engine.Runner`: each step is done when `launch` returns."""

    ahead = 0

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled]) -> Done:
        sampling = [s.sequence.id for s in batch if s.samples]
        # Decodes stand first, so that they are one slice of the rows.
        batch = sorted(batch, key=lambda s: s.num_tokens > 1)
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        samplers = []
        size = self.cache.block_size
        for scheduled in batch:
            sequence, start = scheduled.sequence, scheduled.sequence.num_computed
            span = range(start, start + scheduled.num_tokens)
            ids += sequence.tokens[span.start : span.stop]
            positions += span
            table = sequence.block_table
            slots += [table[p // size] * size + p % size for p in span]
            if scheduled.samples:
                rows.append(len(ids) - 1)
                samplers.append(sequence)
        logits = self.model(
            torch.tensor(ids),
            torch.tensor(positions),
            PagedAttention(self.cache, torch.tensor(slots), self._decodes(batch), self._prefills(batch)),
            torch.tensor(rows, dtype=torch.int64),
        )
        if not samplers:
            return Done([])
        drawn = sample(logits, [Draw(s.params, len(s.tokens)) for s in samplers])
        token_of = dict(zip((s.id for s in samplers), drawn, strict=True))
        return Done([token_of[id] for id in sampling])

    def _decodes(self, batch: list[Scheduled]) -> Decodes | None:
        sequences = [s.sequence for s in batch if s.num_tokens == 1]
        if not sequences:
            return None
        size = self.cache.block_size
        lengths = [s.num_computed + 1 for s in sequences]
        width = -(-max(lengths) // size)
        blocks: list[int] = []
        for sequence in sequences:
            table = sequence.block_table[:width]
            blocks += table + table[-1:] * (width - len(table))
        return Decodes(len(sequences), torch.tensor(blocks), self._bias(lengths, width * size))

    def _bias(self, lengths: list[int], slots: int) -> Tensor | None:
        if all(length == slots for length in lengths):
            return None
        behind = torch.arange(slots) >= torch.tensor(lengths).unsqueeze(-1)
        bias = torch.zeros(behind.shape, dtype=self.cache.keys.dtype).masked_fill_(behind, float("-inf"))
        return bias[:, None, None, :]

    def _prefills(self, batch: list[Scheduled]) -> list[Prefill]:
        prefills = []
        start = 0
        for scheduled in batch:
            end = start + scheduled.num_tokens
            if scheduled.num_tokens > 1:
                context = scheduled.sequence.num_computed
                blocks = scheduled.sequence.block_table[: -(-(context + scheduled.num_tokens) // self.cache.block_size)]
                prefills.append(Prefill(start, end, context, torch.tensor(blocks)))
            start = end
        return prefills
