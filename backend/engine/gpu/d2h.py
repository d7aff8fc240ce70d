"""Device-to-host copies of what a step drew."""

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.gpu.shaping import PendingLogprobs


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """A `runner.Launched`: ids that are being copied to pinned memory.

    places: where in it the batch's samplers are. reported: the place of each whose log probabilities are copied, in
    `of_tokens`. of_prompts: the same of prompts, with the place of the first in `Sequence.prompt_logprobs`. largest:
    activations of all places, if one of them commits to its own.
    """

    ids: Tensor
    places: list[int]
    arrived: "torch.cuda.Event | None"
    reported: Items[int] = ()
    of_tokens: PendingLogprobs | None = None
    of_prompts: Items[tuple[Sequence, int, PendingLogprobs]] = ()
    largest: Tensor | None = None

    def tokens(self) -> list[int | None]:
        self._wait()
        ids = self.ids.tolist()
        return [ids[place] if ids[place] >= 0 else None for place in self.places]

    def logprobs(self) -> list[TokenLogprobs | None]:
        if self.of_tokens is None:
            return [None] * len(self.places)
        self._wait()
        found = dict(zip(self.reported, self.of_tokens.read(), strict=True))
        return [found.get(place) for place in self.places]

    def prompt_logprobs(self) -> list[tuple[Sequence, int, list[TokenLogprobs]]]:
        if self.of_prompts:
            self._wait()
        return [(sequence, first, sent.read()) for sequence, first, sent in self.of_prompts]

    def activations(self) -> list[bytes | None]:
        if self.largest is None:
            return [None] * len(self.places)
        self._wait()
        rows = self.largest.numpy()
        return [rows[place].tobytes() for place in self.places]

    def _wait(self) -> None:
        if self.arrived is not None:
            self.arrived.synchronize()


class PinnedBuffers:
    """Pinned buffers for drawn tokens, used in rotation: one more than copies that can be in flight."""

    def __init__(self, rows: int, copies: int, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._places = [torch.empty(rows, dtype=torch.int64, pin_memory=self._on_gpu) for _ in range(copies)]
        self._turn = 0
        self._largest: list[Tensor] = []  # made when a step commits for the first time

    def forget(self) -> None:
        """Zero the buffers. No copy may be in flight."""
        for buffer in (*self._places, *self._largest):
            buffer.zero_()

    def bring(
        self,
        drawn: Tensor,
        places: list[int],
        reported: Collection[int] = (),
        of_tokens: PendingLogprobs | None = None,
        of_prompts: Items[tuple[Sequence, int, PendingLogprobs]] = (),
        largest: Tensor | None = None,
    ) -> PendingTokens:
        """Start the copy; what else comes along was sent before. See `PendingTokens`."""
        self._turn = (self._turn + 1) % len(self._places)
        ids = self._places[self._turn][: len(drawn)]
        ids.copy_(drawn, non_blocking=True)
        home = None if largest is None else self._rows_like(largest).copy_(largest, non_blocking=True)
        arrived = None
        if self._on_gpu:
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        return PendingTokens(ids, places, arrived, list(reported), of_tokens, of_prompts, home)

    def _rows_like(self, largest: Tensor) -> Tensor:
        if not self._largest:
            shape = len(self._places[0]), largest.shape[1]
            self._largest = [torch.empty(shape, dtype=torch.int32, pin_memory=self._on_gpu) for _ in self._places]
        return self._largest[self._turn][: len(largest)]


def places_of(ordered: list[Scheduled], batch: list[Scheduled]) -> list[int]:
    """Where in the order that they run in those of the batch stand that sample."""
    place_of = {s.sequence.id: i for i, s in enumerate(ordered)}
    return [place_of[s.sequence.id] for s in batch if s.samples]


def longest_first(decodes: list[Scheduled]) -> list[Scheduled]:
    """The best order in a step: attention takes them in this order, and the longest must not come last, when
    the others are done. Those of one length stay in order, so that from step to step little moves."""
    return sorted(decodes, key=lambda s: -s.sequence.num_computed)
