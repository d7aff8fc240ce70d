"""Sums by day are the ledger's, whoever writes and whenever; and go when their time is over, on both databases."""

import asyncio
import random
from collections import Counter

import pytest
from sqlalchemy import select, update

from audit.events.event import InferenceAborted
from audit.storage.sqlite import SqliteReader
from gateway.configuration.settings import Audit
from gateway.database.errors import DatabaseUnavailable
from gateway.database.tables.usage import DailySumRow, LedgerRow
from gateway.records.prices import Price, PriceBook
from gateway.server.ledger import Ledger
from gateway.store.log_followers import daily_sums
from gateway.store.log_followers.ledger_writer import DAY_S, LedgerWriter
from gateway.store.reports.usage_report import DIMENSIONS, entries, usage
from tests.conftest import how_many, seed_of
from tests.fakes.lab import lab
from tests.gateway.server.test_ledger import bill
from tests.gateway.store.log_followers.test_ledger_writer import TENANTS, accepted, clock, completed, record  # noqa: F401  (fixtures)
from tests.gateway.test_keeping import ALICE, asked, audit, keeping
from tests.gateway.test_ledger_retention import NOW, called, kept, taken

ON_BOTH_DATABASES = True
PRICES = PriceBook(
    [
        Price("small", 1, 0.0, 200_000, 600_000, 50_000, batch_discount=50),
        Price("small", 2, NOW + 9 * 3600, 10**6, 10**6, 0),  # within the second day of a history
    ]
)
FIGURES = ("requests", "completed", "aborted", "refused", "estimated", "unpriced", "tokens_in", "tokens_cached",
           "tokens_out", "nano_eur", "measured", "backend_ms")  # fmt: skip


def sums_of_rows(database, by):
    """What the rows of the ledger come to, added up here."""
    sums = Counter()
    for row in entries(database):
        place = tuple(getattr(row, name) for name in by)
        figures = {
            "requests": 1, row.outcome: 1, "estimated": row.estimated, "unpriced": row.nano_eur is None,
            "tokens_in": row.tokens_in, "tokens_cached": row.tokens_cached, "tokens_out": row.tokens_out,
            "nano_eur": row.nano_eur or 0, "measured": row.energy_mj is not None,
            "backend_ms": round(row.backend_seconds * 1000),
        }  # fmt: skip
        sums.update({(*place, name): int(value) for name, value in figures.items()})
    return +sums


def sums_of_report(database, by):
    sums = Counter()
    for line in usage(database, by=by):
        place = tuple(getattr(line, name) for name in by)
        figures = line.model_dump() | {"backend_ms": round(line.backend_seconds * 1000)}
        sums.update({(*place, name): figures[name] for name in FIGURES})
    return +sums


async def some_history(log, clock, chance, running, count):  # noqa: F811
    """Calls of two tenants, some of them lines of a batch that are made again; some end, some of those days later."""
    for _ in range(count):
        clock[0] += chance.random() * 8000
        tenant, request = chance.choice(TENANTS), f"req-{chance.getrandbits(64)}"
        intent = accepted(
            request,
            tenant,
            project=chance.choice(("main", "side")),
            model=chance.choice(("small", "unpriced")),
            region=chance.choice(("eu-fr-par", "eu-de-fra")),
        )
        line = {"batch_id": "batch_1", "batch_line": chance.randrange(4)} if chance.random() < 0.3 else {}
        await log.append(intent.model_copy(update={"key_id": chance.choice(("7GA3GXAA", "K2")), **line}))
        running.append((request, tenant))
        while running and chance.random() < 0.55:
            await log.append(some_outcome(chance, *running.pop(chance.randrange(len(running)))))


def some_outcome(chance, request, tenant):
    tokens_in = chance.randrange(10**6)
    figures = {"tokens_in": tokens_in, "tokens_out": chance.randrange(10**5)}
    match chance.randrange(5):
        case 0:
            return InferenceAborted(tenant=tenant, request_id=request, reason="x", status=422)
        case 1:
            figures["tokens_estimated"] = True
            return InferenceAborted(tenant=tenant, request_id=request, reason="client_disconnected", **figures)
        case 2:  # it ended elsewhere than it began
            figures |= {"region": "eu-nl-ams", "backend_id": "other-1"}
    energy = {"energy_mj": chance.randrange(10**6)} if chance.random() < 0.5 else {}
    cached = chance.randrange(tokens_in + 1)
    return completed(request, tenant, **figures, **energy, tokens_cached=cached, backend_ms=chance.randrange(9000))


@pytest.mark.parametrize("number", range(how_many(50, 2)))
async def test_sums_of_any_history_are_those_of_its_rows_however_they_are_grouped(
    record,  # noqa: F811
    database,
    acme,
    clock,  # noqa: F811
    monkeypatch,
    number,
):
    log, path = record
    monkeypatch.setattr("gateway.store.log_followers.ledger_writer.AT_ONCE", 11)
    monkeypatch.setattr("gateway.store.log_followers.ledger_writer.PAUSE_S", 0.001)
    chance, running = random.Random(seed_of(number)), []
    writers = [LedgerWriter(database, "log") for _ in range(2)]

    def read(writer):
        return writer.catch_up(lambda: SqliteReader.open(path), PRICES)

    for _ in range(6):
        await some_history(log, clock, chance, running, 8)
        await asyncio.gather(*(asyncio.to_thread(read, writer) for writer in writers))
    read(LedgerWriter(database, "log"))
    for by in ((), DIMENSIONS, *(tuple(chance.sample(DIMENSIONS, 2)) for _ in range(4))):
        expected = sums_of_rows(database, by)
        assert expected and sums_of_report(database, by) == expected, by


