"""The ledger says what the record says, whatever dies in between."""

import asyncio
import csv
import io
import json
import random
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date

import pytest

from audit.events.event import Decision, InferenceAborted, InferenceAccepted, InferenceCompleted, RoutingDecision
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.storage.sqlite import SqliteReader
from gateway.database.errors import DatabaseUnavailable, NotFound
from gateway.records.prices import NANO, Price, PriceBook
from gateway.store.log_followers.ledger_writer import LedgerWriter
from gateway.store.reports.usage_csv import csv_lines
from gateway.store.reports.usage_report import LedgerEntry, Span, Usage, entries, spent, usage

ON_BOTH_DATABASES = True

PRICES = PriceBook(
    [Price("small", 1, 0.0, 200_000, 600_000, 50_000), Price("small", 2, 1_800_000_000.0, 10**6, 10**6, 0)]
)
TENANTS = ("acme", "globex")


@pytest.fixture
def clock():
    return [1_780_000_000.0]


@pytest.fixture
async def record(tmp_path, clock):
    """An audit log that is open, and its path."""
    path = tmp_path / "audit" / "log.db"
    path.parent.mkdir()
    signer = FileSigner.open(path.with_name("signer.key"), name="test/audit")
    async with await AuditLog.open(path, signer=signer, node="gw-1", clock=lambda: clock[0]) as log:
        yield log, path


def accepted(request, tenant="acme", project="main", model="small", region="eu-fr-par"):
    return InferenceAccepted(
        tenant=tenant,
        request_id=request,
        key_id="7GA3GXAA",
        project=project,
        endpoint="/v1/chat/completions",
        stream=False,
        model_requested=model,
        backend_id=f"{tenant}-1",
        region=region,
        inference_country="FR",
        storage_country="FR",
        operator_entity="x",
        operator_hq="FR",
        ultimate_parent="x",
        ultimate_parent_country="FR",
        transfer_basis="intra_eea",
        decision=Decision(outcome="allow"),
    )


def completed(request, tenant="acme", **more):
    figures = {"tokens_in": 100, "tokens_cached": 40, "tokens_out": 20, "backend_ms": 1500}
    return InferenceCompleted(tenant=tenant, request_id=request, status=200, **{**figures, **more})


def read(database, path, prices=PRICES, writer=None):
    return (writer or LedgerWriter(database, "log")).catch_up(lambda: SqliteReader.open(path), prices)


async def test_a_call_is_one_row_with_its_tokens_seconds_and_price(record, database, acme):
    log, path = record
    await log.append(accepted("r1"))
    assert read(database, path)
    assert usage(database) == [], "it runs"
    await log.append(completed("r1"))
    read(database, path)
    (row,) = entries(database)
    assert row == LedgerEntry(
        day="2026-05-28",
        tenant="acme",
        project="main",
        key="7GA3GXAA",
        request_id="r1",
        model="small",
        region="eu-fr-par",
        backend="acme-1",
        outcome="completed",
        tokens_in=100,
        tokens_cached=40,
        tokens_out=20,
        estimated=False,
        backend_seconds=1.5,
        price=1,
        nano_eur=60 * 200 + 40 * 50 + 20 * 600,
    )


async def test_a_line_of_a_batch_is_charged_once_at_the_price_of_batches_whatever_was_done_twice(
    record, database, acme
):
    log, path = record
    prices = PriceBook([Price("small", 1, 0.0, 200_000, 600_000, 50_000, batch_discount=50)])
    writer = LedgerWriter(database, "log")

    async def called(request, line, outcome):
        await log.append(accepted(request).model_copy(update={"batch_id": "batch_1", "batch_line": line}))
        await log.append(outcome(request))

    def cut(request):
        used = {"tokens_in": 10, "tokens_out": 3, "tokens_estimated": True}
        return InferenceAborted(tenant="acme", request_id=request, reason="gateway_stopped", **used)

    await called("cut", 1, cut)
    await called("again", 1, completed)
    await called("twice-1", 2, completed)
    await called("twice-2", 2, completed)
    await called("later-1", 3, completed)
    read(database, path, prices, writer)
    await called("later-2", 3, completed)  # of another reading
    await log.append(accepted("over").model_copy(update={"batch_id": "batch_1", "batch_line": 3}))
    read(database, path, prices, writer)
    await log.append(completed("over"))
    read(database, path, prices, writer)
    await log.append(accepted("own").model_copy(update={"batch_id": "batch_2", "batch_line": 3}))
    await log.append(completed("own"))
    read(database, path, prices, writer)
    half = (60 * 200 + 40 * 50 + 20 * 600) // 2
    paid = {row.request_id: row.nano_eur for row in entries(database)}
    assert paid == {
        "cut": 0, "again": half, "twice-1": half, "twice-2": 0, "later-1": half, "later-2": 0, "over": 0, "own": half
    }  # fmt: skip


