"""kill -9 of the gateway at any moment: what was acknowledged is on record, and every intent gets one outcome."""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from audit.log.receipt import Receipt
from audit.storage.sqlite import SqliteReader
from gateway.installation.installation import Installation
from regions.identity.identity import BackendIdentity
from tests.conftest import how_many, seed_of
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import Lab, chat, open_control
from tests.gateway.nursery import listening, nursery
from tests.gateway.store.log_followers.test_ledger_writer import sums_of_events, sums_of_ledger

NODES = ("gw-1", "gw-2")  # two gateways on one data folder; while one is down the other answers
KILLS_A_NODE = how_many(30, 8)
CALLERS = 8
SECRET = "Zeppelin"
OUTCOMES = {"inference.completed", "inference.aborted"}


@dataclass
class Heard:
    """What clients were told before the gateway died under them."""

    whole: list = field(default_factory=list)  # (request id, receipt) of answers that came with their last byte
    ended: list = field(default_factory=list)  # the same of streams that ended in [DONE]
    begun: list = field(default_factory=list)  # of streams that began
    broken: int = 0
    answered: Counter = field(default_factory=Counter)  # by base URL


@asynccontextmanager
async def installation(tmp_path, **backend):
    """A data folder with tenant acme, its key, and a backend that answers."""
    made = Lab(tmp_path / "data", open_control(tmp_path / "data"))
    made.tenant("acme")
    async with running(FakeBackend(**backend)) as fake:
        made.backends["acme-1"] = fake
        identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
        made.control.register_backend(identity, url=fake.url, models=[fake.model])
        yield made


async def call_for_ever(http, bases, key, heard, chance):
    """One client after another, each asks whichever gateway is up and notes what it was promised."""
    headers = {"authorization": f"Bearer {key}"}
    while True:
        await asyncio.sleep(chance.random() * 0.01)
        if not bases:
            continue
        base = chance.choice(list(bases.values()))
        stream = chance.random() < 0.5
        try:
            async with http.post(
                f"{base}/v1/chat/completions", json=chat(SECRET, stream=stream), headers=headers
            ) as answer:
                assert answer.status == 200, await answer.text()
                promise = answer.headers["x-request-id"], Receipt.parse(answer.headers["x-domicile-receipt"])
                if stream:
                    heard.begun.append(promise)
                    if (await answer.read()).endswith(b"data: [DONE]\n\n"):
                        heard.ended.append(promise)
                else:
                    await answer.read()
                    heard.whole.append(promise)
                heard.answered[base] += 1
        except (aiohttp.ClientError, ConnectionError):
            heard.broken += 1


async def kill_again_and_again(node, gateways, bases, heard, tmp_path, chance):
    for turn in range(KILLS_A_NODE):
        log = tmp_path / f"{node}-{turn}.log"
        pid = await gateways.start(node, log)
        if chance.random() < 0.2:  # in the middle of its start, when it closes what its last life left open
            await asyncio.sleep(chance.random() * 0.2)
        else:
            bases[node] = base = await listening(log)
            enough = chance.randrange(30)  # answers and not seconds, so that a slow machine proves as much
            while heard.answered[base] < enough:
                await asyncio.sleep(0.002)
            await asyncio.sleep(chance.random() * 0.01)
        assert await gateways.end(pid, "KILL") == -signal.SIGKILL, log.read_text()
        bases.pop(node, None)