async def test_sums_fail_with_the_rows_and_come_with_them(record, database, acme, monkeypatch):  # noqa: F811
    log, path = record
    await called(log, "r1")
    with monkeypatch.context() as broken:
        broken.setattr(daily_sums, "add", fails)
        with pytest.raises(DatabaseUnavailable):
            taken(database, path)
    assert kept(database) == [] and usage(database) == []
    taken(database, path)
    assert kept(database) == ["r1"] and usage(database)[0].requests == 1


def fails(*arguments):
    raise DatabaseUnavailable("gone; try again")


async def test_rows_of_a_gateway_of_the_version_before_are_added_once_by_any_writer(record, database, acme):  # noqa: F811
    log, path = record
    await called(log, "r1")
    await called(log, "r2")
    taken(database, path)
    with database.write() as session:  # as if that gateway had written them
        session.connection().execute(update(LedgerRow.__table__).values(summed=None))
        session.connection().execute(DailySumRow.__table__.delete())
    assert usage(database) == []
    await log.append(accepted("r3"))
    await asyncio.gather(*(asyncio.to_thread(taken, database, path) for _ in range(2)))
    await log.append(completed("r3"))
    taken(database, path)
    taken(database, path)
    assert [line.requests for line in usage(database)] == [3]


@pytest.mark.parametrize(
    ("classes", "days", "sum_days", "expected"),
    [
        (["metadata_90d"], None, None, 90),
        (["metadata_90d", "metadata_91d"], None, None, 91),
        (["metadata_30d"], None, None, 62),
        (["metadata_90d"], 100, None, 100),
        (["metadata_366d"], 100, None, 100),
        (["metadata_90d"], None, 3660, 3660),
        (["metadata_90d"], 100, 90, 100),
        (["metadata_366d"], None, 90, 366),
    ],
)
async def test_sums_of_a_day_go_when_its_last_row_may_or_the_period_of_bills_is_over(
    record,  # noqa: F811
    database,
    acme,
    classes,
    days,
    sum_days,
    expected,
):
    log, path = record
    for number, of in enumerate(classes):
        await called(log, f"r{number}", retention_class=of)
    writer = taken(database, path)
    end_of_day = NOW - NOW % DAY_S + DAY_S
    writer.expire(end_of_day + expected * DAY_S - 1, days, sum_days)
    assert [line.requests for line in usage(database)] == [len(classes)]
    writer.expire(end_of_day + expected * DAY_S, days, sum_days)
    assert usage(database) == [] and kept(database) == []


async def test_a_gateway_keeps_sums_for_the_period_of_its_configuration(record, database, acme):  # noqa: F811
    log, path = record
    await called(log, "r1")

    def ledger(later, sum_days):
        return Ledger(
            database, "log", lambda: SqliteReader.open(path), lambda: PRICES, sum_days=sum_days, now=lambda: later
        )

    async with ledger(NOW + 400 * DAY_S, Audit(usage_days=500).usage_days) as one:
        await one.catch_up()
        await one._expire_quietly()
        assert kept(database) == [] and usage(database)[0].requests == 1
    async with ledger(NOW + 502 * DAY_S, 500) as two:
        await two._expire_quietly()
    assert usage(database) == []


def test_sums_name_no_request_no_person_and_no_moment_finer_than_a_day():
    assert {column.name for column in DailySumRow.__table__.c if str(column.type).startswith("VARCHAR")} == {
        "tenant", "day", "project", "key_id", "model", "region", "backend",
    }  # fmt: skip
    assert not [column.name for column in DailySumRow.__table__.c if "DOUBLE" in str(column.type).upper()]


@pytest.mark.parametrize("days", [61, 0, -1, 3661])
def test_a_period_of_sums_below_the_floor_or_beyond_ten_years_is_refused(days):
    with pytest.raises(ValueError, match="usage_days"):
        Audit(usage_days=days)


async def test_an_erasure_leaves_sums_as_they_are_since_they_hold_nothing_of_the_person(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        await asked(made, ALICE)
        await bill(made)
        database = made.control._database
        before = usage(database, by=DIMENSIONS)
        await audit(made, "erase", "acme", "--subject", ALICE, "--yes")
        await asked(made, ALICE)
        for _ in range(500):
            after = usage(database, by=DIMENSIONS)
            if sum(line.requests for line in after) == 2:
                break
            await asyncio.sleep(0.02)
        assert sum(line.nano_eur for line in after) == 2 * sum(line.nano_eur for line in before)
        with database.read() as session:
            rows = session.connection().execute(select(DailySumRow.__table__)).mappings().all()
        assert rows and ALICE not in str(rows)
        named = {one for row in rows for one in row.values()}
        assert not named & {event["request_id"] for event in made.events() if "request_id" in event}
