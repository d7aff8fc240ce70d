"""Two cells on one machine, each a process with a data folder, backends and a record of its own."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml
from typer.testing import CliRunner

from gateway.cells.app import build_cells
from gateway.cli.app import app
from gateway.installation.installation import Installation
from gateway.records.bundle_request import PATH, ask
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import OPEN_POLICY, Lab, chat
from tests.gateway.nursery import listening

CANARY = "The patient of room 217 is called Xaver Quellwasser"


def domicile(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


class Wire:
    """A relay on loopback that remembers every byte, each way."""

    def __init__(self, port):
        self.port, self.to, self.out, self.back = None, port, b"", b""

    @asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, back, "out"), self._copy(there, writer, "back"))

    async def _copy(self, reader, writer, name):
        try:
            while data := await reader.read(65536):
                setattr(self, name, getattr(self, name) + data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Cell:
    """A gateway as `domicile up` runs it."""

    def __init__(self, folder, name):
        self.name, self.data, self.log = name, folder / name, folder / f"{name}.log"
        self.backend, self.process, self.base = FakeBackend(say=f"said in {name}"), None, ""
        self.config = folder / f"{name}.yaml"

    @property
    def vkey(self):
        return self.data / "audit" / "signer.vkey"

    @property
    def port(self):
        return int(self.base.rpartition(":")[2])

    def configure(self, **more):
        listen = {"port": 0}
        said = {
            "data": str(self.data),
            "node": self.name,
            "listen": listen,
            "audit": {"reserve_bytes": 1 << 20},
            **more,
        }
        self.config.write_text(yaml.safe_dump(said))

    async def up(self):
        self.log.write_text("")
        with self.log.open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway",
                "up",
                "-c",
                str(self.config),
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            )
        self.base = await listening(self.log)

    async def kill(self):
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def control(self):
        installation = Installation.open(self.data)
        return Lab(self.data, installation.control(installation.database(), actor="cli", on_event=lambda event: None))

    def serve(self, tenant):
        identity = BackendIdentity(self.name, tenant, "eu-fr-par", f"{tenant}-{self.name}")
        self.control().control.register_backend(identity, url=self.backend.url, models=[self.backend.model])

    async def ask(self, http, key, text="hello"):
        """Status and answer, or the error's code."""
        sent = {"authorization": f"Bearer {key}"}
        async with http.post(f"{self.base}/v1/chat/completions", json=chat(text), headers=sent) as answer:
            said = await answer.json()
        return answer.status, said["choices"][0]["message"]["content"] if "choices" in said else said["error"]["code"]

    def records(self, tenant="acme"):
        with sqlite3.connect(self.data / "audit" / "log.db") as db:
            query = "select payload from leaf join tree on tree.id = leaf.tree where tenant = ? order by seq"
            return [json.loads(row[0]) for row in db.execute(query, (tenant,))]


@asynccontextmanager
async def two_cells(tmp_path):
    """`eu-fr`, where acme is at home, and `eu-de`, which may serve it too and asks over a wire. Both run."""
    fr, de = Cell(tmp_path, "eu-fr"), Cell(tmp_path, "eu-de")
    domicile("init", "--cell", "eu-fr", "--data", fr.data, "--export-keys", tmp_path / "keys")
    domicile("init", "--cell", "eu-de", "--data", de.data, "--pepper", tmp_path / "keys")
    lab = fr.control()
    lab.tenant("acme", OPEN_POLICY)
    lab.tenant("globex", OPEN_POLICY)
    domicile("cell", "create", "eu-de", "--verifier-key", de.vkey, "--data", fr.data)
    domicile("cell", "allow", "acme", "eu-de", "--data", fr.data)
    async with AsyncExitStack() as stack:
        for cell in (fr, de):
            cell.backend = await stack.enter_async_context(running(cell.backend))
            stack.push_async_callback(cell.kill)
        fr.serve("acme")
        fr.configure()
        await fr.up()
        wire = await stack.enter_async_context(Wire(fr.port).open())
        home = {"cell": "eu-fr", "url": f"http://127.0.0.1:{wire.port}", "verifier_key_file": str(fr.vkey)}
        de.configure(cells={"pull": [home], "every_s": 0.2})
        await de.up()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield fr, de, wire, lab, http


