"""Steps that do more or less than most, by their own replays.

A captured step does the same each time, so one that also leaves the largest activations of what it draws from
(`backend.activations`) is another capture than one that does not, and so is one without the kernels of adapters. Most
engines need few of them: each is captured when a step has lacked it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from backend.activations.largest_activations import MOST
from backend.engine.core.scheduler import Scheduled
from backend.engine.gpu.captures import Replay


class Variant(NamedTuple):
    """A step of `size` rows (or, of prompts, tokens). draws: it returns tokens, and not logits. shared: as in
    `StepShape`. adapted: rows may have adapters."""

    kind: Literal["decode", "prompts", "check"]
    size: int
    draws: bool = True
    shared: bool = False
    adapted: bool = False


@dataclass(frozen=True)
class PlainReplays:
    """Of a model that takes adapters, steps in which no row has one. step_of, capture, miss: as in
    `CommittingReplays`."""

    step_of: Callable[[Variant], Callable[[], Tensor]]
    capture: Callable[[list[int], Callable[[int], Callable[[], Tensor]]], list[Replay]]
    miss: Callable[[Callable[[Any], object], Any], None]
    _replays: dict[Variant, Replay] = field(default_factory=dict)

    def instead_of(self, adapted: Replay, variant: Variant) -> Replay:
        """The replay to take; until there is one, `adapted`, which leaves the same tokens and takes longer."""
        if variant not in self._replays:
            self.miss(self.prepare, variant)
        return self._replays.get(variant, adapted)

    def prepare(self, variant: Variant) -> None:
        if variant not in self._replays:
            (self._replays[variant],) = self.capture([variant.size], lambda _: self.step_of(variant))


@dataclass(frozen=True)
class CommittingReplays:
    """step_of: the step, to be called or captured. captured: captures steps of those sizes. miss: says that a capture
    was lacking (`GraphRunner`)."""

    step_of: Callable[[Variant], Callable[[], Tensor]]
    capture: Callable[[list[int], Callable[[int], Callable[[], Tensor]]], list[Replay]]
    miss: Callable[[Callable[[Any], object], Any], None]
    _replays: dict[Variant, Replay] = field(default_factory=dict)

    def __call__(self, variant: Variant, captured: bool) -> Tensor:
        """What the step returns. captured: steps of its kind run as graphs here."""
        replay = self._replays.get(variant)
        if replay is not None:
            replay.graph.replay()
            return replay.drawn
        if captured:
            self.miss(self.prepare, variant)
        return self.step_of(variant)()

    def prepare(self, variant: Variant) -> None:
        if variant not in self._replays:
            (self._replays[variant],) = self.capture([variant.size], lambda _: self.step_of(variant))


def any_commits(batch: list[Scheduled]) -> bool:
    """Whether a token of the step is to be committed to."""
    return any(s.samples and s.sequence.params.commits for s in batch)


def allocate_largest(rows: int, width: int, device: torch.device) -> Tensor:
    """Where captured steps leave the largest activations: int32 [rows, min(MOST, width)]."""
    return torch.zeros(rows, min(MOST, width), dtype=torch.int32, device=device)
