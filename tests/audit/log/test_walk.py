"""Periods: a bound names a moment to any precision, and no record of its first second falls out of it."""

from types import SimpleNamespace

import pytest

from audit.errors import AuditError
from audit.log.walk import between, checked_moment

TIMES = ["2026-02-28T23:59:59.999Z", "2026-03-01T11:59:59.999Z", "2026-03-01T12:00:00.000Z", "2026-03-01T12:00:00.500Z",
         "2026-03-01T12:00:01.000Z", "2026-04-01T00:00:00.000Z"]  # fmt: skip


class Log:
    """A reader of one tenant's log, with a record at each of TIMES."""

    def tenants(self):
        return ["acme"]

    def head(self, tenant):
        return len(TIMES), None

    def leaves(self, tenant, start=0, end=None):
        for seq in range(start, len(TIMES) if end is None else end):
            yield SimpleNamespace(seq=seq, payload=f'{{"ts":"{TIMES[seq]}"}}'.encode())


@pytest.mark.parametrize(
    ("since", "until", "inside"),
    [
        (None, None, range(6)),
        ("2026-03", "2026-04", range(1, 5)),
        ("2026-03-01T12:00:00Z", None, range(2, 6)),
        ("2026-03-01T12:00:00", None, range(2, 6)),
        (None, "2026-03-01T12:00:00Z", range(2)),
        (None, "2026-03-01T12:00:00.500Z", range(3)),
        ("2026-03-01T12:00:00.5Z", "2026-03-01T12:00:01Z", range(3, 4)),
        ("2027", None, range(6, 6)),
        (None, "2025", range(0)),
        ("2026-04", "2026-03", range(1, 1)),
    ],
)
def test_a_period_has_the_records_from_its_first_moment_to_before_its_last(since, until, inside):
    bounds = [None if text is None else checked_moment(text) for text in (since, until)]
    first, end = between(Log(), "acme", *bounds)
    assert range(first, end) == inside


def test_a_tenant_without_a_log_has_no_records_in_any_period():
    assert between(Log(), "globex", "2026", None) == (0, 0)


@pytest.mark.parametrize("text", ["yesterday", "2026-13", "2026-02-30", "2026-03-01 12:00", "2026-03-01T12+01:00", ""])
def test_what_is_no_moment_is_refused_with_what_to_write(text):
    with pytest.raises(AuditError, match="; write 2026-03"):
        checked_moment(text)
