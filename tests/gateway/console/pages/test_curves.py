from datetime import UTC, datetime, timedelta

import pytest

from gateway.console.pages.curves import PERIODS as SHOWN
from gateway.console.pages.curves import marks_of
from gateway.records.curves import PERIODS


def points(period, end):
    one = PERIODS[period]
    return [{"begin": datetime.fromtimestamp(begin, UTC).isoformat()} for begin in one.begins(end.timestamp())]


@pytest.mark.parametrize(
    ("period", "labels"),
    [
        ("1h", ["11:30", "11:45", "12:00", "12:15"]),
        ("24h", ["16:00", "20:00", "00:00", "04:00", "08:00", "12:00"]),
        ("7d", [f"11-{day}" for day in range(24, 31)]),
    ],
)
def test_the_time_axis_has_whole_times_in_utc(period, labels):
    end = datetime(2026, 11, 30, 12, 29, tzinfo=UTC)
    assert [mark.label for mark in marks_of(points(period, end), period)] == labels
    east = end.astimezone(datetime.now().astimezone().tzinfo) + timedelta(0)
    assert [mark.label for mark in marks_of(points(period, east), period)] == labels


def test_the_periods_of_the_page_are_those_that_are_kept():
    assert list(PERIODS) == list(SHOWN)
