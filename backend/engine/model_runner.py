"""One step on the device: a scheduled batch in, one sampled token a finished prompt or decode out."""

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from backend.engine.attention import Decodes, KVCache, PagedAttention, Prefill
from backend.engine.sampler import Draw, sample
from backend.engine.scheduler import Scheduled
from backend.engine.sequence import Sequence
from backend.engine.speculation import Drafted
from backend.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Done:
    """An `engine.Launched` that has arrived already."""

    drawn: list[int | None]

    def tokens(self) -> list[int | None]:
        return self.drawn


@dataclass(frozen=True, slots=True)
class _Run:
    """The next `num_tokens` of `tokens` are computed, and behind the last `num_draws` of them a token is drawn."""

    sequence: Sequence
    tokens: list[int]
    num_tokens: int
    num_draws: int


class ModelRunner:
    """The plain `engine.Runner`: each step is done when `launch` returns."""

    ahead = 0

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled]) -> Done:
        runs = [_Run(s.sequence, s.sequence.tokens, s.num_tokens, 1 if s.samples else 0) for s in batch]
        return Done([token for drawn in self._drawn(runs) for token in drawn])

    @torch.inference_mode()
    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        """The draws behind each sequence's last token and each of its guesses; without the latter where a guess led to
        what is not a number, for here that spoils the rows before it, too: masked, 0 times NaN is NaN still."""
        drawn = self._drawn(
            [_Run(d.sequence, d.sequence.tokens + d.guesses, d.num_tokens, d.num_tokens) for d in batch]
        )
        for i, item in enumerate(batch):
            if item.guesses and None in drawn[i]:
                last = len(item.sequence.tokens) - 1
                slots = self._slots(item.sequence, range(last, last + item.num_tokens))
                self._clear(torch.tensor(slots))
                drawn[i] = self._drawn([_Run(item.sequence, item.sequence.tokens, 1, 1)])[0]
        return drawn

    @torch.inference_mode()
    def scrub(self, blocks: list[int]) -> None:
        """Zero them: stale slots behind a sequence's end are read, and have to be finite."""
        size = self.cache.block_size
        self._clear(torch.tensor([block * size + i for block in blocks for i in range(size)], dtype=torch.int64))

    def _clear(self, slots: Tensor) -> None:
        for part in (self.cache.keys, self.cache.values):
            part.flatten(1, 2).index_fill_(1, slots, 0)

    def _slots(self, sequence: Sequence, positions: range) -> list[int]:
        table, size = sequence.block_table, self.cache.block_size
        return [table[p // size] * size + p % size for p in positions]

    def _drawn(self, runs: list[_Run]) -> list[list[int | None]]:
        """What each run draws."""
        # Decodes stand first, so that they are one slice of the rows.
        ordered = sorted(runs, key=lambda r: r.num_tokens > 1)
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        draws: list[Draw] = []
        for run in ordered:
            sequence, start = run.sequence, run.sequence.num_computed
            span = range(start, start + run.num_tokens)
            ids += run.tokens[span.start : span.stop]
            positions += span
            slots += self._slots(sequence, span)
            rows += range(len(ids) - run.num_draws, len(ids))
            draws += [Draw(sequence.params, p + 1) for p in span[run.num_tokens - run.num_draws :]]
        logits = self.model(
            torch.tensor(ids),
            torch.tensor(positions),
            PagedAttention(self.cache, torch.tensor(slots), self._decodes(ordered), self._prefills(ordered)),
            torch.tensor(rows, dtype=torch.int64),
        )
        drawn = iter(sample(logits, draws) if draws else [])
        drawn_by = {run.sequence.id: list(islice(drawn, run.num_draws)) for run in ordered}
        return [drawn_by[run.sequence.id] for run in runs]

    def _decodes(self, runs: list[_Run]) -> Decodes | None:
        sequences = [run.sequence for run in runs if run.num_tokens == 1]
        if not sequences:
            return None
        size = self.cache.block_size
        lengths = [s.num_computed + 1 for s in sequences]
        width = -(-max(lengths) // size)
        blocks: list[int] = []
        for sequence in sequences:
            table = sequence.block_table[:width]
            blocks += table + table[-1:] * (width - len(table))
        return Decodes(torch.tensor(blocks), torch.tensor(lengths), width * size, self.cache.keys.dtype)

    def _prefills(self, runs: list[_Run]) -> list[Prefill]:
        prefills = []
        start = 0
        for run in runs:
            end = start + run.num_tokens
            if run.num_tokens > 1:
                context = run.sequence.num_computed
                blocks = run.sequence.block_table[: -(-(context + run.num_tokens) // self.cache.block_size)]
                prefills.append(Prefill(start, end, context, torch.tensor(blocks)))
            start = end
        return prefills
