"""Times that a page asks for, in UTC: spans that end now, periods of the calendar, values of inputs."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Final

WITHIN: Final[Mapping[str, timedelta]] = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""By the name that stands in a URL, so that a bookmark stays a span that ends now."""


def since_of(within: str, now: datetime) -> str:
    """The beginning of a span that ends now, to the second, as records compare with it; empty for an unknown name."""
    span = WITHIN.get(within)
    return "" if span is None else f"{now - span:%Y-%m-%dT%H:%M:%S}"


def in_field(text: str) -> str:
    """A moment or a beginning of one (``2026-03``) as a field of type datetime-local takes it; empty for
    other text and for none."""
    given = text.removesuffix("Z")
    if not given:
        return ""
    try:
        moment = datetime.fromisoformat(given + "2000-01-01T00:00:00"[len(given) :])
    except ValueError:
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}" if moment.second else f"{moment:%Y-%m-%dT%H:%M}"


def closed_periods(today: date) -> dict[str, tuple[date, date]]:
    """First day and the day after the last one of the month, quarter and year that are over, and of this year so far,
    by name."""
    month = today.replace(day=1)
    quarter = month.replace(month=(today.month - 1) // 3 * 3 + 1)
    year = month.replace(month=1)
    return {
        "last_month": (_earlier(month, 1), month),
        "last_quarter": (_earlier(quarter, 3), quarter),
        "last_year": (year.replace(year=year.year - 1), year),
        "this_year": (year, today),
    }


def _earlier(first: date, months: int) -> date:
    """The first of the month so many months earlier, of the first of a month."""
    at = first.year * 12 + first.month - 1 - months
    return date(at // 12, at % 12 + 1, 1)
