"""Curves of calls and of backends: what the record and the backends said, each once, of one tenant alone."""

import asyncio

import pytest
from sqlalchemy import func, select

from audit.events.event import Decision, InferenceAborted, InferenceDenied
from audit.storage.sqlite import SqliteReader
from gateway.database.errors import DatabaseUnavailable, NotFound
from gateway.database.tables.usage import BackendCurveRow, CallCurveRow
from gateway.records.curves import PERIODS
from gateway.records.prices import PriceBook
from gateway.store.fleet.backend_curves import Look, note_looks
from gateway.store.log_followers import call_curves as written
from gateway.store.log_followers.ledger_writer import LedgerWriter
from gateway.store.reports.curves import backend_curves, call_curves
from tests.gateway.server.test_ledger import accepted, clock, completed, record  # noqa: F401  (fixtures)

ON_BOTH_DATABASES = True
BEGAN = 1_780_000_000.0


@pytest.fixture
def read(record, database, clock):  # noqa: F811
    """Reads what is new on record into the ledger, by a writer of its own each time."""
    _, path = record

    def take():
        writer = LedgerWriter(database, "log", now=lambda: clock[0])
        return writer.catch_up(lambda: SqliteReader.open(path), PriceBook([]))

    return take


async def called(log, request, tenant="acme", **figures):
    await log.append(accepted(request, tenant))
    await log.append(completed(request, tenant, **figures))


def denied(request, tenant="acme"):
    intent = accepted(request, tenant).model_dump()
    names = InferenceDenied.model_fields.keys() & intent.keys() - {"decision", "type"}
    return InferenceDenied(
        **{name: intent[name] for name in names}, decision=Decision(outcome="deny", reasons=()), status=403
    )


def shown(database, period="1h", tenant="acme", now=BEGAN):
    return [one for one in call_curves(database, tenant, period, now) if one.calls]


async def test_calls_are_counted_by_outcome_in_the_step_in_which_they_ended(record, database, acme, clock, read):  # noqa: F811
    log, _ = record
    for number in range(9):
        await called(log, f"r{number}", latency_ms=100, ttft_ms=40 + number, tokens_out=60)
    await called(log, "slow", latency_ms=4000)
    await log.append(denied("no"))
    for request, status in (("refused", 422), ("cut", None)):
        await log.append(accepted(request))
        await log.append(InferenceAborted(tenant="acme", request_id=request, reason="x", status=status))
    clock[0] += 120
    await called(log, "later", latency_ms=1)
    read()
    first, last = shown(database, now=clock[0])
    assert (first.calls, first.completed, first.denied, first.refused, first.aborted) == (13, 10, 1, 1, 1)
    assert (first.calls_per_minute, first.refused_per_minute) == (13, 2)
    assert first.tokens_per_s == pytest.approx(9 + completed("x").tokens_out / 60, abs=0.01)
    assert 79 < first.latency_p50_ms <= 100 and 3981 < first.latency_p95_ms <= 5012
    assert first.first_token_ms == 44
    assert (last.begin - first.begin).total_seconds() == 120 and last.calls == 1
    for period in ("24h", "7d"):
        assert sum(one.calls for one in shown(database, period, now=clock[0])) == 14


async def test_what_two_writers_read_in_turn_counts_once(record, database, acme, clock, read):  # noqa: F811
    log, _ = record
    for number in range(40):
        await called(log, f"r{number}", latency_ms=number + 1)
        if number % 10 == 9:
            await asyncio.gather(*(asyncio.to_thread(read) for _ in range(2)))
    read()
    assert [one.calls for one in shown(database)] == [40]


async def test_curves_come_with_the_rows_or_not_at_all(record, database, acme, clock, read, monkeypatch):  # noqa: F811
    log, _ = record
    await called(log, "r1")

    def fails(*arguments):
        raise DatabaseUnavailable("gone; try again")

    with monkeypatch.context() as broken:
        broken.setattr(written, "add", fails)
        with pytest.raises(DatabaseUnavailable):
            read()
    assert shown(database) == []
    read()
    assert [one.calls for one in shown(database)] == [1]


async def test_a_tenant_sees_its_own_calls_and_one_that_is_not_there_nothing(record, database, acme, clock, read):  # noqa: F811
    log, _ = record
    await called(log, "ours")
    await called(log, "theirs", tenant="globex")
    read()
    assert [one.calls for one in shown(database)] == [1]
    with pytest.raises(NotFound):
        call_curves(database, "initech", "1h", BEGAN)
    with pytest.raises(NotFound):
        backend_curves(database, "initech", "1h", BEGAN)


async def test_what_no_period_shows_any_more_is_not_written_and_what_was_is_deleted(
    record,  # noqa: F811
    database,
    acme,
    clock,  # noqa: F811
    read,
):
    log, _ = record
    await called(log, "old")
    note_looks(database, [Look("acme", "a", 1, 0, 0.5, 80.0, 400.0)], clock[0])
    clock[0] += 2 * 86400
    await called(log, "new")
    read()
    assert steps(database, CallCurveRow) == {60: 1, 600: 1, 3600: 2}, "of the old one the week alone"
    LedgerWriter(database, "log").expire(clock[0])
    assert steps(database, BackendCurveRow) == {3600: 1}
    LedgerWriter(database, "log").expire(clock[0] + 10 * 86400)
    assert steps(database, CallCurveRow) == steps(database, BackendCurveRow) == {}


def steps(database, table):
    query = select(table.step_s, func.count()).group_by(table.step_s)
    with database.read() as session:
        return {step: count for step, count in session.connection().execute(query)}


def test_backends_are_means_over_a_step_added_up_over_backends(database, acme):
    for running, rate in ((1, 80.0), (3, None)):
        looks = [Look("acme", "a", running, 2, 0.5, rate, 400.0), Look("acme", "b", 5, 0, 0.25, 20.0, None)]
        note_looks(database, [*looks, Look("globex", "c", 99, 99, 0.9, 9.0, 9.0)], BEGAN)
    *before, now = backend_curves(database, "acme", "1h", BEGAN)
    assert (now.running, now.waiting, now.tokens_per_s, now.watts) == (7, 2, 100, 400)
    assert now.kv_use == 0.375
    assert {one.running for one in before} == {None}, "nothing is made up"
    for period in PERIODS:
        assert backend_curves(database, "acme", period, BEGAN)[-1].running == 7


def test_the_running_step_counts_by_the_time_that_passed_of_it(database, acme):
    with database.write() as session:
        begin = int(BEGAN // 60) * 60
        sums = {
            ("acme", 60, begin, 20): dict.fromkeys(
                ("completed", "denied", "refused", "aborted", "tokens_out", "first_tokens", "first_token_ms"), 30
            )
        }
        written.add(session.connection(), sums)
    assert call_curves(database, "acme", "1h", begin + 30)[-1].calls_per_minute == 240
    assert call_curves(database, "acme", "1h", begin + 1)[-1].calls_per_minute == 120 * 60 / 6
    assert call_curves(database, "acme", "1h", begin + 90)[-2].calls_per_minute == 120
