"""`shaping` and `logprobs` on a device, for the steps in which a sequence asks for them.

What a penalty looks at stays on the device, a row for each running sequence, and is brought up to date by the step
itself: the host need not have seen the tokens. Biases, penalties' sizes and forbidden tokens are few and come with the
step. All of it works on a copy of the logits in float32, so that log probabilities are those of the model.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.engine.core.h2d import pinned, sent
from backend.engine.core.logit_effects import EFFECTS, LogitEffect, wanted
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.token_masks import Allowed
from backend.engine.cpu.logprobs import LOWEST
from backend.engine.gpu.device_tables import row_of
from backend.kernels.interface import Kernels

TIES = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """By place in the batch: effects with the places that ask for them, table rows of those with penalties (-1: none)
    and their sizes, masks of those that may not end yet; and the place of each sequence that draws, by id."""

    places: dict[int, int]
    effects: list[tuple[LogitEffect, list[tuple[int, SamplingParams]]]]
    penalised: list[int]
    sizes: list[list[float]]
    masks: dict[int, Tensor]


class DeviceShaping:
    """Rows are those of `DeviceTables`. The tables for penalties are made at the first request that needs one."""

    def __init__(self, rows: int, vocab: int, kernels: Kernels, device: torch.device) -> None:
        self._rows, self._vocab, self._kernels, self._device = rows, vocab, kernels, device
        self._prompt_bits: Tensor | None = None  # [rows, ceil(vocab / 32)] int32
        self._output_counts: Tensor | None = None  # [rows, vocab] int32

    def forget(self) -> None:
        """Clear all tokens from the tables."""
        self._prompt_bits = self._output_counts = None

    def admit(self, sequence: Sequence) -> None:
        """Count what a sequence has said so far, for one that was not running."""
        if not sequence.params.penalised:
            return
        bits, counts = self._tables()
        row = row_of(sequence)
        bits[row].zero_()
        counts[row].zero_()
        self._kernels.mark_prompt(bits, row, self._sent(sequence.tokens[: sequence.num_prompt]), self._vocab)
        said = Counter(sequence.tokens[sequence.num_prompt :])
        if said:
            counts[row].index_copy_(0, self._sent(list(said)), self._sent(list(said.values()), torch.int32))

    def plan(self, batch: list[Scheduled]) -> "Plan":
        """What is to be done to a step's logits, as far as it is known before the step's masks."""
        samplers = [(i, s.sequence) for i, s in enumerate(batch) if s.samples]
        asking = [(effect, _asking(effect, samplers)) for effect in EFFECTS]
        rows = [-1] * len(batch)
        for i, sequence in samplers:
            if sequence.params.penalised:
                rows[i] = row_of(sequence)
        return Plan(
            places={sequence.id: i for i, sequence in samplers},
            effects=[(effect, places) for effect, places in asking if places],
            penalised=rows if max(rows) >= 0 else [],
            sizes=[
                [s.sequence.params.repetition_penalty for s in batch],
                [s.sequence.params.frequency_penalty for s in batch],
                [s.sequence.params.presence_penalty for s in batch],
            ],
            masks={i: self._all_but(s.ends) for i, s in samplers if s.may_not_end},
        )

    def shaped(self, logits: Tensor, plan: "Plan", allowed: Allowed | None) -> Tensor:
        """What is drawn from: [rows, vocab] float32. logits: [rows, vocab] of the batch that `plan` is of, left as they
        are. allowed: see `engine.Runner.launch`."""
        x = logits.to(torch.float32, copy=True)
        for effect, asking in plan.effects:
            effect.apply(x, [place for place, _ in asking], [params for _, params in asking])
        if plan.penalised:
            bits, counts = self._tables()
            sizes = self._sent(plan.sizes, torch.float32).unbind(0)
            self._kernels.apply_penalties(x, self._sent(plan.penalised, torch.int32), bits, counts, *sizes)
        unended = plan.masks
        if allowed is not None and allowed.ids:
            guided = [plan.places[id] for id in allowed.ids]
            self._forbid(x, guided, allowed.bits)
            unended = {place: bits for place, bits in unended.items() if place not in guided}
        if unended:
            self._forbid(x, list(unended), torch.stack(list(unended.values())))
        return x

    def _forbid(self, logits: Tensor, places: list[int], bits: Tensor) -> None:
        self._kernels.apply_bitmask(logits, pinned(bits, self._device), self._sent(places, torch.int32))

    def count(self, plan: "Plan", drawn: Tensor) -> None:
        """Take note of what was drawn, for the penalties of the next step. drawn: [rows] int64."""
        if plan.penalised:
            _, counts = self._tables()
            self._kernels.count_outputs(counts, self._sent(plan.penalised, torch.int32), drawn)

    def _all_but(self, tokens: frozenset[int]) -> Tensor:
        words = np.full(-(-self._vocab // 32), -1, dtype=np.int32).view(np.uint32)
        for token in tokens:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        return torch.from_numpy(words.view(np.int32))

    def _tables(self) -> tuple[Tensor, Tensor]:
        if self._prompt_bits is None or self._output_counts is None:
            shape = {"dtype": torch.int32, "device": self._device}
            self._prompt_bits = torch.zeros(self._rows, -(-self._vocab // 32), **shape)  # type: ignore[call-overload]
            self._output_counts = torch.zeros(self._rows, self._vocab, **shape)  # type: ignore[call-overload]
        return self._prompt_bits, self._output_counts

    def _sent(self, values: list[int] | list[float] | list[list[float]], dtype: torch.dtype = torch.int64) -> Tensor:
        return sent(values, dtype, self._device)


def _asking(effect: LogitEffect, samplers: list[tuple[int, Sequence]]) -> list[tuple[int, SamplingParams]]:
    """The places of those that ask for an effect, with what they ask for."""
    return [(place, sequence.params) for place, sequence in samplers if wanted(effect, sequence.params)]


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log probabilities at some rows, being copied to the host: [rows] own and ranks, [rows, most] of the likeliest."""

    own: Tensor
    ranks: Tensor
    ids: Tensor
    values: Tensor
    tops: list[int]

    @classmethod
    def send(cls, kernels: Kernels, logits: Tensor, tokens: Tensor, tops: list[int]) -> "PendingLogprobs":
        """logits: [rows, vocab], of the model. tokens: [rows] int64, on the same device; -1 counts as 0.

        A row's sum is bitwise the same in any batch: torch's `logsumexp` adds in another order from
        16 rows on. Of equally likely tokens a few more are copied than requested, and told apart by their numbers.
        """
        x = logits.float()
        own = tokens.clamp_min(0).unsqueeze(1)
        ids = x.topk(min(max(1, *tops) + TIES, x.shape[1]), dim=-1).indices
        values = kernels.token_logprobs(x, torch.cat((own, ids), dim=1))
        ranks = (x > x.gather(1, own)).sum(-1) + 1
        return cls(_home(values[:, 0]), _home(ranks), _home(ids), _home(values[:, 1:]), tops)

    @classmethod
    def of(cls, kernels: Kernels, logits: Tensor, drawn: Tensor, tops: dict[int, int]) -> "PendingLogprobs | None":
        """For some of the rows: how many of the likeliest, by row. None for none."""
        if not tops:
            return None
        rows = sent(list(tops), torch.int64, logits.device)
        return cls.send(kernels, logits[rows], drawn[rows], list(tops.values()))

    @classmethod
    def of_prompts(
        cls, kernels: Kernels, batch: list[Scheduled], logits: Tensor
    ) -> "tuple[list[tuple[Sequence, int, PendingLogprobs]], Tensor]":
        """What is asked for of prompts, whose rows of logits come first, each with the place of its first in
        `Sequence.prompt_logprobs`; and the other rows."""
        asked, at = [], 0
        for scheduled in batch:
            sequence, rows = scheduled.sequence, scheduled.prompt_rows
            if rows:
                first = sequence.num_computed + rows.start
                own = sent(sequence.tokens[first + 1 : first + 1 + len(rows)], torch.int64, logits.device)
                tops = [sequence.params.prompt_logprobs or 0] * len(rows)
                asked.append((sequence, first, cls.send(kernels, logits[at : at + len(rows)], own, tops)))
                at += len(rows)
        return asked, logits[at:]

    def read(self) -> list[TokenLogprobs]:
        """Once they have arrived."""
        rows = zip(
            self.own.tolist(), self.ranks.tolist(), self.ids.tolist(), self.values.tolist(), self.tops, strict=True
        )
        return [
            TokenLogprobs(max(own, LOWEST), rank, [(i, max(v, LOWEST)) for i, v in _likeliest(ids, values)[:n]])
            for own, rank, ids, values, n in rows
        ]


def _likeliest(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    return sorted(zip(ids, values, strict=True), key=lambda each: (-each[1], each[0]))


def prompt_places(batch: list[Scheduled], device: torch.device) -> Tensor | None:
    """Where in the flat batch the tokens of prompts stand whose logits are asked for; None if there are none."""
    places: list[int] = []
    start = 0
    for scheduled in batch:
        places += [start + i for i in scheduled.prompt_rows]
        start += scheduled.num_tokens
    return sent(places, torch.int64, device) if places else None


def _home(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
