"""Rows of the ledger end with the record of their call; what is not over its time stays, on both databases."""

from dataclasses import dataclass

import pytest

from audit.privacy.schedule import Schedule, days_of_call
from gateway.configuration.settings import Audit
from gateway.records.prices import PriceBook
from gateway.server.ledger import Ledger, record_days
from gateway.store.log_followers.ledger_writer import DAY_S, FLOOR_DAYS, LedgerWriter
from gateway.store.reports.usage_report import entries, usage
from tests.gateway.store.log_followers.test_ledger_writer import PRICES, accepted, clock, completed, record  # noqa: F401  (fixtures)

ON_BOTH_DATABASES = True
NOW = 1_780_000_000.0


async def called(log, request, **more):
    await log.append(accepted(request).model_copy(update=more))
    await log.append(completed(request))


def taken(database, path):
    from audit.storage.sqlite import SqliteReader

    writer = LedgerWriter(database, "log", record_days)
    writer.catch_up(lambda: SqliteReader.open(path), PRICES)
    return writer


def kept(database):
    return sorted(one.request_id for one in entries(database))


@pytest.mark.parametrize(
    ("more", "days"),
    [
        ({"retention_class": "metadata_90d"}, 90),
        ({"retention_class": "metadata_366d"}, 366),
        ({}, 365),
        ({"retention_class": "metadata_90d", "risk_class": "high"}, 184),
        ({"retention_class": "metadata_30d"}, FLOOR_DAYS),
        ({"retention_class": "metadata_62d"}, 62),
        ({"retention_class": "metadata_63d"}, 63),
    ],
)
async def test_a_row_is_deleted_on_the_day_on_which_its_record_is_over(record, database, acme, more, days):  # noqa: F811
    log, path = record
    await called(log, "r1", **more)
    writer = taken(database, path)
    assert writer.expire(NOW + days * DAY_S - 1) == 0
    assert kept(database) == ["r1"]
    assert writer.expire(NOW + days * DAY_S) == 1
    assert kept(database) == [] and usage(database)[0].requests == 1, "the day is not over for as long"
    assert writer.expire(NOW + days * DAY_S) == 0
    writer.expire(NOW + (days + 1) * DAY_S)
    assert usage(database) == []


async def test_only_what_is_over_its_time_goes(record, database, acme):  # noqa: F811
    log, path = record
    await called(log, "short", retention_class="metadata_90d")
    await called(log, "long", retention_class="metadata_91d")
    writer = taken(database, path)
    assert writer.expire(NOW + 90 * DAY_S) == 1
    assert kept(database) == ["long"]


@pytest.mark.parametrize(("days", "expected"), [(62, []), (100, []), (101, ["r1"]), (3660, ["r1"])])
async def test_a_period_of_the_configuration_takes_the_place_of_each_rows_own(record, database, acme, days, expected):  # noqa: F811
    log, path = record
    await called(log, "r1", retention_class="metadata_90d")
    writer = taken(database, path)
    writer.expire(NOW + 100 * DAY_S, days)
    assert kept(database) == expected


async def test_a_call_that_never_ended_goes_too(record, database, acme):  # noqa: F811
    log, path = record
    await log.append(accepted("r1"))
    assert taken(database, path).expire(NOW + 365 * DAY_S) == 1


async def test_many_rows_go_in_several_transactions(record, database, acme, monkeypatch):  # noqa: F811
    monkeypatch.setattr("gateway.store.log_followers.ledger_writer.AT_ONCE", 2)
    log, path = record
    for at in range(5):
        await called(log, f"r{at}")
    assert taken(database, path).expire(NOW + 365 * DAY_S) == 5


@dataclass
class Leaf:
    seq: int
    payload: bytes


@dataclass
class Pruned:
    """A log whose first records have expired: their content is gone, their hashes stay."""

    leaf: Leaf

    def sizes(self):
        return {"acme": 2}

    def leaves(self, tenant, start=0):
        yield from [Leaf(0, b""), self.leaf][start:]

    def close(self):
        pass


async def test_expired_records_do_not_stop_the_ledger(database, acme):
    event = accepted("r1").model_dump_json(exclude_none=True)
    payload = event[:-1] + ',"ts":"2026-05-28T00:00:00.000Z"}'
    assert LedgerWriter(database, "log").catch_up(lambda: Pruned(Leaf(1, payload.encode())), PRICES) == 2


async def test_a_gateway_deletes_by_itself_and_with_two_of_them(record, database, acme):  # noqa: F811
    from audit.storage.sqlite import SqliteReader

    log, path = record
    await called(log, "r1")
    later = NOW + 365 * DAY_S

    def ledger():
        return Ledger(database, "log", lambda: SqliteReader.open(path), lambda: PriceBook([]), now=lambda: later)

    async with ledger() as one, ledger() as two:
        await one.catch_up()
        await one._expire_quietly()
        await two._expire_quietly()
    assert kept(database) == []


def test_the_periods_are_those_of_the_records():
    intent = {"type": "inference.accepted", "retention_class": "metadata_30d", "risk_class": "high"}
    assert record_days(intent) == days_of_call(intent, Schedule())[0] == 184


@pytest.mark.parametrize("days", [61, 0, -1, 3661])
def test_a_period_below_the_floor_or_beyond_ten_years_is_refused(days):
    with pytest.raises(ValueError, match="ledger_days"):
        Audit(ledger_days=days)
