"""One step on the device: a scheduled batch in, one sampled token a finished prompt or decode out."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from backend.activations.largest_activations import MOST
from backend.engine.cache.attention import Decodes, KVCache, PagedAttention, Prefill, TableStep
from backend.engine.cache.pages import Pages
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.runner import REBALANCED_PAIRS, Launched, Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import Drafted, HiddenStates, first_rows
from backend.engine.cpu.logprobs import logprobs_of
from backend.engine.cpu.sampler import Draw, sample
from backend.engine.cpu.shaping import forbid, shape
from backend.kernels.reference import largest_activations
from backend.marks.scheme import marked_context
from backend.models.decoders.decoder import Begun, Decoder
from backend.models.layer_groups import reached_from


@dataclass(frozen=True, slots=True)
class Done:
    """A `runner.Launched` that has arrived already."""

    drawn: list[int | None]
    reported: list[TokenLogprobs | None]
    of_prompts: list[tuple[Sequence, int, list[TokenLogprobs]]]
    committed: list[bytes | None]

    def tokens(self) -> list[int | None]:
        return self.drawn

    def logprobs(self) -> list[TokenLogprobs | None]:
        return self.reported

    def prompt_logprobs(self) -> list[tuple[Sequence, int, list[TokenLogprobs]]]:
        return self.of_prompts

    def activations(self) -> list[bytes | None]:
        return self.committed


@dataclass(frozen=True, slots=True)
class Run:
    """The next `num_tokens` of `tokens` are computed, and behind the last `num_draws` of them a token is drawn."""

    sequence: Sequence
    tokens: list[int]
    num_tokens: int
    num_draws: int
    prompt_rows: range = range(0)  # see `Scheduled`

    @property
    def span(self) -> range:
        """Places of the tokens that are computed."""
        start = self.sequence.num_computed
        return range(start, start + self.num_tokens)

    @property
    def commits(self) -> bool:
        return self.sequence.params.commits and self.num_draws > 0


def in_order(runs: list[Run]) -> list[Run]:
    """The order in a flat batch: decodes first, so that they are one slice of the rows."""
    return sorted(runs, key=lambda run: run.num_tokens > 1)


def in_microbatches(ordered: list[Run], stages: int) -> list[list[Run]]:
    """For a pipeline: as many parts of about equally many tokens as there are stages, which then compute at the same
    time; fewer where there are fewer sequences."""
    if stages == 1 or len(ordered) < 2:
        return [ordered]
    total, done = sum(run.num_tokens for run in ordered), 0
    parts: list[list[Run]] = [[] for _ in range(stages)]
    for run in ordered:
        parts[done * stages // total].append(run)
        done += run.num_tokens
    return [part for part in parts if part]


Computed = tuple[list[Tensor], list[tuple[Sequence, int, list[TokenLogprobs]]], list[list[bytes]]]
"""Of each run the logits behind the tokens that something is drawn behind, [num_draws, vocab_size]; what is asked for
of prompts; and of each run that commits to them the largest activations behind the same tokens."""


def packed(states: Tensor) -> list[bytes]:
    """Each row as it crosses the process border (see `backend.activations.largest_activations`).

    states: [rows, hidden_size].
    """
    return [row.numpy().tobytes() for row in largest_activations(states, MOST)]


class ModelRunner:
    """The plain `engine.Runner`: each step is done when `launch` returns."""

    ahead = 0
    plain_only = False
    missed = 0

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self._first: dict[int, int] = {}
        self._checked_rows: list[list[bytes]] = []

    def exposed(self) -> HiddenStates | None:
        """Hidden states of the last step; None where the model exposes none."""
        exposure = self.model.exposure
        return None if exposure is None else HiddenStates(exposure.states, self._first)

    @property
    def pages(self) -> Pages:
        """Of the memory that the cache has now: another one after a sleep."""
        return Pages(self.cache.keys, self.cache.values, self.cache.groups)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.cache.groups.windows

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Launched:
        runs = [Run(s.sequence, s.sequence.tokens, s.num_tokens, int(s.samples), s.prompt_rows) for s in batch]
        logits, of_prompts, rows = self._forward(runs)
        allowed = {id: row[None] for id, row in masks().rows().items()} if masks else {}
        drawn: list[int | None] = []
        reported: list[TokenLogprobs | None] = []
        for tokens, logprobs in self._drawn(runs, logits, allowed):
            drawn += tokens
            reported += logprobs
        committed = [own[0] if own else None for run, own in zip(runs, rows, strict=True) if run.num_draws]
        return Done(drawn, reported, of_prompts, committed)

    @torch.inference_mode()
    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        """The draws behind each sequence's last token and each of its guesses; without the latter where a guess led to
        what is not a number, for here that spoils the rows before it, too: masked, 0 times NaN is NaN still."""
        allowed = {d.sequence.id: d.allowed for d in batch if d.allowed is not None}
        drawn, self._checked_rows = self._checked(
            [Run(d.sequence, d.sequence.tokens + d.guesses, d.num_tokens, d.num_tokens) for d in batch], allowed
        )
        for i, item in enumerate(batch):
            if item.guesses and None in drawn[i]:
                last = len(item.sequence.tokens) - 1
                for table in range(len(self.windows)):
                    slots = self._slots(item.sequence, range(last, last + item.num_tokens), table)
                    self._clear(torch.tensor(slots))
                (drawn[i],), (self._checked_rows[i],) = self._checked(
                    [Run(item.sequence, item.sequence.tokens, 1, 1)], allowed
                )
        return drawn

    def checked_activations(self) -> list[list[bytes]]:
        return self._checked_rows

    def _checked(self, runs: list[Run], allowed: dict[int, Tensor]) -> tuple[list[list[int | None]], list[list[bytes]]]:
        logits, _, rows = self._forward(runs)
        return [tokens for tokens, _ in self._drawn(runs, logits, allowed)], rows

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Every step runs as it is from the first on; what there may be is to copy experts that are often taken."""
        return self.model.rebalance(REBALANCED_PAIRS)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.pages.copy(pairs)

    def scrub(self, blocks: list[int]) -> None:
        """Zero them; also because stale slots behind a sequence's end are read here, and have to be finite."""
        self.pages.zero(blocks)

    def residue(self, blocks: list[int]) -> int:
        return self.pages.residue(blocks)

    def _clear(self, slots: Tensor) -> None:
        for part in (self.cache.keys, self.cache.values):
            part.flatten(1, 2).index_fill_(1, slots, 0)

    def _slots(self, sequence: Sequence, positions: range, table: int = 0) -> list[int]:
        blocks, size = sequence.block_tables[table], self.cache.block_size
        return [blocks[p // size] * size + p % size for p in positions]

    def _forward(self, runs: list[Run]) -> Computed:
        ordered = in_order(runs)
        begun = [self._begin(some) for some in in_microbatches(ordered, self.model.config.stage.count)]
        logits = torch.cat([self.model.collect(one) for one in begun])
        states = None
        if any(run.commits for run in runs):
            states = torch.cat([self.model.collect_states(one) for one in begun])
        logits_by: dict[int, Tensor] = {}
        rows_by: dict[int, list[bytes]] = {}
        of_prompts = []
        at = 0
        for run in ordered:
            sequence, wanted = run.sequence, run.prompt_rows
            if wanted:
                first = sequence.num_computed + wanted.start + 1
                tokens = sequence.tokens[first : first + len(wanted)]
                tops = [sequence.params.prompt_logprobs or 0] * len(wanted)
                of_prompts.append((sequence, first - 1, logprobs_of(logits[at : at + len(wanted)], tokens, tops)))
                at += len(wanted)
            logits_by[sequence.id] = logits[at : at + run.num_draws]
            rows_by[sequence.id] = packed(states[at : at + run.num_draws]) if states is not None and run.commits else []
            at += run.num_draws
        ids = [run.sequence.id for run in runs]
        return [logits_by[id] for id in ids], of_prompts, [rows_by[id] for id in ids]

    def _begin(self, ordered: list[Run]) -> Begun:
        """What `Decoder.collect` takes, of the rows that `_forward` wants."""
        ids, positions, attention = self._inputs(ordered)
        self._adapt([run.sequence.adapter for run in ordered for _ in range(run.num_tokens)])
        self._first = first_rows((run.sequence.id, run.num_tokens) for run in ordered)
        rows: list[int] = []
        end = 0
        for run in ordered:
            rows += [end + i for i in run.prompt_rows]
            end += run.num_tokens
            rows += range(end - run.num_draws, end)
        return self.model.begin(ids, positions, attention, torch.tensor(rows, dtype=torch.int64))

    def _adapt(self, slots: list[int]) -> None:
        """slots: of each row of the next step (`Sequence.adapter`)."""
        if self.model.adapters is not None:
            some = any(slot >= 0 for slot in slots)
            self.model.adapters.begin(torch.tensor(slots, dtype=torch.int32) if some else None)

    def _inputs(self, ordered: list[Run]) -> tuple[Tensor, Tensor, PagedAttention]:
        """Ids, positions and attention of a flat batch of them."""
        ids: list[int] = []
        positions: list[int] = []
        for run in ordered:
            span = run.span
            ids += run.tokens[span.start : span.stop]
            positions += span
        first, *others = (self._by_table(ordered, table) for table in range(len(self.windows)))
        attention = PagedAttention(self.cache, first.slots, first.decodes, first.prefills, others)
        return torch.tensor(ids), torch.tensor(positions), attention

    def _by_table(self, ordered: list[Run], table: int) -> TableStep:
        slots = [slot for run in ordered for slot in self._slots(run.sequence, run.span, table)]
        return TableStep(torch.tensor(slots), self._decodes(ordered, table), self._prefills(ordered, table))

    def _drawn(
        self, runs: list[Run], logits: list[Tensor], allowed: dict[int, Tensor]
    ) -> list[tuple[list[int | None], list[TokenLogprobs | None]]]:
        """What each run draws, and the log probabilities of that."""
        draws: list[Draw] = []
        shaped: list[Tensor] = []
        for run, own in zip(runs, logits, strict=True):
            sequence, params = run.sequence, run.sequence.params
            first = sequence.num_computed + run.num_tokens - run.num_draws + 1
            draws += [Draw(params, first + i, _context(run, first + i)) for i in range(run.num_draws)]
            if not params.shaped:
                shaped.append(own)
                continue
            own = own.float().clone()
            for i, row in enumerate(own):
                output = run.tokens[sequence.num_prompt : first + i]
                mask = None if (rows := allowed.get(sequence.id)) is None else rows[i]
                ends = sequence.ends if mask is None else frozenset[int]()  # what is allowed knows of them
                shape(row, params, run.tokens[: sequence.num_prompt], output, ends)
                if mask is not None:
                    forbid(row, mask)
            shaped.append(own)
        drawn = iter(sample(torch.cat(shaped), draws) if draws else [])
        results = []
        for run, own in zip(runs, logits, strict=True):
            tokens = list(islice(drawn, run.num_draws))
            results.append((tokens, _reported(run, own, tokens)))
        return results

    def _decodes(self, runs: list[Run], table: int) -> Decodes | None:
        """Of a table with a window, lengths count from the first block that it reaches."""
        sequences = [run.sequence for run in runs if run.num_tokens == 1]
        if not sequences:
            return None
        size, window = self.cache.block_size, self.windows[table]
        firsts = [reached_from(window, s.num_computed, size) for s in sequences]
        lengths = [s.num_computed + 1 - first * size for s, first in zip(sequences, firsts, strict=True)]
        width = -(-max(lengths) // size)
        blocks: list[int] = []
        for sequence, first in zip(sequences, firsts, strict=True):
            own = sequence.block_tables[table][first : first + width]
            blocks += own + own[-1:] * (width - len(own))
        return Decodes(torch.tensor(blocks), torch.tensor(lengths), width * size, self.cache.keys.dtype)

    def _prefills(self, runs: list[Run], table: int) -> list[Prefill]:
        prefills = []
        start, size = 0, self.cache.block_size
        for run in runs:
            end = start + run.num_tokens
            if run.num_tokens > 1:
                context = run.sequence.num_computed
                first = reached_from(self.windows[table], context, size)
                blocks = run.sequence.block_tables[table][first : -(-(context + run.num_tokens) // size)]
                prefills.append(Prefill(start, end, context - first * size, torch.tensor(blocks)))
            start = end
        return prefills


def _context(run: Run, position: int) -> Items[int] | None:
    """What the mark of the token at `position` is drawn with; None where it has none."""
    sequence = run.sequence
    if sequence.params.mark is None or sequence.params.greedy:
        return None
    return marked_context(run.tokens, sequence.num_prompt, position)


def _reported(run: Run, logits: Tensor, tokens: list[int | None]) -> list[TokenLogprobs | None]:
    wanted = run.sequence.params.logprobs
    if wanted is None:
        return [None] * len(tokens)
    return [
        None if token is None else logprobs_of(row.unsqueeze(0), [token], [wanted])[0]
        for row, token in zip(logits, tokens, strict=True)
    ]