async def test_a_cut_call_costs_what_the_record_says_and_a_crashed_one_nothing(record, database, acme):
    log, path = record
    for request in ("cut", "crash"):
        await log.append(accepted(request))
    cut = {"tokens_in": 10, "tokens_out": 3, "tokens_estimated": True}
    await log.append(InferenceAborted(tenant="acme", request_id="cut", reason="client_disconnected", **cut))
    await log.append(InferenceAborted(tenant="acme", request_id="crash", reason="crash"))
    read(database, path)
    (line,) = usage(database)
    assert (line.requests, line.completed, line.aborted, line.estimated) == (2, 0, 2, 1)
    assert (line.tokens_in, line.tokens_out, line.nano_eur) == (10, 3, 10 * 200 + 3 * 600)


async def test_a_call_is_billed_where_it_ran_in_the_end(record, database, acme):
    log, path = record
    await log.append(accepted("r1"))
    route = accepted("r1", region="eu-de-fra").model_dump(include=set(RoutingDecision.model_fields), exclude={"type"})
    await log.append(RoutingDecision(**route, reason="backend_unavailable"))
    await log.append(completed("r1", region="eu-de-fra", backend_id="acme-2"))
    read(database, path)
    assert [(line.region, line.backend) for line in usage(database, by=["region", "backend"])] == [
        ("eu-de-fra", "acme-2")
    ]


async def test_the_price_of_the_moment_a_call_was_let_in_is_its_price(record, database, acme, clock):
    log, path = record
    clock[0] = 1_799_999_999.0
    await log.append(accepted("before"))
    clock[0] += 2
    await log.append(completed("before"))
    await log.append(accepted("after"))
    await log.append(completed("after"))
    read(database, path)
    assert {row.request_id: row.price for row in entries(database)} == {"before": 1, "after": 2}


async def test_a_model_without_a_price_is_told_and_not_called_free(record, database, acme):
    log, path = record
    for request, model in (("r1", "small"), ("r2", "unpriced")):
        await log.append(accepted(request, model=model))
        await log.append(completed(request))
    read(database, path)
    (line,) = usage(database)
    assert (line.unpriced, line.nano_eur) == (1, 26_000)
    assert line.eur_per_million_tokens == pytest.approx(26_000 / NANO / 120 * 1e6), "of the priced tokens alone"
    assert [line.eur_per_million_tokens is None for line in usage(database, by=["model"])] == [False, True]


async def random_calls(log, clock, chance, running, count):
    """Calls that begin, and some of those that run end."""
    for _ in range(count):
        clock[0] += chance.random() * 20000
        request, tenant = f"req-{chance.getrandbits(64)}", chance.choice(TENANTS)
        place = {"project": chance.choice(("main", "side")), "region": chance.choice(("eu-fr-par", "eu-de-fra"))}
        await log.append(accepted(request, tenant, model=chance.choice(("small", "other")), **place))
        running.append((request, tenant))
        while running and chance.random() < 0.6:
            request, tenant = running.pop(chance.randrange(len(running)))
            tokens = {"tokens_in": chance.randrange(10**6), "tokens_out": chance.randrange(10**5)}
            if chance.random() < 0.8:
                await log.append(completed(request, tenant, **{"tokens_cached": 0, **tokens}))
            else:
                await log.append(InferenceAborted(tenant=tenant, request_id=request, reason="backend_error", **tokens))