async def until(condition):
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.05)


async def watched(process, seen, stop):
    """Every address that the process has a connection to, into `seen`."""
    watched = psutil.Process(process.pid)
    while not stop.is_set():
        for each in watched.net_connections(kind="inet"):
            if each.raddr:
                seen.add((each.laddr.port, each.raddr.ip, each.raddr.port))
        await asyncio.sleep(0.005)


async def test_a_tenant_is_served_in_both_cells_and_nothing_but_configuration_goes_between_them(tmp_path):
    async with two_cells(tmp_path) as (fr, de, wire, lab, http):
        key = lab.key()

        async def taken_over():
            return (await de.ask(http, key))[1] != "invalid_api_key"

        await until(taken_over)
        assert await de.ask(http, key) == (404, "model_not_found"), "no backend of eu-fr is one of eu-de"
        de.serve("acme")

        async def served():
            return (await de.ask(http, key))[0] == 200

        await until(served)
        seen = {"eu-fr": set(), "eu-de": set()}
        stop = asyncio.Event()
        watching = [asyncio.create_task(watched(cell.process, seen[cell.name], stop)) for cell in (fr, de)]
        for _ in range(5):
            assert await fr.ask(http, key, CANARY) == (200, "said in eu-fr")
            assert await de.ask(http, key, CANARY) == (200, "said in eu-de")
        await asyncio.sleep(0.5)  # a pull or two
        stop.set()
        await asyncio.gather(*watching)

        def went_to(cell):
            """Where the cell's process connected to, by port; those that connected to it left out."""
            return {port for local, _, port in seen[cell.name] if local != cell.port}

        assert went_to(fr) == {int(fr.backend.url.rpartition(":")[2])}
        assert went_to(de) <= {int(de.backend.url.rpartition(":")[2]), wire.port}
        assert {address for cell in seen.values() for _, address, _ in cell} == {"127.0.0.1"}
        assert b"domicile pull v1" in wire.out and b"domicile bundle v1" in wire.back
        for secret in ("Xaver", "room 217", key, "said in", "globex"):
            assert secret.encode() not in wire.out + wire.back, secret
        answered = {cell.name: [e for e in cell.records() if e["type"] == "inference.completed"] for cell in (fr, de)}
        assert len(answered["eu-fr"]) == 5 and len(answered["eu-de"]) >= 6
        assert not {e["request_id"] for e in answered["eu-fr"]} & {e["request_id"] for e in answered["eu-de"]}
        assert "admin.bundle.applied" in [e["type"] for e in de.records()]


async def test_one_cell_down_does_not_stop_the_other_and_what_happened_meanwhile_follows(tmp_path):
    async with two_cells(tmp_path) as (fr, de, wire, lab, http):
        key = lab.key()
        de_is_told = lambda: _told(de)  # noqa: E731
        await until(de_is_told)
        de.serve("acme")

        async def served():
            return (await de.ask(http, key))[0] == 200

        await until(served)
        fr.process.send_signal(signal.SIGKILL)
        await fr.process.wait()
        for _ in range(3):
            assert await de.ask(http, key) == (200, "said in eu-de")
            await asyncio.sleep(0.2)
        await de.kill()
        await de.up()
        assert (await de.ask(http, key))[0] == 200, "nor does it need the other to start"
        said = lambda: de.log.read_text().count("cannot be asked")  # noqa: E731

        async def asked():
            return said() > 0

        await until(asked)
        await asyncio.sleep(1)  # several looks more
        assert said() == 1, "said once, not at each look"
        lab.control.revoke_key("acme", lab.control.create_key("acme", "main")[0].id)
        (mine,) = [each.id for each in _keys(lab) if each.revoked_at is None]
        lab.control.revoke_key("acme", mine)
        await fr.up()
        wire.to = fr.port

        async def revoked():
            return (await de.ask(http, key)) == (401, "revoked_api_key")

        await until(revoked)


async def _told(cell):
    return any(event["type"] == "admin.bundle.applied" for event in cell.records())


def _keys(lab):
    from gateway.store.reports.inventory import Inventory

    return Inventory(Installation.open(lab.data).database()).keys("acme")


