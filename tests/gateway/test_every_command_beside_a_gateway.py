"""Every command of the CLI beside a gateway that keeps content: none costs the gateway its files or its locks."""

import fcntl
import json
import os
import struct
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import typer

from gateway.cli.app import app
from gateway.installation.installation import Installation
from gateway.store.control.control import Control
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import POLICY, Lab, chat
from tests.gateway.nursery import listening, nursery

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
DATABASES = ("control.db", "audit/log.db", "audit/side.db")
SHARED_FIRST, SHARED_SIZE = 0x40000002, 510
"""Where SQLite keeps the lock of those who have a database open (https://sqlite.org/src, os.h)."""
BOB = "bob@example.org"

NOT_WALKED = {
    "demo": "starts a gateway and backends of its own; its tests run it",
    "up": "is the gateway; the second one below is one",
    "backend serve": "serves a model and opens nothing of the folder",
    "audit witness serve": "runs until it is stopped; opens the witness's own database",
}

# Words after the command; the folder comes from the environment. Where nothing is said, it takes none.
WORDS = {
    "plan": "--help",
    "backup create": "{out}/backup",
    "backup check": "{out}/backup",
    "backup restore": "{out}/backup --keys {out}/keys --data {out}/restored",
    "cell create": "eu-2 --verifier-key {out}/peer.vkey",
    "cell allow": "eu-2 acme",
    "cell forbid": "eu-2 acme",
    "cell bundle": "eu-2 --output {out}/eu-2.bundle",
    "cell apply": "{out}/eu-2.bundle --from eu-2 --verifier-key {out}/peer.vkey",
    "deployment create": "acme big --model big --weights none.gguf --region eu-fr-par --min 0",
    "deployment show": "acme big",
    "deployment scale": "acme big --max 2",
    "deployment sleep": "acme big",
    "deployment wake": "acme big",
    "deployment drain": "acme big",
    "deployment delete": "acme big --yes",
    "tenant create": "globex",
    "tenant show": "acme",
    "tenant revoke": "globex --yes",
    "project create": "acme extra --purpose p --legal-basis contract",
    "project list": "acme",
    "project show": "acme main",
    "project revoke": "acme extra --yes",
    "key create": "acme main",
    "key rotate": "acme nokey",
    "key rekey": "",
    "key list": "acme",
    "key show": "acme nokey",
    "key revoke": "acme nokey --yes",
    "limit update": "acme --rpm 100000",
    "limit show": "acme",
    "limit list": "acme",
    "batch list": "acme",
    "batch show": "batch_none",
    "batch cancel": "batch_none",
    "oversight stop": "acme --project extra2",
    "oversight resume": "acme --project extra2",
    "oversight list": "acme",
    "person create": "operator Ada --role operator",
    "person update": "operator NOBODY00 --role operator",
    "person revoke": "operator NOBODY00 --yes",
    "person vouch": "operator NOBODY00 --yes",
    "person create-token": "operator NOBODY00",
    "person list-tokens": "operator NOBODY00",
    "person revoke-token": "operator NOBODY00 t --yes",
    "policy list": "acme",
    "policy show": "acme",
    "policy check": "{out}/policy.yaml",
    "policy test": "{out}/policy.yaml",
    "policy submit": "acme {out}/policy.yaml",
    "policy approve": "acme 1",
    "policy withdraw": "acme 1",
    "policy activate": "acme 1",
    "policy rollback": "acme 1",
    "policy history": "acme",
    "policy diff": "acme {out}/policy.yaml",
    "policy explain": "acme main --model small",
    "policy simulate": "acme {out}/policy.yaml",
    "redact text": "hello",
    "redact file": "{out}/policy.yaml",
    "redact eval": "{out}/labelled.jsonl",
    "region show": "eu-fr-par",
    "region check": "eu-fr-par",
    "secrets accept": "secrets/redaction --yes",
    "secrets retire": "--yes",
    "secrets renew": "acme",
    "usage export": "--output {out}/usage.csv",
    "usage create-price": "small --input 1 --output 1",
    "backend scrub": "--help",
    "backend create": "acme other --region eu-fr-par --url https://127.0.0.1:9 --model m --pin {out}/peer.vkey",
    "backend enrol": "acme gpu --region eu-fr-par --url https://127.0.0.1:9 --model m --output {out}/enrolled",
    "backend list": "acme",
    "backend create-token": "acme acme-1 --path /metrics --method GET",
    "backend revoke": "acme other --yes",
    "backend replay": "acme {request}",
    "audit retention": "--dry-run",
    "audit show": "acme",
    "audit receipt verify": "{receipt}",
    "audit export": "acme --output {out}/pack.zip",
    "audit erase": "acme --subject nobody@example.org --yes",
    "audit dsar": "acme --subject bob@example.org",
    "audit restrict": "acme --subject carol@example.org",
    "audit rectify": "acme --seq 0 --field input --value x",
    "audit read": "acme --seq 0",
    "audit hold create": "acme --records 0-1",
    "audit hold release": "acme nohold",
    "audit hold list": "acme",
    "audit timestamp": "--url http://127.0.0.1:9 --ca {out}/peer.vkey",
    "audit witness submit": "--url http://127.0.0.1:9 --key none",
    "audit breach": "acme",
    "audit ai-act": "acme --system s",
    "audit incident create": "acme --law gdpr --aware 2026-11-25T08:00Z --no-freeze",
    "audit incident update": "acme noincident",
    "audit incident notify": "acme noincident --clock c --authority a",
    "audit incident close": "acme noincident",
    "audit incident list": "acme",
    "audit request create": "acme --right access --subject alice@example.com",
    "audit request extend": "acme norequest --reason complexity",
    "audit request close": "acme norequest --outcome withdrawn",
    "audit request list": "acme",
    "audit oversight record": "acme stopped --system s",
    "audit model record": "acme --model small --what weights",
    "audit authority record": "acme received --authority c --country FR",
    "retention run": "--dry-run",
}
MUST_SUCCEED = {
    *("doctor", "backup create", "backup check", "tenant create", "tenant list", "key create", "key list"),
    *("backend create-token", "database show"),
    *("limit update", "policy list", "policy history", "policy explain", "secrets show", "secrets renew"),
    *("usage show", "usage export", "audit show", "audit verify", "audit export", "audit dsar", "audit read"),
    *("audit hold create", "audit hold list", "audit anchor", "audit clock", "audit selftest", "audit retention"),
    *("audit publish", "audit receipt verify", "audit breach", "audit incident create", "audit incident list"),
    *("audit request create", "audit request list"),
    *("audit model record", "audit rotate", "retention run"),
}
LAST = ("secrets rotate", "secrets rewrap", "secrets retire", "secrets renew", "key rekey", "audit rotate")
"""Those that put another key in place come last: the gateway goes on with what it holds."""


