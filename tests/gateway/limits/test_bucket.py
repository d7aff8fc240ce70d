"""How buckets fill and drain: rates leak, budgets end with their day or month, concurrency is held."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.bucket import Bucket, Budget, Concurrency, Rate

AMOUNTS = st.floats(0, 1e6)
TIMES = st.floats(0, 1e6)


def at(*when):
    return datetime(*when, tzinfo=UTC).timestamp()


def test_a_rate_leaks_its_amount_in_its_period_and_never_below_nothing():
    rate = Rate(60, period=60)
    assert rate.drained(10, 100, 104) == 6
    assert rate.drained(10, 100, 200) == 0
    assert rate.wait(3, now=0) == 3


def test_a_burst_is_the_most_at_once_and_the_amount_otherwise():
    assert (Rate(60).capacity, Rate(60, burst=5).capacity) == (60, 5)


def test_a_rate_of_nothing_never_lets_anything_through():
    bucket = Bucket()
    assert bucket.excess(Rate(0), 1) == 1
    assert Rate(0).wait(1, now=0) == math.inf


@pytest.mark.parametrize("wrong", [-1, math.inf, math.nan])
def test_numbers_that_bound_nothing_are_refused(wrong):
    for make in (Rate, Budget, Concurrency):
        with pytest.raises(ValueError, match="of at least 0"):
            make(wrong)
    with pytest.raises(ValueError, match="of at least 0"):
        Rate(1, period=0)
    with pytest.raises(ValueError, match="of at least 0"):
        Rate(1, burst=wrong)


@pytest.mark.parametrize(
    ("span", "since", "now", "left"),
    [
        ("day", (2026, 3, 28, 0), (2026, 3, 28, 23, 59, 59), 5),
        ("day", (2026, 3, 28, 23, 59, 59), (2026, 3, 29), 0),
        ("month", (2026, 2, 1), (2026, 2, 28, 23, 59, 59), 5),
        ("month", (2026, 2, 28, 23, 59, 59), (2026, 3, 1), 0),
        ("month", (2026, 12, 31), (2027, 1, 1), 0),
    ],
)
def test_a_budget_is_whole_again_when_its_day_or_month_ends_in_utc(span, since, now, left):
    assert Budget(9, span).drained(5, at(*since), at(*now)) == left


@pytest.mark.parametrize(
    ("span", "now", "seconds"),
    [
        ("day", (2026, 3, 29, 12), 43_200),
        ("day", (2026, 3, 29), 86_400),
        ("month", (2026, 2, 28, 23), 3_600),
        ("month", (2024, 2, 29, 23), 3_600),
        ("month", (2026, 12, 31, 23, 59), 60),
        ("month", (2026, 1, 31, 23, 59), 60),
    ],
)
def test_a_budget_that_is_used_up_tells_when_it_ends(span, now, seconds):
    assert Budget(1, span).wait(1, at(*now)) == seconds


def test_what_is_held_counts_and_does_not_drain():
    rate, bucket = Rate(60), Bucket(level=30, held=20, at=0)
    assert bucket.excess(rate, 20) == 10 and bucket.consumed_excess(rate, 20) == 0
    bucket.drain(rate, 30)
    assert (bucket.level, bucket.held, bucket.used) == (0, 20, 20)


def test_a_clock_that_is_set_back_neither_fills_nor_drains():
    bucket = Bucket(level=30, at=100)
    bucket.drain(Rate(60), 50)
    assert (bucket.level, bucket.at) == (30, 100)


def test_releasing_more_than_is_held_gives_nothing_back():
    bucket = Bucket(held=1)
    bucket.release(5, consumed=2)
    assert (bucket.held, bucket.level) == (0, 2)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 40)), max_size=40), st.floats(1, 100), st.floats(1, 100))
def test_no_span_of_time_sees_more_than_a_burst_and_the_rate(calls, amount, period):
    """Calls of any size at any time, each taken where it fits at once."""
    rate, bucket, now, taken = Rate(amount, period), Bucket(), 0.0, []
    for asked, later in calls:
        now += later
        bucket.drain(rate, now)
        if not bucket.excess(rate, asked):
            bucket.release(0, consumed=asked)
            taken.append((now, asked))
    for first, (begin, _) in enumerate(taken):
        total = 0.0
        for when, size in taken[first:]:
            total += size
            assert total <= rate.capacity + (when - begin) * amount / period + 1e-6 * amount


@given(AMOUNTS, AMOUNTS, TIMES, TIMES)
def test_a_later_look_never_finds_more_in_a_bucket(level, amount, since, more):
    for quota in (Rate(amount), Budget(amount), Budget(amount, "day"), Concurrency(amount)):
        assert 0 <= quota.drained(level, since, since + more) <= level
