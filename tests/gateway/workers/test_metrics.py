"""Metrics of several processes as those of one."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.workers.metrics import merged


def exposition(requests=0, in_flight=0, seconds=(), certificate=None, tenant='a"\n\\'):
    registry = CollectorRegistry()
    Counter("domicile_requests", "Requests", ("tenant",), registry=registry).labels(tenant).inc(requests)
    Gauge("domicile_requests_in_flight", "Running", registry=registry).set(in_flight)
    histogram = Histogram("domicile_duration_seconds", "Time", ("tenant",), buckets=(1, 2), registry=registry)
    for each in seconds:
        histogram.labels(tenant).observe(each)
    ends = Gauge("domicile_certificate_not_after_seconds", "Ends", ("certificate",), registry=registry)
    if certificate is not None:
        ends.labels("listener").set(certificate)
    return generate_latest(registry).decode()


def values(text):
    """By sample's name and the bound of its bucket; the labels of one tenant are the same everywhere."""
    return {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_histograms_are_added_up():
    found = values(merged([exposition(3, seconds=[0.5, 3]), exposition(4, seconds=[1.5])]))
    assert found["domicile_requests_total", None] == 7
    assert found["domicile_duration_seconds_count", None] == 3
    assert found["domicile_duration_seconds_sum", None] == 5
    buckets = {le: count for (name, le), count in found.items() if name == "domicile_duration_seconds_bucket"}
    assert buckets == {"1.0": 1, "2.0": 2, "+Inf": 3}


def test_what_runs_is_added_up_and_of_times_the_earliest_is_taken():
    found = values(merged([exposition(in_flight=2, certificate=50), exposition(in_flight=3, certificate=40)]))
    assert found["domicile_requests_in_flight", None] == 5
    assert found["domicile_certificate_not_after_seconds", None] == 40


def test_of_workers_that_ended_what_they_counted_stays_and_what_they_did_does_not():
    ended = merged([], ["", exposition(5, in_flight=9, seconds=[1], certificate=1)])
    ended = merged([], [ended, exposition(6, in_flight=9)])
    found = values(merged([exposition(1, in_flight=2, certificate=7)], [ended]))
    assert found["domicile_requests_total", None] == 12
    assert found["domicile_requests_in_flight", None] == 2
    assert found["domicile_certificate_not_after_seconds", None] == 7
    assert found["domicile_duration_seconds_count", None] == 1


@pytest.mark.parametrize("tenants", [("acme", "acme"), ("acme", "other"), ('a"b\\\n', "ä")])
def test_series_are_one_where_their_labels_are(tenants):
    text = merged([exposition(1, tenant=tenant) for tenant in tenants])
    (family,) = (each for each in text_string_to_metric_families(text) if each.name == "domicile_requests")
    counted = {sample.labels["tenant"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert counted == {tenant: float(tenants.count(tenant)) for tenant in tenants}
    assert family.documentation == "Requests"


def test_one_process_alone_reads_as_before():
    alone = exposition(2, 1, [0.1], 5)
    assert values(merged([alone])) == values(alone)


def test_of_nothing_there_is_nothing():
    assert merged([], [""]).strip() == ""
