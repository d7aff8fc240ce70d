"""How many replicas a deployment should have: up fast, down slowly, none when idle. Pure: same samples, same answer.

The need of a moment is the calls that run and wait, divided by what a replica should have at one time (as Knative's
concurrency target); calls that wait, a full KV cache or first tokens that come too late ask for more than that says.
Upwards the newest sample decides at once. Downwards the highest need of the last `DOWN_S` holds (the stabilisation
window of Kubernetes' HorizontalPodAutoscaler), and then one replica goes at a time, `STEP_S` apart.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from regions.deployment import Scale

DOWN_S = 60.0
STEP_S = 15.0
FULL = 0.9
"""Share of the KV cache from which on a replica preempts rather than serves."""
LATE_AT_MOST = 2.0
"""However late first tokens are, a moment asks for so many times the replicas there are, and no more."""


class Sample(NamedTuple):
    """A deployment at one moment, by the monotonic seconds `at`. `waiting` is part of `calls`. `kv_use`: of the fullest
    replica. `ttft_ms`: the 95th percentile of the last moments, None without calls."""

    at: float
    replicas: int
    calls: int
    waiting: int = 0
    kv_use: float = 0.0
    ttft_ms: float | None = None

    @property
    def busy(self) -> bool:
        return self.calls > 0


def desired(scale: Scale, replicas: int, samples: Sequence[Sample], now: float) -> int:
    """How many there should be where `replicas` are starting or up. `samples`: oldest first; the most recent busy one
    is among them, or the first there ever was."""
    if not samples:
        return _within(scale, replicas)
    need = _need(scale, samples[-1])
    if need >= replicas:
        return _within(scale, need)
    if _idle(samples, now) >= scale.idle_s:
        return scale.min_replicas
    held = max(_need(scale, sample) for sample in samples if now - sample.at <= DOWN_S or sample is samples[-1])
    if held >= replicas:
        return _within(scale, replicas)
    if any(sample.replicas != replicas for sample in samples if now - sample.at < STEP_S):
        return _within(scale, replicas)  # what was changed last has not shown its effect
    return _within(scale, max(held, replicas - 1, 1))


def trimmed(samples: Sequence[Sample], now: float) -> list[Sample]:
    """Those that `desired` may still ask for."""
    recent = [sample for sample in samples if now - sample.at <= DOWN_S or sample is samples[-1]]
    older = samples[: len(samples) - len(recent)]
    if not older or any(sample.busy for sample in recent):
        return recent
    return [next((sample for sample in reversed(older) if sample.busy), older[0]), *recent]


def _need(scale: Scale, sample: Sample) -> int:
    if not sample.busy:
        return 0
    need = math.ceil(sample.calls / scale.calls_each)
    up = sample.replicas
    if up and (sample.kv_use >= FULL or sample.waiting >= scale.calls_each):
        need = max(need, up + 1)
    if up and sample.waiting and sample.ttft_ms is not None and sample.ttft_ms > scale.ttft_ms:
        need = max(need, math.ceil(up * min(sample.ttft_ms / scale.ttft_ms, LATE_AT_MOST)))
    return need


def _idle(samples: Sequence[Sample], now: float) -> float:
    last = next((sample.at for sample in reversed(samples) if sample.busy), samples[0].at)
    return now - last


def _within(scale: Scale, wanted: int) -> int:
    return min(max(wanted, scale.min_replicas), scale.max_replicas)
