"""Calls, kill -9 of gateways and random commands in any order: what was acknowledged is kept, what was erased is gone.

Two gateways on one folder keep content. Between calls one of them is killed, starts again, or a command runs beside
them. Afterwards an access request of each person is exactly the calls that were acknowledged since the person's last
erasure, erased values stay erased, every database is whole, and the log verifies. `make campaign` runs many times as
many; `--factor 32` makes 1,024 calls and 128 kills.
"""

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import time

import aiohttp
import pytest

from tests.conftest import how_many, seed_of
from tests.fakes.lab import chat
from tests.gateway.nursery import listening
from tests.gateway.test_every_command_beside_a_gateway import DATABASES, scene

KILLS = how_many(4, 2)
CALLS = how_many(32, 16)
NODES = ("gw-1", "gw-2")
PEOPLE = tuple(f"person-{number}@example.org" for number in range(6))

COMMANDS = (
    "audit show acme",
    "audit verify",
    "audit anchor",
    "audit clock",
    "audit selftest",
    "audit hold list acme",
    "audit retention --dry-run",
    "audit publish",
    "audit breach acme",
    "key list acme",
    "usage show",
    "tenant list",
    "limit show acme",
    "policy history acme",
    "oversight list acme",
    "secrets show",
    "doctor",
    "project list acme",
    "limit update acme --rpm 100000",
)

INTEGRITY = """
import sqlite3, sys
for path in sys.argv[1:]:
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], path
    db.close()
"""


class Campaign:
    def __init__(self, made, chance):
        self.made, self.chance = made, chance
        self.living = {}  # node to (pid, base URL)
        self.told = {person: [] for person in PEOPLE}  # request ids of whole answers since the last erasure
        self.erased = set()  # request ids
        self.starts = self.kills = self.calls = self.broken = self.commands = 0

    async def start(self, node):
        self.starts += 1
        log = self.made.out / f"{node}-{self.starts}.log"
        pid = await self.made.gateways.start(node, log)
        self.living[node] = pid, await listening(log)

    async def kill(self, node):
        """In the middle of running calls."""
        pid, base = self.living.pop(node)
        running = [asyncio.create_task(self.call(base)) for _ in range(self.chance.randrange(4))]
        await asyncio.sleep(self.chance.random() * 0.02)
        assert await self.made.gateways.end(pid, "KILL") == -9
        await asyncio.gather(*running)
        self.kills += 1

    async def stop(self, node):
        pid, _ = self.living.pop(node)
        assert await self.made.gateways.end(pid, "TERM") == 0

    async def call(self, base=None):
        person = self.chance.choice(PEOPLE)
        if base is None:
            _, base = self.chance.choice(list(self.living.values()))
        headers = {"authorization": f"Bearer {self.made.lab.key()}", "x-domicile-subject": person}
        stream = self.chance.random() < 0.3
        self.calls += 1
        try:
            async with self.made.http.post(
                f"{base}/v1/chat/completions", json=chat("hello", stream=stream), headers=headers
            ) as answer:
                assert answer.status == 200, await answer.text()
                whole = await answer.read()
                if not stream or whole.endswith(b"data: [DONE]\n\n"):
                    self.told[person].append(answer.headers["x-request-id"])
        except aiohttp.ClientError:
            self.broken += 1

    async def command(self):
        self.commands += 1
        await self.made.domicile(*self.chance.choice(COMMANDS).split(), code=0)

    async def erase(self):
        person = self.chance.choice(PEOPLE)
        said = await self.made.domicile("audit", "erase", "acme", "--subject", person, "--yes")
        assert "values of" in said or "nothing is kept" in said, said
        self.erased.update(self.told[person])
        self.told[person] = []

    async def kept(self, person):
        """Calls of which something is kept, by type of record."""
        said = await self.made.domicile("audit", "dsar", "acme", "--subject", person)
        if "nothing is kept" in said:
            return {}
        records = json.JSONDecoder().raw_decode(said)[0]["records"]  # notes on what is missing come behind it
        assert all(one["values"]["subject"]["value"] == person for one in records)
        found = {}
        for one in records:
            found.setdefault(one["record"]["request_id"], set()).add(one["record"]["type"])
        return found

    async def check(self):
        for person in PEOPLE:
            kept = await self.kept(person)
            told = set(self.told[person])
            assert told <= kept.keys(), f"acknowledged and not kept: {told - kept.keys()}"
            assert all(kept[request] == {"inference.accepted", "inference.completed"} for request in told)
            assert not self.erased & kept.keys(), "what was erased came back"
        await self.made.domicile("audit", "verify", code=0)

    async def play(self, kills, calls):
        """Until there were so many of both."""
        for node in NODES:
            await self.start(node)
        while self.kills < kills or self.calls < calls:
            deed = self.chance.random()
            if deed < 0.5:
                await self.call()
            elif deed < 0.8:
                await self.command()
            elif deed < 0.83:
                await self.erase()
            elif len(self.living) == 1:
                await self.start(next(node for node in NODES if node not in self.living))
            elif deed < 0.85:
                await self.stop(self.chance.choice(NODES))
            elif self.kills < kills:
                await self.kill(self.chance.choice(NODES))
        await self.check()
        for node in list(self.living):
            await self.kill(node)
        await self.check()
        for node in NODES:  # each closes what its last life left open
            await self.start(node)
        await self.call()
        for node in NODES:
            await self.stop(node)
        await self.check()


@pytest.mark.campaign
@pytest.mark.timeout(3600)
async def test_calls_kills_and_commands_in_any_order_lose_nothing(tmp_path, record_property):
    seed = seed_of(20261129)
    record_property("seed", seed)
    began = time.monotonic()
    async with scene(tmp_path, delay_s=0.005) as made:
        campaign = Campaign(made, random.Random(seed))
        await campaign.play(KILLS, CALLS)
        subprocess.run([sys.executable, "-c", INTEGRITY, *(str(made.data / name) for name in DATABASES)], check=True)
        with sqlite3.connect(made.data / "audit" / "log.db") as db:
            open_calls = db.execute("SELECT count(*) FROM open_intent").fetchone()
        assert open_calls == (0,)
        assert [file.name for file in (made.data / "audit").glob("node-*")] == []
    record_property("kills", campaign.kills)
    record_property("calls", campaign.calls)
    record_property("broken", campaign.broken)
    record_property("commands", campaign.commands)
    record_property("examples", campaign.kills + campaign.calls + campaign.commands)
    record_property("took_s", round(time.monotonic() - began))