def leaves():
    def walk(command, words):
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, [*words, name])
        if not hasattr(command, "commands"):
            yield " ".join(words)

    found = [one for one in walk(typer.main.get_command(app), []) if one not in NOT_WALKED]
    return sorted(found, key=lambda one: (one in LAST, LAST.index(one) if one in LAST else 0))


def holds_shared_lock(pid, file):
    """Whether another process, `pid`, holds SQLite's lock of a database that is open."""
    with file.open("rb+") as opened:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, SHARED_FIRST, SHARED_SIZE, 0)
        kind, _, _, _, holder = struct.unpack("hhqqi", fcntl.fcntl(opened, fcntl.F_GETLK, asked))
    return kind == fcntl.F_RDLCK and holder == pid


class Watched:
    """A gateway process and what it has open."""

    def __init__(self, pid, data):
        self.pid, self.data = pid, data
        self.inodes = self._inodes()

    def _inodes(self):
        ends = ("", "-wal", "-shm")
        return {name: tuple(os.stat(f"{self.data / name}{end}").st_ino for end in ends) for name in DATABASES}

    def _open_files(self):
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                yield os.readlink(descriptor)

    def check(self, after):
        deleted = [name for name in self._open_files() if ".db" in name and name.endswith("(deleted)")]
        assert deleted == [], after
        assert self._inodes() == self.inodes, after
        for name in DATABASES:
            assert holds_shared_lock(self.pid, self.data / name), (after, name)