def sums_of_events(path):
    """What the record itself adds up to, by tenant and day."""
    sums = Counter()
    with sqlite3.connect(path) as db:
        for (payload,) in db.execute("SELECT payload FROM leaf"):
            event = json.loads(payload)
            if event["type"] in {"inference.completed", "inference.aborted"}:
                place = event["tenant"], event["ts"][:10]
                sums[(*place, "requests")] += 1
                for name in ("tokens_in", "tokens_out"):
                    sums[(*place, name)] += event.get(name, 0)
    db.close()
    return {key: value for key, value in sums.items() if value}


def sums_of_ledger(database):
    lines = usage(database, by=["tenant", "day"])
    return {
        (line.tenant, line.day, name): getattr(line, name)
        for line in lines
        for name in ("requests", "tokens_in", "tokens_out")
        if getattr(line, name)
    }


async def test_the_ledger_is_the_sum_of_the_audit_events_however_it_was_read(
    record, database, acme, clock, monkeypatch
):
    log, path = record
    monkeypatch.setattr("gateway.store.log_followers.ledger_writer.AT_ONCE", 7)
    chance, running = random.Random(7), []
    for _ in range(24):
        await random_calls(log, clock, chance, running, 10)
        if chance.random() < 0.7:
            read(database, path)  # by a new writer each time: a restart
    read(database, path)
    assert sums_of_ledger(database) == sums_of_events(path)


async def test_a_transaction_that_fails_in_the_middle_leaves_neither_rows_nor_progress(
    record, database, acme, monkeypatch
):
    log, path = record
    for number in range(20):
        await log.append(accepted(f"r{number}"))
        await log.append(completed(f"r{number}"))
    writer = LedgerWriter(database, "log")
    moved = LedgerWriter._move

    def fails(self, connection, tenant, end):
        if tenant == "acme":
            raise DatabaseUnavailable("gone")
        moved(self, connection, tenant, end)

    monkeypatch.setattr(LedgerWriter, "_move", fails)
    with pytest.raises(DatabaseUnavailable):
        read(database, path, writer=writer)
    assert usage(database) == []
    monkeypatch.setattr(LedgerWriter, "_move", moved)
    read(database, path, writer=writer)
    (line,) = usage(database)
    assert line.requests == 20


async def test_leaves_that_were_pruned_before_they_were_read_do_not_stop_the_ledger(record, database, acme):
    log, path = record
    for number in range(6):
        await log.append(accepted(f"r{number}"))
        await log.append(completed(f"r{number}"))
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM leaf WHERE seq < 5 AND tree = (SELECT id FROM tree WHERE tenant = 'acme')")
        db.commit()
    read(database, path)
    (line,) = usage(database)
    assert line.requests == 3, "the outcome of a call whose intent is gone belongs to nobody"


async def test_two_gateways_that_read_one_log_count_every_event_once(record, database, acme):
    log, path = record
    writers = [LedgerWriter(database, "log") for _ in range(4)]
    for number in range(60):
        await log.append(accepted(f"r{number}"))
        await log.append(completed(f"r{number}"))
        if number % 5 == 0:
            await asyncio.gather(*(asyncio.to_thread(read, database, path, PRICES, writer) for writer in writers))
    for writer in writers:
        read(database, path, writer=writer)
    (line,) = usage(database)
    assert (line.requests, line.tokens_in) == (60, 6000)


async def test_calls_that_arrive_while_it_reads_wait_for_the_next_turn(record, database, acme):
    """Under load there is always something new: a turn that went on for it would never end."""
    log, path = record
    opened, loop = 0, asyncio.get_running_loop()

    def growing():
        nonlocal opened
        opened += 1
        asyncio.run_coroutine_threadsafe(log.append(accepted(f"req-{opened}")), loop).result()
        return SqliteReader.open(path)

    writer = LedgerWriter(database, "log")
    assert await asyncio.to_thread(writer.catch_up, growing, PRICES) == 3, "the start of the log and two calls"
    assert opened == 2, "once to see whether there is news, once to read it"
    await log.append(accepted("req-last"))
    assert await asyncio.to_thread(read, database, path, PRICES, writer) == 1


