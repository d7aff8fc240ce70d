"""kill -9 in the middle of a batch: each line has one result, every call one outcome, and each line is paid once."""

import asyncio
import signal
from collections import Counter
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest

from gateway.installation.installation import Installation
from gateway.store.reports.usage_report import entries
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import Lab, open_control
from tests.gateway.batches.conftest import CHAT, KEEPING, client, jsonl, line, lines_of, over
from tests.gateway.nursery import listening, nursery
from tests.gateway.test_values_in_postgresql import fresh_database

LINES = 200


@asynccontextmanager
async def installation(tmp_path, monkeypatch, **backend):
    """A data folder with tenant acme and a backend; gateways on it are started by the nursery that comes with it."""
    monkeypatch.setenv("DOMICILE__BATCHES__LEASE_S", "3")
    made = Lab(tmp_path / "data", open_control(tmp_path / "data"))
    made.tenant("acme", KEEPING)
    made.control.set_price("small", input=Decimal(10), output=Decimal(20), batch_discount=50)
    async with running(FakeBackend(**backend)) as fake:
        made.backends["acme-1"] = fake
        identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
        made.control.register_backend(identity, url=fake.url, models=[fake.model])
        try:
            async with nursery(made.data) as gateways:
                yield made, gateways
        finally:
            made.control._database.close()


def sdk_of(made, base):
    return client(made, base=base)


async def begun(sdk, lines=LINES):
    file = await sdk.files.create(file=("a.jsonl", jsonl(*(line(n) for n in range(lines)))), purpose="batch")
    return await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def reaches(sdk, batch, completed):
    async with asyncio.timeout(60):
        while (await sdk.batches.retrieve(batch.id)).request_counts.completed < completed:
            await asyncio.sleep(0.01)


async def ended_well(sdk, batch):
    """Every line once, in the one file of results."""
    batch = await over(sdk, batch)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts.model_dump() == {"total": LINES, "completed": LINES, "failed": 0}
    results = await lines_of(sdk, batch.output_file_id)
    assert Counter(each["custom_id"] for each in results) == {f"line-{number}": 1 for number in range(LINES)}


def recorded_and_paid_once(made):
    """A line may have been called more than once: it has one outcome for each call, and one charge."""
    events = made.events()
    accepted = [event for event in events if event["type"] == "inference.accepted"]
    outcomes = Counter(e["request_id"] for e in events if e["type"] in ("inference.completed", "inference.aborted"))
    assert outcomes == {event["request_id"]: 1 for event in accepted}
    assert {event["batch_line"] for event in accepted} == set(range(1, LINES + 1))
    assert len(accepted) >= LINES
    assert made.verify().findings == []
    database = Installation.open(made.data).database()
    rows = list(entries(database, tenant="acme"))
    database.close()
    assert len(rows) == len(accepted)
    each = (7 * 10 + 5 * 20) * 1000 // 2  # tokens of the fake's answers at half the price, in nano-euros
    assert sum(row.nano_eur or 0 for row in rows) == LINES * each


async def test_a_gateway_that_is_killed_goes_on_where_it_stood(tmp_path, monkeypatch):
    async with installation(tmp_path, monkeypatch, delay_s=0.02) as (made, gateways):
        pid = await gateways.start("gw-1", tmp_path / "first.log")
        async with sdk_of(made, await listening(tmp_path / "first.log")) as sdk:
            batch = await begun(sdk)
            await reaches(sdk, batch, 40)
        assert await gateways.end(pid, "KILL") == -signal.SIGKILL
        pid = await gateways.start("gw-1", tmp_path / "second.log")
        async with sdk_of(made, await listening(tmp_path / "second.log")) as sdk:
            await reaches(sdk, batch, 120)
            assert await gateways.end(pid, "KILL") == -signal.SIGKILL
        pid = await gateways.start("gw-1", tmp_path / "third.log")
        async with sdk_of(made, await listening(tmp_path / "third.log")) as sdk:
            await ended_well(sdk, batch)
        assert await gateways.end(pid, "TERM") == 0
        recorded_and_paid_once(made)


