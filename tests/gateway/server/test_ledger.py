"""The ledger of a running gateway: it goes on where it was, and bills what was sent."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal

import pytest

from audit.storage.sqlite import SqliteReader
from gateway.database import database as database_module
from gateway.database.database import Database
from gateway.installation.installation import Installation
from gateway.limits.limit_kinds import LimitFigures
from gateway.server.ledger import Ledger
from gateway.store.log_followers import ledger_writer
from gateway.store.log_followers.ledger_writer import LedgerWriter
from gateway.store.reports.usage_report import entries, usage
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab
from tests.gateway.store.log_followers.test_ledger_writer import (
    PRICES,
    accepted,
    clock,  # noqa: F401  (a fixture)
    completed,
    record,  # noqa: F401  (a fixture)
    sums_of_events,
)

ON_BOTH_DATABASES = True


async def bill(made):
    """Usage as the gateway's own database has it, once the ledger is up with the record."""
    database = Installation.open(made.data).database()
    try:
        for _ in range(500):
            (line,) = usage(database) or [None]
            ended = sum(t in {"inference.completed", "inference.aborted"} for t in made.types())
            if line is not None and line.requests == ended:
                return line
            await asyncio.sleep(0.02)
        raise AssertionError("the ledger does not come up with the record")
    finally:
        database.close()


async def test_a_restarted_gateway_goes_on_with_the_ledger_and_with_what_is_left_of_a_budget(tmp_path):
    def set_up(made):
        made.tenant("acme")
        made.control.set_price("small", input=Decimal(0), output=Decimal(10**6))
        made.control.set_limits("acme", LimitFigures(eur_per_month=20))

    async with lab(tmp_path, set_up=set_up) as made:
        first = await made.post(chat("hi", max_tokens=8))
        assert first.status == 200
        cost = first.json["usage"]["completion_tokens"]
        line = await bill(made)
        assert (line.requests, line.eur) == (1, cost)
        assert line.tokens_in == first.json["usage"]["prompt_tokens"]
    key = made.key()

    def again(made):
        made.keys["acme/main"] = key

    async with lab(tmp_path, set_up=again) as made:
        refused = await made.post(chat("hi", max_tokens=20 - cost + 1))
        assert (refused.status, refused.error["code"]) == (429, "budget_exceeded")
        assert (await made.post(chat("hi", max_tokens=20 - cost))).status == 200
        line = await bill(made)
        assert line.requests == 2
    assert sums_of_events(made.data / "audit" / "log.db")[("acme", line_day(made), "tokens_in")] == line.tokens_in


def line_day(made):
    return made.acts()[-1]["ts"][:10]


async def test_a_stream_that_its_client_leaves_is_billed_for_what_was_sent(tmp_path):
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.05, pieces=50)}) as made:
        headers = {"authorization": f"Bearer {made.key()}"}
        url = f"{made.base}/v1/chat/completions"
        async with made.http.post(url, json=chat("hi", stream=True), headers=headers) as answer:
            await answer.content.readany()
        while made.types()[-1] != "inference.aborted":
            await asyncio.sleep(0.02)
        event = made.acts()[-1]
        assert (event["reason"], event["tokens_estimated"]) == ("client_disconnected", True)
        assert event["tokens_in"] > 0
        assert event["tokens_out"] >= 1
        line = await bill(made)
        assert (line.aborted, line.estimated) == (1, 1)
        assert (line.tokens_in, line.tokens_out) == (event["tokens_in"], event["tokens_out"])


async def test_limits_that_an_administrator_sets_hold_at_once(tmp_path):
    async with lab(tmp_path) as made:
        assert "x-ratelimit-limit-requests" not in (await made.post(chat("hi"))).headers
        await asyncio.to_thread(made.control.set_limits, "acme", LimitFigures(requests_per_minute=1), project="main")
        await made.taken_over()
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        refused = await made.post(chat("hi"))
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert 55 <= int(refused.headers["retry-after"]) <= 60
        assert "1 requests per minute of project main" in refused.error["message"]
        await asyncio.to_thread(made.control.set_limits, "acme", LimitFigures(), project="main")
        await made.taken_over()
        assert (await made.post(chat("hi"))).status == 200


class _Slow:
    """A snapshot of the log that takes its time, with the control database locked meanwhile."""

    def __init__(self, path):
        self._reader = SqliteReader.open(path)

    def sizes(self):
        time.sleep(0.05)
        return self._reader.sizes()

    def leaves(self, tenant, start=0):
        return self._reader.leaves(tenant, start)

    def close(self):
        self._reader.close()


@pytest.fixture
async def behind(record, monkeypatch):  # noqa: F811
    """A log whose reading takes many turns of the lock, each short, and all together longer than one waits for it."""
    log, path = record
    monkeypatch.setattr(ledger_writer, "AT_ONCE", 2)
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_MS", 400)
    for request in range(10):
        await log.append(accepted(f"r{request}"))
        await log.append(completed(f"r{request}"))
    return path


def records(path):
    with closing(SqliteReader.open(path)) as reader:
        return sum(reader.sizes().values())


async def test_another_process_gets_its_turn_while_one_reads_a_long_record(behind, data, acme):
    def catch_up(_):
        with closing(Database.open(data)) as one:
            return LedgerWriter(one, "log").catch_up(lambda: _Slow(behind), PRICES)

    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(catch_up, range(3)))
    assert sum(taken) == records(behind)
    with closing(Database.open(data)) as one:
        assert len(list(entries(one))) == 10


async def test_two_readings_of_one_gateway_do_not_wait_for_each_others_transactions(behind, data, acme):
    with closing(Database.open(data)) as one:
        ledger = Ledger(one, "log", lambda: _Slow(behind), lambda: PRICES)
        assert sum(await asyncio.gather(*(ledger.catch_up() for _ in range(3)))) == records(behind)
        assert len(list(entries(one))) == 10