async def test_a_gateway_that_looked_before_another_read_on_raises_no_alarm(record, database, acme, caplog):
    """It looks at the log, another gateway reads more of it, and only then has it the turn."""
    log, path = record
    first, second = LedgerWriter(database, "log"), LedgerWriter(database, "log")
    await log.append(accepted("r1"))
    opened = 0

    def slow():
        nonlocal opened
        reader = SqliteReader.open(path)
        opened += 1
        if opened == 1:  # between the look and the turn
            runner.submit(asyncio.run, log_more()).result()
            read(database, path, writer=second)
        return reader

    async def log_more():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(log.append(completed("r1")), loop))

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor() as runner:
        await asyncio.to_thread(first.catch_up, slow, PRICES)
    assert "older log" not in caplog.text
    (line,) = usage(database)
    assert line.requests == 1


async def test_logs_of_two_machines_with_trees_of_one_tenant_do_not_hide_each_other(record, database, acme):
    log, path = record
    await log.append(accepted("r1"))
    await log.append(completed("r1"))
    read(database, path, writer=LedgerWriter(database, "one"))
    await log.append(accepted("r2"))
    await log.append(completed("r2"))
    read(database, path, writer=LedgerWriter(database, "two"))  # reads from its own beginning
    (line,) = usage(database)
    assert line.requests == 2


async def test_usage_is_told_of_one_tenant_of_some_days_and_by_anything(record, database, acme, clock):
    log, path = record
    clock[0] -= clock[0] % 86400
    for number, (tenant, project) in enumerate([("acme", "main"), ("acme", "side"), ("globex", "main")] * 2):
        await log.append(accepted(f"r{number}", tenant, project))
        await log.append(completed(f"r{number}", tenant))
        clock[0] += 43200
    read(database, path)
    assert [line.requests for line in usage(database, tenant="acme")] == [4]
    by = usage(database, by=["tenant", "project"])
    assert [(line.tenant, line.project, line.requests) for line in by] == [
        ("acme", "main", 2), ("acme", "side", 2), ("globex", "main", 2),
    ]  # fmt: skip
    days = [line.day for line in usage(database, by=["day"])]
    assert len(days) == 3
    span = Span.model_validate({"since": days[1], "until": days[1]})
    assert [line.requests for line in usage(database, span=span)] == [2]
    assert usage(database, span=Span.model_validate({"since": "2030-01-01"})) == []
    with pytest.raises(NotFound):
        usage(database, tenant="nobody")


async def test_what_was_spent_begins_the_budgets_of_a_restarted_gateway(record, database, acme, clock):
    log, path = record
    for number in range(3):
        await log.append(accepted(f"r{number}"))
        await log.append(completed(f"r{number}"))
        clock[0] += 86400
    read(database, path)
    found = spent(database, date(2026, 5, 30))
    assert found["acme:month"] == found["acme/main/7GA3GXAA:month"] == pytest.approx(3 * 26_000 / NANO)
    assert found["acme/main:day"] == pytest.approx(26_000 / NANO)


async def test_exports_page_through_the_whole_ledger(record, database, acme, monkeypatch):
    log, path = record
    monkeypatch.setattr("gateway.store.reports.usage_report._ROWS_AT_ONCE", 3)
    for number in range(10):
        await log.append(accepted(f"r{number}", TENANTS[number % 2]))
        await log.append(completed(f"r{number}", TENANTS[number % 2]))
    read(database, path)
    rows = list(csv.DictReader(io.StringIO("".join(csv_lines(entries(database), LedgerEntry)))))
    assert sorted(row["request_id"] for row in rows) == sorted(f"r{number}" for number in range(10))
    assert sum(int(row["nano_eur"]) for row in rows) == usage(database)[0].nano_eur


def test_a_name_that_a_spreadsheet_would_run_is_text_in_the_table():
    line = Usage(
        model="=cmd|' /C calc'!A0",
        requests=1,
        completed=1,
        aborted=0,
        estimated=0,
        unpriced=0,
        tokens_in=0,
        tokens_cached=0,
        tokens_out=0,
        backend_seconds=0,
        nano_eur=-1,
        eur=0,
        eur_per_million_tokens=None,
    )
    (row,) = csv.DictReader(io.StringIO("".join(csv_lines([line], Usage))))
    assert row["model"] == "'=cmd|' /C calc'!A0"
    assert row["nano_eur"] == "-1", "a number stays one"