async def test_a_gateway_that_is_stopped_closes_its_lines_and_goes_on_after_its_start(tmp_path, monkeypatch):
    async with installation(tmp_path, monkeypatch, delay_s=0.05) as (made, gateways):
        pid = await gateways.start("gw-1", tmp_path / "first.log")
        async with sdk_of(made, await listening(tmp_path / "first.log")) as sdk:
            batch = await begun(sdk)
            await reaches(sdk, batch, 20)
        assert await gateways.end(pid, "TERM") == 0
        events = made.events()
        opened = {event["request_id"] for event in events if event["type"] == "inference.accepted"}
        closed = {e["request_id"] for e in events if e["type"] in ("inference.completed", "inference.aborted")}
        assert opened == closed
        pid = await gateways.start("gw-1", tmp_path / "second.log")
        async with sdk_of(made, await listening(tmp_path / "second.log")) as sdk:
            await ended_well(sdk, batch)
        assert await gateways.end(pid, "TERM") == 0
        recorded_and_paid_once(made)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_another_gateway_goes_on_once_the_lease_ends(tmp_path, monkeypatch, request, database):
    if database == "postgresql":
        monkeypatch.setenv("DOMICILE_DATABASE_URL", fresh_database(request.getfixturevalue("postgresql_url")))
    async with installation(tmp_path, monkeypatch, delay_s=0.02) as (made, gateways):
        pids, bases = {}, {}
        for node in ("gw-1", "gw-2"):
            pids[node] = await gateways.start(node, tmp_path / f"{node}.log")
            bases[node] = await listening(tmp_path / f"{node}.log")
        async with sdk_of(made, bases["gw-1"]) as sdk:
            batch = await begun(sdk)
            await reaches(sdk, batch, 40)
        first = holder(made)
        other = next(node for node in pids if node != first)
        assert await gateways.end(pids.pop(first), "KILL") == -signal.SIGKILL
        async with sdk_of(made, bases[other]) as sdk:
            await ended_well(sdk, batch)
        pids[first] = await gateways.start(first, tmp_path / "again.log")  # closes what its last life left open
        await listening(tmp_path / "again.log")
        for pid in pids.values():
            assert await gateways.end(pid, "TERM") == 0
        recorded_and_paid_once(made)


def holder(made):
    """The node that works the batches."""
    database = Installation.open(made.data).database()
    with database.engine.connect() as connection:
        query = "SELECT holder FROM lease WHERE name = 'batches:acme'"
        found = connection.exec_driver_sql(query).scalar_one()
    database.close()
    return found.partition("/")[0]


async def test_a_backend_that_is_killed_delays_lines_and_loses_none(tmp_path, monkeypatch):
    async with installation(tmp_path, monkeypatch) as (made, gateways):
        fake = FakeBackend(delay_s=0.02)
        async with running(fake):
            port = int(fake.url.rpartition(":")[2])
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-2")
            made.control.revoke_backend("acme", "acme-1")
            made.control.register_backend(identity, url=fake.url, models=[fake.model])
            pid = await gateways.start("gw-1", tmp_path / "log")
            async with sdk_of(made, await listening(tmp_path / "log")) as sdk:
                batch = await begun(sdk)
                await reaches(sdk, batch, 40)
        async with running(fake, port), sdk_of(made, await listening(tmp_path / "log")) as sdk:
            await ended_well(sdk, batch)
            assert await gateways.end(pid, "TERM") == 0


async def test_responses_in_the_background_survive_a_kill_and_are_answered_and_paid_once(tmp_path, monkeypatch):
    """In the queue of the batches; the other gateway, which shares the folder, shows them all the time."""
    async with installation(tmp_path, monkeypatch, delay_s=0.1) as (made, gateways):
        pids, bases = {}, {}
        for node in ("gw-1", "gw-2"):
            pids[node] = await gateways.start(node, tmp_path / f"{node}.log")
            bases[node] = await listening(tmp_path / f"{node}.log")
        asked = {"model": "small", "background": True}
        async with sdk_of(made, bases["gw-1"]) as sdk:
            before = await sdk.responses.create(model="small", input="one")
            some = [
                await sdk.responses.create(input=f"{number}", previous_response_id=before.id, **asked)
                for number in range(40)
            ]
            async with asyncio.timeout(30):
                while not any([(await sdk.responses.retrieve(each.id)).status == "completed" for each in some]):
                    await asyncio.sleep(0.01)
        first = holder(made)
        other = next(node for node in pids if node != first)
        assert await gateways.end(pids.pop(first), "KILL") == -signal.SIGKILL
        async with sdk_of(made, bases[other]) as sdk:
            for each in some:
                async with asyncio.timeout(60):
                    while (done := await sdk.responses.retrieve(each.id)).status in ("queued", "in_progress"):
                        await asyncio.sleep(0.05)
                assert (done.status, done.output_text) == ("completed", "The capital is Paris.")
        pids[first] = await gateways.start(first, tmp_path / "again.log")  # closes what its last life left open
        await listening(tmp_path / "again.log")
        for pid in pids.values():
            assert await gateways.end(pid, "TERM") == 0
        ends = Counter(event["response_id"] for event in made.events() if event["type"] == "response.ended")
        assert ends.keys() <= {each.id for each in some} and set(ends.values()) == {1}
        found = Installation.open(made.data).database()
        paid = Counter(row.nano_eur for row in entries(found, tenant="acme") if row.nano_eur)
        found.close()
        each = (7 * 10 + 5 * 20) * 1000
        assert paid == {each // 2: len(some), each: 1}
        assert made.verify().findings == []
