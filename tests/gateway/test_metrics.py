"""Our counters and histograms say in an exposition what prometheus_client's say."""

import math
import random
import re

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.metrics import LoopCounter, LoopHistogram

BUCKETS = (0.5, 1, 2.5)
LABELS = ("tenant", "model")


def exposition(registry: CollectorRegistry) -> str:
    """Without the times of creation, which no two metrics share."""
    return re.sub(r"(_created(?:\{.*\})?) .*", r"\1", generate_latest(registry).decode())


@pytest.mark.parametrize("labels", [(), LABELS])
def test_a_histogram_is_written_as_prometheus_client_writes_its_own(labels):
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their = prometheus_client.Histogram("answer_seconds", "Of an answer", labels, buckets=BUCKETS, registry=theirs)
    our = LoopHistogram("answer_seconds", "Of an answer", labels, buckets=BUCKETS, registry=ours)
    assert exposition(ours) == exposition(theirs), "before the first observation"
    chance = random.Random(7)
    amounts = [0.0, 0.5, 1, 2.5, math.nextafter(0.5, 1), 1e9, math.inf, *(chance.uniform(0, 4) for _ in range(200))]
    for number, amount in enumerate(amounts):
        values = ("acme" if number % 2 else 'glob"ex\n', f"m{number % 3}") if labels else ()
        (their.labels(*values) if labels else their).observe(amount)
        our.labels(*values).observe(amount)
    assert exposition(ours) == exposition(theirs)


def test_a_counter_is_written_as_prometheus_client_writes_its_own():
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their = prometheus_client.Counter("calls", "Calls", LABELS, registry=theirs)
    our = LoopCounter("calls", "Calls", LABELS, registry=ours)
    assert exposition(ours) == exposition(theirs), "before the first call"
    for values in [("acme", "m"), ("globex", "m"), ("acme", "m"), ("acme", "\\")]:
        their.labels(*values).inc()
        our.labels(*values).inc()
    assert exposition(ours) == exposition(theirs)
    assert ours.get_sample_value("calls_total", {"tenant": "acme", "model": "m"}) == 2


def test_two_metrics_of_one_name_are_refused():
    registry = CollectorRegistry()
    LoopCounter("calls", "Calls", LABELS, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus_client.Counter("calls", "Calls", registry=registry)
    LoopHistogram("calls_seconds", "Calls", buckets=BUCKETS, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        LoopHistogram("calls_seconds", "Calls", buckets=BUCKETS, registry=registry)


@pytest.mark.parametrize("values", [(), ("acme",), ("acme", "m", "more")])
def test_a_series_needs_a_value_for_each_label(values):
    registry = CollectorRegistry()
    counter = LoopCounter("calls", "Calls", LABELS, registry=registry)
    histogram = LoopHistogram("calls_seconds", "Calls", LABELS, buckets=BUCKETS, registry=registry)
    for metric in (counter, histogram):
        with pytest.raises(ValueError, match="give one for each"):
            metric.labels(*values)
    assert "calls" not in re.sub("#.*", "", exposition(registry)), "nothing was made of them"


def test_values_that_are_swapped_are_two_series():
    registry = CollectorRegistry()
    counter = LoopCounter("calls", "Calls", LABELS, registry=registry)
    assert counter.labels("a", "b") is counter.labels("a", "b")
    assert counter.labels("a", "b") is not counter.labels("b", "a")
