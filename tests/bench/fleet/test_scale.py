"""The measurements of the fleet still run: in small, and only for what does not hang on the machine."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from bench.fleet import day as fleet_day
from bench.fleet import scale as fleet
from tests.deploy.test_operations import databases
from tests.fakes.postgresql import postgresql


async def measured(monkeypatch, url):
    monkeypatch.setattr(fleet, "SCALE", {"deployments": 20, "backends": 50})
    report = await fleet.many(SimpleNamespace(database=url))
    assert report["database"] == ("postgresql" if url else "sqlite")
    assert 0 < report["pass_s"]["median"] <= report["pass_s"]["longest"]
    assert report["gateway_behind_s"]["longest"] > 0


async def test_a_pass_over_many_deployments_is_measured_on_sqlite(monkeypatch):
    await measured(monkeypatch, None)


async def test_a_pass_over_many_deployments_is_measured_on_postgresql(monkeypatch):
    with postgresql() as url, databases(url, "bench_fleet") as (own,):
        await measured(monkeypatch, own)


def test_a_simulated_day_answers_every_call_whoever_decides_on_replicas():
    report = fleet_day.one_day(3, peak=1.0, floor=0.0006, start_s=15.0)
    assert report["scaled"]["answered"] == report["calls"] > 1000
    assert report["scaled"]["cold_hits"] > 0, "the first call found nothing"
    assert report["scaled"]["cold_p95_s"] > 15
    assert report["scaled"]["hours"] < report["always_on"]["hours"]
    assert report["cost_ratio"] == pytest.approx(report["scaled"]["hours"] / report["always_on"]["hours"], abs=0.002)


def test_the_same_seed_is_the_same_day_and_another_is_another():
    first, again, other = (fleet_day.arrivals(seed, 1.0, 0.0006) for seed in (1, 1, 2))
    assert first == again != other
    gaps = [b - a for (a, _), (b, _) in pairwise(first) if 9.5 * 3600 < a < 11.5 * 3600]
    mean = sum(gaps) / len(gaps)
    variation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
    assert variation > 1, "burstier than Poisson"
