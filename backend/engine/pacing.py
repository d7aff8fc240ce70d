"""How many prompt tokens a step takes beside its decodes, so that running answers do not wait for a long prompt.

A step with both takes the time of its decodes and of its prompt tokens; both costs are measured from the engine's own
steps and followed as they change. The tokens that fit into a target time are a step's share of prompts (Agrawal et al.
2024, Sarathi-Serve, "stall-free batching"). Two rules keep prompts from starving: they get at least as much time as
the decodes, and at least a part of all that wait, so that a burst of requests is taken in within some `DRAIN_STEPS`
steps. Without a decode there is no limit.

A `PromptPace` is pure but for what it is told; a `StepTimer` tells it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

LEAST = 64
"""Prompt tokens that every step may take."""
MULTIPLE = 64
"""Of which a share is a multiple: rows of a tile of the products."""
DRAIN_STEPS = 8
UNKNOWN_SHARE = 256
"""Before any step with both was measured."""
WEIGHT = 0.2
"""Of a new measurement in a mean."""
MOST_CHANGE = 4.0
"""A measurement further off than this factor counts as one that is so far off: it had another reason."""


@dataclass(slots=True)
class PromptPace:
    """target_s: that a step with decodes is to take at most, in seconds. Above 0."""

    target_s: float
    _decode_s: dict[int, float] = field(default_factory=dict)  # of steps of decodes, by the batch's size in bits
    _token_s: float | None = None  # that a prompt token adds to a step

    def share(self, decodes: int, waiting: int) -> int:
        """Prompt tokens that the next step may take beside `decodes` sequences that decode, of the `waiting` ones that
        all prompts together still have to compute."""
        if not decodes:
            return max(waiting, LEAST)
        least = max(LEAST, -(-waiting // DRAIN_STEPS))
        decode_s = self.decode_s(decodes)
        if self._token_s is None or decode_s is None:
            return max(least, UNKNOWN_SHARE)
        room_s = max(self.target_s - decode_s, decode_s)
        return max(least, int(room_s / self._token_s) // MULTIPLE * MULTIPLE)

    def decode_s(self, decodes: int) -> float | None:
        """What a step of so many decodes takes; None before any was measured."""
        if not self._decode_s:
            return None
        size = decodes.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda known: (abs(known - size), -known))]

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of so many decodes, at least one, and prompt tokens took so long."""
        if seconds <= 0 or decodes < 1:
            return
        if not prompt_tokens:
            size = decodes.bit_length()
            self._decode_s[size] = _followed(self._decode_s.get(size), seconds)
            return
        decode_s = self.decode_s(decodes)
        if decode_s is not None:
            # Beside decodes that wait for memory, prompt tokens may seem free; as if they were, all would fit.
            added = max(seconds - decode_s, seconds / 20)
            self._token_s = _followed(self._token_s, added / prompt_tokens)


def _followed(mean: float | None, value: float) -> float:
    if mean is None:
        return value
    bounded = min(max(value, mean / MOST_CHANGE), mean * MOST_CHANGE)
    return mean + WEIGHT * (bounded - mean)


@dataclass(slots=True)
class StepTimer:
    """Tells a pace what each step took: from its launch, or from the end of the one before if that was later, to its
    own end. pace: None: it times nothing."""

    pace: PromptPace | None
    clock: Callable[[], float] = time.perf_counter
    _in_flight: deque[tuple[float, int, int]] = field(default_factory=deque)
    _ended: float = 0.0
    _seen: bool = True  # the end of the last step was: that of one without decodes may not have been waited for

    def launch(self, decodes: int, prompt_tokens: int) -> None:
        if self.pace is not None:
            self._in_flight.append((self.clock(), decodes, prompt_tokens))

    def end(self) -> None:
        """The oldest that was launched has ended."""
        if self.pace is None or not self._in_flight:
            return
        launched, decodes, prompt_tokens = self._in_flight.popleft()
        now = self.clock()
        if decodes and (self._seen or launched >= self._ended):
            self.pace.observe(decodes, prompt_tokens, now - max(launched, self._ended))
        self._ended, self._seen = now, decodes > 0