class Scene:
    def __init__(self, data, lab, gateways, http, out):
        self.data, self.lab, self.gateways, self.http, self.out = data, lab, gateways, http, out
        self.base = ""
        self.bobs = []
        self.receipt = ""
        self.said = out / "said"

    async def ask(self, subject=BOB):
        headers = {"authorization": f"Bearer {self.lab.key()}", "x-domicile-subject": subject}
        async with self.http.post(f"{self.base}/v1/chat/completions", json=chat("hello"), headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            if subject == BOB:
                self.bobs.append(answer.headers["x-request-id"])
                self.receipt = self.receipt or answer.headers["x-domicile-receipt"]

    async def domicile(self, *words, code=None):
        """What the command writes to stdout and then what it writes to stderr."""
        status = await self.gateways.run(self.said, *words)
        said = self.said.read_text() + self.said.with_name("said.err").read_text()
        assert "Traceback" not in said, (words, said)
        assert code is None or status == code, (words, said)
        return said

    async def bobs_requests(self):
        await self.domicile("audit", "dsar", "acme", "--subject", BOB, code=0)
        package = json.loads(self.said.read_text())  # notes on the installation's registers go to stderr
        assert all(one["values"]["subject"]["value"] == BOB for one in package["records"])
        records = [one["record"] for one in package["records"]]
        return [record["request_id"] for record in records if record["type"] == "inference.accepted"]


@asynccontextmanager
async def scene(tmp_path, **backend):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    installation = Installation.create(data, "eu-1")
    database = installation.database()
    control: Control = installation.control(database, actor="cli", on_event=lambda event: None)
    lab = Lab(data, control)
    lab.tenant("acme", KEEPING)
    (out / "policy.yaml").write_text(KEEPING)
    (out / "labelled.jsonl").write_text("")
    (out / "peer.vkey").write_text("none")
    async with running(FakeBackend(**backend)) as backend:
        control.register_backend(
            BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1"), url=backend.url, models=[backend.model]
        )
        database.close()
        async with nursery(data) as gateways, aiohttp.ClientSession() as http:
            yield Scene(data, lab, gateways, http, out)


async def started(made, node):
    log = made.out / f"{node}-{len(made.bobs)}.log"
    pid = await made.gateways.start(node, log)
    return pid, await listening(log)


def test_every_command_is_walked_or_has_a_reason():
    assert set(WORDS) - set(leaves()) == set()
    assert set(leaves()) >= MUST_SUCCEED


async def test_no_command_and_no_second_gateway_costs_the_first_its_files(tmp_path):
    async with scene(tmp_path) as made:
        pid, made.base = await started(made, "gw-1")
        await made.ask()
        gateway = Watched(pid, made.data)
        gateway.check("a first call")
        await made.domicile("init", "--export-keys", made.out / "keys", code=0)
        for number, leaf in enumerate(leaves()):
            given = WORDS.get(leaf, "").format(out=made.out, request=made.bobs[0], receipt=made.receipt)
            await made.domicile(*leaf.split(), *given.split(), code=0 if leaf in MUST_SUCCEED else None)
            gateway.check(leaf)
            if number % 10 == 0:
                await made.ask()
                await made.ask("alice@example.org")
            if number == 20:
                second, _ = await started(made, "gw-2")
                await made.ask()
                assert await made.gateways.end(second, "TERM") == 0
                gateway.check("a second gateway that ended")
            if number == 30:
                third, _ = await started(made, "gw-3")
                assert await made.gateways.end(third, "KILL") == -9
                gateway.check("a second gateway that was killed")

        assert await made.bobs_requests() == made.bobs
        assert "is gone" not in await made.domicile("backend", "replay", "acme", made.bobs[-1])
        await made.domicile("audit", "erase", "acme", "--subject", "alice@example.org", "--yes", code=0)
        gateway.check("an erasure")
        await made.domicile("audit", "verify", code=0)
        assert await made.gateways.end(pid, "KILL") == -9

        assert await made.bobs_requests() == made.bobs, "nothing was lost with the process"
        said = await made.domicile("audit", "dsar", "acme", "--subject", "alice@example.org", code=1)
        assert "nothing is kept" in said
        pid, made.base = await started(made, "gw-1")
        await made.ask()
        assert await made.gateways.end(pid, "TERM") == 0
        assert await made.bobs_requests() == made.bobs
        await made.domicile("audit", "verify", code=0)
        assert [file.name for file in (made.data / "audit").glob("node-cli-*")] == []
