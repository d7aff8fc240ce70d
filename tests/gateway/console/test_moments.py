from datetime import UTC, date, datetime

import pytest

from gateway.console.moments import WITHIN, closed_periods, in_field, since_of

NOW = datetime(2026, 3, 1, 0, 10, 5, 999999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("within", "since"),
    [
        ("15m", "2026-02-28T23:55:05"),
        ("1h", "2026-02-28T23:10:05"),
        ("24h", "2026-02-28T00:10:05"),
        ("7d", "2026-02-22T00:10:05"),
        ("", ""),
        ("-7d", ""),
        ("8h", ""),
    ],
)
def test_a_span_that_ends_now_begins_at_a_second_in_utc(within, since):
    assert since_of(within, NOW) == since


def test_every_span_is_known():
    assert all(since_of(name, NOW) for name in WITHIN)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026", "2026-01-01T00:00"),
        ("2026-03", "2026-03-01T00:00"),
        ("2026-11-30T08", "2026-11-30T08:00"),
        ("2026-11-30T08:15:02.250Z", "2026-11-30T08:15:02"),
        ("2026-11-30T08:15", "2026-11-30T08:15"),
        ("2026-02-30", ""),
        ("yesterday", ""),
        ('"><script>', ""),
        ("", ""),
    ],
)
def test_a_moment_of_a_url_is_shown_in_the_field_of_the_browser(text, value):
    assert in_field(text) == value


@pytest.mark.parametrize(
    ("today", "month", "quarter", "year"),
    [
        (date(2026, 1, 1), (2025, 12), (2025, 10), 2025),
        (date(2026, 3, 31), (2026, 2), (2025, 10), 2025),
        (date(2028, 4, 30), (2028, 3), (2028, 1), 2027),
        (date(2026, 12, 31), (2026, 11), (2026, 7), 2025),
    ],
)
def test_periods_that_are_over_end_where_the_next_begins(today, month, quarter, year):
    found = closed_periods(today)
    assert found["last_month"] == (date(*month, 1), today.replace(day=1))
    assert found["last_quarter"][0] == date(*quarter, 1) and found["last_quarter"][1] <= today
    assert found["last_year"] == (date(year, 1, 1), date(year + 1, 1, 1))
    assert found["this_year"] == (date(year + 1, 1, 1), today)
