"""How many replicas a deployment should have: up fast, down slowly, none when idle. Pure: same samples, same answer.

The need is the calls that run and wait, on average, divided by what a replica should have at one time; windows and the
threshold are those of Knative Serving's autoscaler (stable window 60 s, panic window a tenth of it, panic threshold
200 %). Calls come in clumps: their average over some seconds shows what is needed, a single moment does not. A moment
that needs twice what there is decides at once all the same, and so do calls that wait, a full KV cache, or first tokens
that come too late. Downwards the average of the whole window holds, and then one replica goes at a time, `STEP_S`
apart.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from regions.fleet.deployment import Scale

DOWN_S = 60.0
UP_S = 6.0
PANIC = 2.0
STEP_S = 15.0
FULL = 0.9
"""Share of the KV cache from which on a replica preempts rather than serves."""
LATE_AT_MOST = 2.0
"""However late first tokens are, a moment asks for so many times the replicas that answer, and no more."""


class Sample(NamedTuple):
    """A deployment at one moment, by the monotonic seconds `at`. `waiting` is part of `calls`. `kv_use`: of the fullest
    replica. `ttft_ms`: the 95th percentile of the last moments, None without calls. `starting`: those of `replicas`
    that do not answer yet."""

    at: float
    replicas: int
    calls: int
    waiting: int = 0
    kv_use: float = 0.0
    ttft_ms: float | None = None
    starting: int = 0

    @property
    def busy(self) -> bool:
        return self.calls > 0


def desired(scale: Scale, replicas: int, samples: Sequence[Sample], now: float) -> int:
    """How many there should be where `replicas` are starting or up. `samples`: oldest first; the most recent busy one
    is among them, or the first there ever was."""
    if not samples:
        return _within(scale, replicas)
    need = _need(scale, replicas, samples, now)
    if need >= replicas:
        return _within(scale, need)
    if _idle(samples, now) >= scale.idle_s:
        return scale.min_replicas
    window = [sample for sample in samples if now - sample.at <= DOWN_S]
    if now - samples[0].at < DOWN_S or any(_pressed(scale, sample) > sample.replicas for sample in window):
        return _within(scale, replicas)  # missing or too few samples are no reason to scale down
    held = max(need, _average(scale, window))
    if held >= replicas:
        return _within(scale, replicas)
    if any(sample.replicas != replicas for sample in window if now - sample.at < STEP_S):
        return _within(scale, replicas)  # what was changed last has not shown its effect
    return _within(scale, max(held, replicas - 1, 1))


def trimmed(samples: Sequence[Sample], now: float) -> list[Sample]:
    """Those that `desired` may still ask for: of the window, the one before it, and the last that was busy."""
    recent = [sample for sample in samples if now - sample.at <= DOWN_S or sample is samples[-1]]
    older = samples[: len(samples) - len(recent)]
    if not older:
        return recent
    if any(sample.busy for sample in recent) or older[-1].busy:
        return [older[-1], *recent]
    return [next((sample for sample in reversed(older) if sample.busy), older[0]), older[-1], *recent]


def _need(scale: Scale, replicas: int, samples: Sequence[Sample], now: float) -> int:
    newest = samples[-1]
    if not newest.busy:
        return 0
    lately = [sample for sample in samples if now - sample.at <= UP_S or sample is newest]
    need = max(1, _average(scale, lately), _pressed(scale, newest))
    at_once = math.ceil(newest.calls / scale.calls_each)
    return max(need, at_once) if at_once >= PANIC * replicas else need


def _pressed(scale: Scale, sample: Sample) -> int:
    """What a moment asks for by how it goes, whatever the count of calls: more than those that answer. Those that are
    starting are the answer to what was asked before, and nothing is asked for twice."""
    up = sample.replicas - sample.starting
    if up <= 0 or not sample.busy:
        return 0
    need = 0
    if sample.kv_use >= FULL or sample.waiting >= scale.calls_each:
        need = up + 1
    if sample.waiting and sample.ttft_ms is not None and sample.ttft_ms > scale.ttft_ms:
        need = max(need, math.ceil(up * min(sample.ttft_ms / scale.ttft_ms, LATE_AT_MOST)))
    return need


def _average(scale: Scale, samples: Sequence[Sample]) -> int:
    if not samples:
        return 0
    return math.ceil(sum(sample.calls for sample in samples) / len(samples) / scale.calls_each)


def _idle(samples: Sequence[Sample], now: float) -> float:
    last = next((sample.at for sample in reversed(samples) if sample.busy), samples[0].at)
    return now - last


def _within(scale: Scale, wanted: int) -> int:
    return min(max(wanted, scale.min_replicas), scale.max_replicas)