@pytest.mark.campaign
async def test_kills_lose_no_acknowledged_answer_and_leave_no_call_open(tmp_path, record_property):
    seed = seed_of(20240715)
    record_property("seed", seed)
    record_property("examples", KILLS_A_NODE * len(NODES))
    chance, heard, bases = random.Random(seed), Heard(), {}
    async with (
        installation(tmp_path, delay_s=0.004) as made,
        nursery(made.data) as gateways,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
    ):
        calling = [asyncio.create_task(call_for_ever(http, bases, made.key(), heard, chance)) for _ in range(CALLERS)]
        killing = asyncio.gather(
            *(kill_again_and_again(node, gateways, bases, heard, tmp_path, chance) for node in NODES)
        )
        ended, _ = await asyncio.wait([killing, *calling], return_when=asyncio.FIRST_COMPLETED)
        assert [task.exception() for task in ended] == [None], "no caller was told what it should not be"
        for task in calling:
            task.cancel()
        for node in NODES:  # each closes what its own last life left open
            log = tmp_path / f"{node}-last.log"
            pid = await gateways.start(node, log)
            await listening(log)
            assert await gateways.end(pid, "TERM") == 0
        received = [{name.lower(): value for name, value in sent.items()} for sent in made.backends["acme-1"].headers]

    report = made.verify()
    assert report.findings == []
    assert all(tree.open_requests == () and tree.signed == tree.records for tree in report.trees)

    events = made.events()
    by_id = {}
    for event in events:
        if event["type"].startswith("inference."):
            by_id.setdefault(event["request_id"], []).append(event)
    accepted = {request for request, its in by_id.items() if its[0]["type"] == "inference.accepted"}
    assert accepted == by_id.keys()
    assert Counter(len(its) for its in by_id.values()) == {2: len(by_id)}
    assert {its[1]["type"] for its in by_id.values()} == OUTCOMES
    at_the_backend = {sent["x-request-id"] for sent in received}
    assert at_the_backend <= accepted, "nothing reached it without its intent on record"

    database = Installation.open(made.data).database()
    assert sums_of_ledger(database) == sums_of_events(made.data / "audit" / "log.db"), "every outcome is billed once"
    database.close()

    reader = SqliteReader.open(made.data / "audit" / "log.db")
    leaves = [leaf.leaf_hash for leaf in reader.leaves("acme")]
    reader.close()
    for request, receipt in [*heard.whole, *heard.begun]:
        assert leaves[receipt.seq] == receipt.leaf_hash
        assert events[receipt.seq]["request_id"] == request
    for _, receipt in heard.whole:
        assert events[receipt.seq]["type"] == "inference.completed"
    for request, receipt in heard.ended:
        assert events[receipt.seq]["type"] == "inference.accepted"
        assert by_id[request][1]["type"] == "inference.completed"
    seqs = [receipt.seq for _, receipt in [*heard.whole, *heard.begun]]
    assert len(set(seqs)) == len(seqs)

    crashed = sum(its[1].get("reason") == "crash" for its in by_id.values())
    starts = [event for event in made.events("_system") if event["type"] == "system.start"]
    assert crashed == sum(start["orphans_closed"] for start in starts)
    assert min(crashed, heard.broken) >= KILLS_A_NODE, "the kills hit running calls"
    assert min(len(heard.whole), len(heard.ended)) >= 5 * KILLS_A_NODE
    for log in tmp_path.glob("*.log"):
        assert SECRET not in log.read_text()


@asynccontextmanager
async def command(made, tmp_path):
    """``domicile up`` as an operator runs it."""
    log = tmp_path / "up.log"
    config = tmp_path / "config.yaml"
    config.write_text("listen: {port: 0}\nnode: gw-1\n")
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "up", "-c", str(config), "--data", str(made.data), stderr=err
        )
    try:
        yield process, await listening(log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def calls(made):
    """What is on record of calls; a gateway that starts records more, by the clock."""
    return [event for event in made.events() if event["type"].startswith("inference.")]


async def test_the_command_killed_and_started_again_closes_what_it_left_open(tmp_path):
    async with installation(tmp_path, delay_s=30) as made, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {made.key()}"}
        async with command(made, tmp_path) as (process, base):
            post = http.post(f"{base}/v1/chat/completions", json=chat("hi"), headers=headers)
            waiting = asyncio.ensure_future(post)
            while not made.backends["acme-1"].bodies:
                await asyncio.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], aiohttp.ClientError)
        assert calls(made)[-1]["type"] == "inference.accepted"
        async with command(made, tmp_path) as (process, _):
            assert calls(made)[-1]["reason"] == "crash"
            process.terminate()
            assert await process.wait() == 0
    assert made.verify().ok


async def test_a_gateway_told_to_stop_finishes_running_answers_and_takes_no_new_ones(tmp_path):
    async with installation(tmp_path, delay_s=0.3, pieces=4) as made, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {made.key()}"}
        async with command(made, tmp_path) as (process, base):
            url = f"{base}/v1/chat/completions"

            async def ask(stream):
                async with http.post(url, json=chat("hi", stream=stream), headers=headers) as answer:
                    return await answer.read()

            answers = [asyncio.create_task(ask(stream)) for stream in (True, False)]
            while len(made.backends["acme-1"].bodies) < 2:
                await asyncio.sleep(0.02)
            process.terminate()
            streamed, whole = await asyncio.gather(*answers)
            assert streamed.endswith(b"data: [DONE]\n\n")
            assert json.loads(whole)["choices"][0]["finish_reason"] == "stop"
            assert await asyncio.wait_for(process.wait(), 10) == 0
            with_nobody = await asyncio.gather(ask(False), return_exceptions=True)
            assert isinstance(with_nobody[0], aiohttp.ClientConnectorError)
    assert made.types().count("inference.completed") == 2
    assert made.events("_system")[-1]["type"] == "system.stop"
    assert made.verify().ok
