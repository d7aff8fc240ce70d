"""Tests of texts are bounded for all gateways together, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from gateway.store.text_tests import TextTests, TooManyTests

START = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)


@pytest.fixture
def tests(database, control):
    """Of two gateways, which share a clock."""
    for tenant in ("acme", "globex"):
        control.create_tenant(tenant)
    clock = [START]
    return clock, *(TextTests(database, "watermark", 2, lambda: clock[0]) for _ in "ab")


def test_two_gateways_count_together_by_the_hour_and_by_tenant(tests):
    clock, one, other = tests
    one.take("acme")
    clock[0] += timedelta(minutes=30)
    other.take("acme")
    for gateway in (one, other):
        with pytest.raises(TooManyTests, match="; try again later"):
            gateway.take("acme")
    other.take("globex")
    clock[0] += timedelta(minutes=30)
    one.take("acme")
    with pytest.raises(TooManyTests):
        other.take("acme")


def test_each_kind_has_its_own_limit(database, tests):
    _, one, _ = tests
    one.take("acme")
    one.take("acme")
    TextTests(database, "search", 1).take("acme")
    with pytest.raises(TooManyTests):
        one.take("acme")


def test_of_many_at_once_no_more_than_allowed_are_taken(database, tests):
    def taken(_):
        try:
            TextTests(database, "challenge", 3).take("acme")
        except TooManyTests:
            return 0
        return 1

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(taken, range(12))) == 3


def test_a_tenant_that_there_is_not_leaves_nothing(tests):
    _, one, _ = tests
    for _ in range(5):
        one.take("nobody")
