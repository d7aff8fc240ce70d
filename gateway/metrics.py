"""Prometheus metrics that change several times a request: a plain number each, which one thread changes.

For each change, prometheus_client looks whether the metric has labels, and takes a lock: eight calls to observe a
duration, after a search of its bucket one by one. The metrics here are changed in the event loop's thread only, so they
need no lock; any thread may collect them. Their samples are those of prometheus_client's classes of the same name.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Count:
    """One series of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()

    def inc(self) -> None:
        self.value += 1


class LoopCounter(Collector):
    """A counter with labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._family = name, documentation
        self._labels = labels
        self._series: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The series of these values, one for each label; the same object each time."""
        known = self._series.get(values)
        if known is None:
            known = self._series[_checked(values, self._labels)] = Count()
        return known

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(*self._family, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(*self._family, labels=self._labels)
        for values, count in list(self._series.items()):
            family.add_metric(values, count.value, created=count.created)
        return [family]


class Observed:
    """One series of a histogram. `counts`: of each bucket, without those below it; the last has no bound."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, amount: float) -> None:
        self.total += amount
        self.counts[bisect_left(self._bounds, amount)] += 1  # a bound belongs to its bucket


class LoopHistogram(Collector):
    """A histogram; without labels it is there from the beginning. `buckets`: their upper bounds, ascending."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._family = name, documentation
        self._labels = labels
        self._bounds = tuple(map(float, buckets))
        self._written = [str(floatToGoString(bound)) for bound in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], Observed] = {} if labels else {(): Observed(self._bounds)}
        registry.register(self)

    def labels(self, *values: str) -> Observed:
        """The series of these values, one for each label; the same object each time."""
        known = self._series.get(values)
        if known is None:
            known = self._series[_checked(values, self._labels)] = Observed(self._bounds)
        return known

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(*self._family, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(*self._family, labels=self._labels)
        for values, observed in list(self._series.items()):
            up_to, buckets = 0, []
            for bound, count in zip(self._written, list(observed.counts), strict=True):
                up_to += count
                buckets.append((bound, float(up_to)))
            family.add_metric(values, buckets, observed.total)
            family.add_sample(f"{family.name}_created", dict(zip(self._labels, values, strict=True)), observed.created)
        return [family]


def _checked(values: tuple[str, ...], labels: Sequence[str]) -> tuple[str, ...]:
    if len(values) != len(labels):
        raise ValueError(f"{len(values)} values were given for the labels {', '.join(labels)}; give one for each")
    return values