async def test_a_bundle_may_be_carried(tmp_path):
    fr, de = Cell(tmp_path, "eu-fr"), Cell(tmp_path, "eu-de")
    domicile("init", "--cell", "eu-fr", "--data", fr.data, "--export-keys", tmp_path / "keys")
    domicile("init", "--cell", "eu-de", "--data", de.data, "--pepper", tmp_path / "keys")
    fr.control().tenant("acme", OPEN_POLICY)
    domicile("cell", "create", "eu-de", "--verifier-key", de.vkey, "--data", fr.data)
    domicile("cell", "allow", "acme", "eu-de", "--data", fr.data)
    file = tmp_path / "eu-de.bundle"
    said = json.loads(domicile("cell", "bundle", "eu-de", "-o", file, "--data", fr.data, "--json"))
    assert said["tenants"] == 1 and file.stat().st_mode & 0o777 == 0o600
    apply = ("cell", "apply", file, "--from", "eu-fr", "--verifier-key", fr.vkey, "--data", de.data)
    assert "1 tenants changed: acme" in domicile(*apply)
    assert "Nothing changed" in domicile(*apply)
    listed = json.loads(domicile("cell", "list", "--data", de.data, "--json"))
    assert listed["cell"] == "eu-de" and listed["taken"][0]["tenants"] == ["acme"]
    assert "home cell 'eu-fr'" in domicile("key", "create", "acme", "main", "--data", de.data, code=1)
    shutil.copy(file, tmp_path / "changed")
    (tmp_path / "changed").write_bytes(file.read_bytes().replace(b'"acme"', b'"evil"'))
    apply = ("cell", "apply", tmp_path / "changed", "--from", "eu-fr", "--verifier-key", fr.vkey, "--data", de.data)
    assert "not what was signed" in domicile(*apply, code=1)
    domicile("cell", "forbid", "acme", "eu-de", "--yes", "--data", fr.data)
    domicile("cell", "bundle", "eu-de", "-o", file, "--data", fr.data)
    apply = ("cell", "apply", file, "--from", "eu-fr", "--verifier-key", fr.vkey, "--data", de.data)
    assert "1 tenants changed: acme" in domicile(*apply)


@pytest.fixture
async def home(tmp_path):
    """The answering part of cell eu-fr, on loopback; eu-de is its peer."""
    import uvicorn

    cells = {name: Cell(tmp_path, name) for name in ("eu-fr", "eu-de", "eu-at")}
    for name, cell in cells.items():
        domicile("init", "--cell", name, "--data", cell.data)
    domicile("cell", "create", "eu-de", "--verifier-key", cells["eu-de"].vkey, "--data", cells["eu-fr"].data)
    installation = Installation.open(cells["eu-fr"].data)
    database = installation.database()
    served = build_cells(database, "eu-fr", installation.signer(), now=lambda: 1e9)
    config = uvicorn.Config(served, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as http:

        async def post(data):
            async with http.post(f"http://127.0.0.1:{port}{PATH.removeprefix('/cells')}", data=data) as answer:
                return answer.status, await answer.read()

        yield post, {name: Installation.open(cell.data).signer() for name, cell in cells.items()}
    server.should_exit = True
    await task
    database.close()


async def test_only_a_peer_gets_an_answer_and_a_stranger_learns_nothing(home):
    post, signers = home
    status, bundle = await post(ask("eu-de", "eu-fr", 1e9, signers["eu-de"]))
    assert status == 200 and json.loads(bundle)["content"]["peer"] == "eu-de"
    for question in (
        ask("eu-at", "eu-fr", 1e9, signers["eu-at"]),  # nobody that is known
        ask("eu-de", "eu-fr", 1e9 - 61, signers["eu-de"]),  # overheard
        ask("eu-de", "eu-at", 1e9, signers["eu-de"]),  # for another cell
        ask("eu-at", "eu-fr", 1e9, signers["eu-at"]).replace("eu-at", "eu-de"),
        "hello",
        "",
        b"\xff\xfe",
    ):
        assert await post(question) == (403, b""), question
    assert (await post(b"x" * 10_000))[0] == 413
