"""What cells need, computed from measured constants: the arithmetic of docs/scaling.md."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gateway.scale import BUSY, DAY_S, PEAK, Constants, needs, tables

TREE = Path(__file__).parents[3]

KNOWN = Constants(
    request_us=1000, record_us=100, record_bytes=1000, limit_us=50, idle_us=1000, connections=10, verify_us=60
)


def test_a_day_is_planned_by_its_busiest_hour():
    cell = needs(10, 2 * DAY_S, KNOWN)
    assert cell.calls_a_second == pytest.approx(PEAK)
    assert cell.gateway_cores == pytest.approx(PEAK * 1000e-6 / BUSY)
    assert cell.record_cores == pytest.approx(PEAK * 2 * 100e-6 / BUSY)
    assert cell.limit_cores == pytest.approx(PEAK * 50e-6 / BUSY)


def test_what_is_there_without_calls_grows_with_the_gateways_alone():
    few, many = needs(10, 1e6, KNOWN), needs(1000, 1e6, KNOWN)
    assert many.control_cores == pytest.approx(100 * few.control_cores)
    assert (few.connections, many.connections) == (100, 10_000)
    assert many.gateway_cores == few.gateway_cores


def test_sizes_and_the_auditors_time_are_those_of_all_records():
    cell = needs(1, 1e9, KNOWN)
    assert cell.gigabytes_a_day == pytest.approx(1000)
    assert cell.verify_core_hours == pytest.approx(60 * 1e9 / 3.6e9)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"connections": 1e6}, "connections to PostgreSQL"),
        ({"limit_us": 1e6}, "Valkey's one core"),
        ({"record_us": 1e9}, "PostgreSQL's cores for the record"),
        ({"idle_us": 1e9}, "PostgreSQL's cores for the control plane"),
    ],
)
def test_the_first_bottleneck_is_the_part_nearest_to_its_bound(changed, part):
    assert needs(100, 1e8, replace(KNOWN, **changed)).first_bottleneck.startswith(part)


def test_the_tables_of_the_page_are_those_of_the_newest_run():
    newest = max((TREE / "bench" / "results").glob("scale-*.json"))
    page = (TREE / "docs" / "scaling.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- measured: begin -->\n")[2].partition("\n<!-- measured: end -->")[0]
    assert shown == tables(json.loads(newest.read_text(encoding="utf-8")))
