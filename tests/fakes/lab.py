"""A whole gateway in a folder of its own: real store, real log, real server on loopback; only the engine is a fake."""

import asyncio
import io
import json
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from multidict import CIMultiDictProxy

from audit.keys.signer import FileSigner
from audit.storage.sqlite import SqliteReader
from audit.verification.verify import verify_log
from gateway.configuration.settings import load_settings
from gateway.database.epoch import read_epoch
from gateway.installation.installation import Installation
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving
from gateway.store.control.control import Control
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend, running

POLICY = """
policy: test-default
version: 1
residency: {process_in: EEA, store_in: EEA, operator: {head_office: EEA, ultimate_parent: EEA}}
redaction:
  input: {email: pseudonymise, iban: pseudonymise, card: mask, phone: pseudonymise, secret: block}
  output: {email: mask, iban: mask, card: mask, phone: mask}
retention: {metadata: 12mo, content: none}
transparency: {art50_notice: header}
"""
BY_THE_CLOCK = {"retention.run"}
OPEN_POLICY = "policy: open\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"


async def until(holds, within_s=60):
    """Wait until `holds()`: for what happens behind an answer, however long a busy machine takes for it."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


@dataclass
class Lab:
    data: Path
    control: Control
    keys: dict = field(default_factory=dict)
    backends: dict = field(default_factory=dict)
    base: str = ""
    gateway: object = None
    http: aiohttp.ClientSession | None = None

    def tenant(self, name, policy=POLICY, **project):
        self.control.create_tenant(name)
        if policy:
            self.control.activate_policy(name, policy)
        self.project(name, "main", **project)

    def project(self, tenant, name, policy=None, **project):
        defaults = {"purpose": "customer support", "legal_basis": "contract", "risk_class": "limited"}
        self.control.create_project(tenant, name, **{**defaults, **project})
        if policy:
            self.control.activate_policy(tenant, policy, project=name)
        _, key = self.control.create_key(tenant, name)
        self.keys[f"{tenant}/{name}"] = key.token

    def key(self, name="acme/main"):
        return self.keys[name]

    async def post(self, body, path="/v1/chat/completions", key="acme/main", headers=None, raw=None):
        sent = {"authorization": f"Bearer {self.keys.get(key, key)}", **(headers or {})}
        data = io.BytesIO(raw if raw is not None else json.dumps(body).encode())
        async with self.http.post(self.base + path, data=data, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path, key="acme/main"):
        async with self.http.get(
            self.base + path, headers={"authorization": f"Bearer {self.keys.get(key, key)}"}
        ) as got:
            return Answer(got.status, got.headers, await got.read())

    def events(self, tenant="acme"):
        """What is on record for `tenant`, in order."""
        with sqlite3.connect(self.data / "audit" / "log.db") as db:
            query = "select payload from leaf join tree on tree.id = leaf.tree where tenant = ? order by seq"
            rows = db.execute(query, (tenant,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def acts(self, tenant="acme"):
        """The same without what the gateway records by the clock: on a slow machine that comes behind a call."""
        return [event for event in self.events(tenant) if event["type"] not in BY_THE_CLOCK]

    def types(self, tenant="acme"):
        return [event["type"] for event in self.acts(tenant)]

    async def taken_over(self):
        """Once the gateway has read what the control store says at this moment."""
        with self.control._database.read() as session:
            epoch = read_epoch(session, "eu-1")
        async with asyncio.timeout(60):
            while self.gateway.directory.epoch < epoch:
                await asyncio.sleep(0.01)

    async def signed(self, tenant="acme"):
        """Once a checkpoint covers all that is on record for `tenant` at this moment."""
        size = len(self.events(tenant))
        reader = SqliteReader.open(self.data / "audit" / "log.db")
        try:
            await until(lambda: any(each.size >= size for each in reader.checkpoints(tenant)))
        finally:
            reader.close()

    def verify(self):
        folder = self.data / "audit"
        return verify_log(SqliteReader.open(folder / "log.db"), FileSigner.open(folder / "signer.key").verifier_key)


@dataclass
class Answer:
    status: int
    headers: CIMultiDictProxy
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def events(self):
        payloads = [block[6:] for block in self.body.decode().split("\n\n") if block.startswith("data: ")]
        return [p if p == "[DONE]" else json.loads(p) for p in payloads]

    @property
    def text(self):
        if self.headers["Content-Type"].startswith("application/json"):
            choice = self.json["choices"][0]
            return choice["message"]["content"] if "message" in choice else choice["text"]
        said = (e["choices"][0] for e in self.events if isinstance(e, dict) and e.get("choices"))
        return "".join((c["delta"].get("content") if "delta" in c else c["text"]) or "" for c in said)


def chat(content, **more):
    return {"model": "small", "messages": [{"role": "user", "content": content}], **more}


def open_control(data, on_event=lambda event: None, secrets=None):
    """`secrets`: the section of the settings, where it is not that of the environment."""
    installation = Installation.create(data, "eu-1")
    if secrets is not None:
        installation = Installation.open(data, secrets)
    return installation.control(installation.database(), actor="cli", on_event=on_event)


@asynccontextmanager
async def lab(tmp_path, *, set_up=None, backends=None, **settings):
    """Backends: a mapping of "tenant/region/id" to FakeBackend; by default acme has one in eu-fr-par."""
    data = tmp_path / "data"
    secrets = load_settings(data=data, secrets=settings["secrets"]).secrets if "secrets" in settings else None
    built = Lab(data, open_control(data, secrets=secrets))
    backends = {"acme/eu-fr-par/acme-1": FakeBackend()} if backends is None else backends
    (set_up or (lambda made: made.tenant("acme")))(built)
    async with AsyncExitStack() as stack:
        stack.callback(built.control._database.close)
        for place, backend in backends.items():
            tenant, region, name = place.split("/")
            built.backends[name] = await stack.enter_async_context(running(backend))
            identity = BackendIdentity("eu-1", tenant, region, name)
            built.control.register_backend(identity, url=backend.url, models=[backend.model])
        config = load_settings(data=data, node="lab", audit={"reserve_bytes": 1 << 20}, **settings)
        built.gateway = await stack.enter_async_context(open_gateway(config))
        port = await stack.enter_async_context(serving(built.gateway.app, config.listen.model_copy(update={"port": 0})))
        built.base = f"http://127.0.0.1:{port}"
        built.http = await stack.enter_async_context(aiohttp.ClientSession())
        yield built
    await asyncio.sleep(0)
