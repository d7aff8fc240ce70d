"""Metrics of several processes as those of one, in Prometheus' text format.

Counters and histograms are added up, also those of workers that have ended: a sum that fell would look like a restart,
and a rate over it would count everything once more. Gauges are of those that run: what is under way is added up, and
of times the earliest is taken.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_EARLIEST = ("_created", "_not_after_seconds", "_start_time_seconds")
"""Ends of the names of samples that are points in time."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def merged(running: Iterable[str], ended: Iterable[str] = ()) -> str:
    """One exposition of those of the workers that are `running` and, without their gauges, of those that have
    `ended`."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[Key, float]] = {}
    for text, lives in (*((each, True) for each in running), *((each, False) for each in ended)):
        for family in text_string_to_metric_families(text):
            if family.type == "gauge" and not lives:
                continue
            families.setdefault(family.name, family)
            _add(values.setdefault(family.name, {}), family.samples)
    return written([_of(family, values[name]) for name, family in families.items()])


def _add(values: dict[Key, float], samples: Iterable[Sample]) -> None:
    for sample in samples:
        key = sample.name, tuple(sorted(sample.labels.items()))
        if key not in values:
            values[key] = sample.value
        elif sample.name.endswith(_EARLIEST):
            values[key] = min(values[key], sample.value)
        else:
            values[key] += sample.value


def _of(family: Metric, values: dict[Key, float]) -> Metric:
    metric = Metric(family.name, family.documentation, family.type, family.unit)
    for (name, labels), value in values.items():
        metric.add_sample(name, dict(labels), value)
    return metric


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def written(metrics: list[Metric]) -> str:
    """In Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return generate_latest(registry).decode()
