"""Each millisecond of a replica is billed once, on its day, to its tenant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select, update

from gateway.database.tables.fleet import ReplicaRow, UptimeRow
from gateway.store.fleet.uptime import _by_day, meter

REPLICA, UPTIME = ReplicaRow.__table__, UptimeRow.__table__
MIDNIGHT = 1_780_012_800.0  # 2026-05-29
NOON = MIDNIGHT - 43_200


@pytest.fixture
def connection():
    """Two replicas of the cell `here`, of two tenants, and one of another cell; all billed up to noon."""
    engine = create_engine("sqlite://")
    with engine.begin() as made:
        for table in (REPLICA, UPTIME):
            table.create(made)
        for replica, tenant, cell in (("a", "acme", "here"), ("g", "globex", "here"), ("x", "acme", "elsewhere")):
            row = dict.fromkeys(("deployment", "region", "state", "holder", "gpu", "model"), "some")
            times = {"started_at": NOON, "metered_until": NOON, "micro_eur_per_hour": 7}
            made.execute(REPLICA.insert().values(id=replica, tenant=tenant, cell=cell, role="mixed", **row, **times))
        yield made
    engine.dispose()


def billed(connection):
    rows = connection.execute(select(UPTIME)).mappings()
    return {(row["replica"], row["tenant"], row["day"]): (row["up_ms"], row["busy_ms"]) for row in rows}


def test_time_is_billed_to_the_tenant_of_the_replica_and_no_other_cells(connection):
    assert meter(connection, "here", {"a": True, "g": False, "x": True}, NOON + 10) == 20_000
    assert billed(connection) == {
        ("a", "acme", "2026-05-28"): (10_000, 10_000),
        ("g", "globex", "2026-05-28"): (10_000, 0),
    }


def test_a_replica_that_is_not_named_is_billed_when_it_is(connection):
    meter(connection, "here", {"a": True}, NOON + 10)
    meter(connection, "here", {"a": False, "g": True}, NOON + 30)
    assert billed(connection) == {
        ("a", "acme", "2026-05-28"): (30_000, 10_000),
        ("g", "globex", "2026-05-28"): (30_000, 30_000),
    }


@pytest.mark.parametrize("at", [NOON, NOON - 1, NOON - 86_400])
def test_what_was_billed_is_not_billed_again(connection, at):
    assert meter(connection, "here", {"a": True}, at) == 0
    assert billed(connection) == {}


def test_midnight_divides_it_and_the_days_are_of_utc(connection):
    assert meter(connection, "here", {"a": True}, MIDNIGHT + 1) == 43_201_000
    assert {day: up for (_, _, day), (up, _) in billed(connection).items()} == {
        "2026-05-28": 43_200_000,
        "2026-05-29": 1_000,
    }


def test_a_clock_that_was_put_forward_costs_no_more_than_what_can_have_passed(connection):
    assert meter(connection, "here", {"a": True}, NOON + 30_000, within_s=5) == 5_000
    assert meter(connection, "here", {"a": True}, NOON + 30_001, within_s=5) == 1_000, "the mark moved"


def test_a_replica_that_ended_costs_nothing_more(connection):
    connection.execute(update(REPLICA).where(REPLICA.c.id == "a").values(ended_at=NOON + 1))
    assert meter(connection, "here", {"a": True}, NOON + 10) == 0


@given(st.floats(0, 3e9), st.lists(st.floats(0, 200_000), min_size=1, max_size=6))
def test_spans_that_follow_each_other_add_up_to_the_whole(begin, spans):
    at, parts = begin, {}
    for seconds in spans:
        for day, ms in _by_day(at, at + seconds):
            parts[day] = parts.get(day, 0) + ms
        at += seconds
    assert parts == dict(_by_day(begin, at))
    assert sum(parts.values()) == round(at * 1000) - round(begin * 1000)
