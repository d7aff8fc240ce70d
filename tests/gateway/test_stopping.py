"""A gateway that is told to stop while outside parties accept connections and never answer.

The process is the command as an operator runs it. Its parties hang at the moment of the signal, with calls to each
under way. It must end by itself within the time that service managers give it, with nothing lost: what was answered is
on record, what was running is closed, and the record verifies.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import yaml
from cryptography.hazmat.primitives.serialization import Encoding

from audit.storage.sqlite import SqliteReader
from audit.verification.verify import verify_log
from gateway.configuration.settings import load_settings
from gateway.installation.installation import Installation
from gateway.server.serve import CUT_S, GRACE_S
from regions.identity.identity import BackendIdentity
from tests.conftest import CAMPAIGN
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import POLICY, Lab, chat, open_control, until
from tests.fakes.tsa import FakeTsa
from tests.fakes.vault import TOKEN, running_vault
from tests.gateway.nursery import listening
from tests.gateway.test_keeping import KEEPING

STOPS_WITHIN_S = 45
"""What deploy/systemd/domicile.service and deploy/kubernetes give a gateway before they kill it."""
UP_WITH_GRACE = (
    "import gateway.server.serve as serve, gateway.cli.app as cli, sys; "
    "serve.GRACE_S = int(sys.argv.pop(1)); cli.main()"
)
"""``domicile``, with the seconds that running answers get before they are cut in front of its words."""


class Party:
    """Accepts every connection and reads what comes. It relays to `to` until it `hangs`; then it says nothing.
    `asked`: what it read."""

    def __init__(self, to=None):
        self._to, self.hangs, self.asked, self._tasks = to and urlsplit(to), to is None, [], set()

    def _taken(self, reader, writer):
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader, writer):
        try:
            if self._to is None:
                while data := await reader.read(65536):
                    self.asked.append(data)
                return
            there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
            await asyncio.gather(self._relay(reader, back, self.asked), self._relay(there, writer, []))
        finally:
            writer.transport.abort()

    async def _relay(self, reader, writer, heard):
        try:
            while data := await reader.read(65536):
                heard.append(data)
                while self.hangs:
                    await asyncio.sleep(0.05)
                writer.write(data)
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self):
        server = await asyncio.start_server(self._taken, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def gateway(made, tmp_path, grace_s=GRACE_S, **settings):
    """``domicile up``; yields the process and its address."""
    log, config = tmp_path / "up.log", tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"listen": {"port": 0}, "node": "gw-1", **settings}))
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            UP_WITH_GRACE,
            str(grace_s),
            "up",
            "-c",
            str(config),
            "--data",
            str(made.data),
            stderr=err,
        )
    try:
        yield process, await listening(log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = log.read_text()
    assert "Traceback" not in said, said


@asynccontextmanager
async def installation(tmp_path, policy=POLICY, secrets=None, **backend):
    """A data folder with tenant acme and a backend, whose address is that of a party in between."""
    control = await asyncio.to_thread(open_control, tmp_path / "data", secrets=secrets)
    made = Lab(tmp_path / "data", control)
    await asyncio.to_thread(made.tenant, "acme", policy)
    async with running(FakeBackend(**backend)) as fake, Party(fake.url).listening() as road:
        made.backends["acme-1"] = fake
        identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
        made.control.register_backend(identity, url=road.url, models=[fake.model])
        yield made, road


async def ended(process):
    return await asyncio.wait_for(process.wait(), STOPS_WITHIN_S)


def outcomes(made):
    """By request id, in order of the record."""
    kept = {}
    for event in made.events():
        if event["type"].startswith("inference."):
            kept.setdefault(event["request_id"], []).append((event["type"], event.get("reason")))
    return kept


def findings(made, signer):
    reader = SqliteReader.open(made.data / "audit" / "log.db")
    try:
        return list(verify_log(reader, signer.verifier_key).findings)
    finally:
        reader.close()


COMPLETED = [("inference.accepted", None), ("inference.completed", None)]


async def test_with_every_outside_service_hanging_a_gateway_stops_by_itself_and_loses_nothing(tmp_path):
    """The identity provider (logins and a machine's token under way), another cell, a time-stamping authority and a
    collector of spans; and a stream that runs on until after the signal."""
    async with installation(tmp_path, delay_s=0.5, pieces=6) as (made, _), Party().listening() as silent:
        authority = tmp_path / "tsa.pem"
        authority.write_bytes(FakeTsa().root.public_bytes(Encoding.PEM))
        vkey = tmp_path / "home.vkey"
        vkey.write_text(str(Installation.open(made.data).signer().verifier_key))
        oidc = {
            "issuer": silent.url, "client_id": "domicile", "redirect_uri": "http://127.0.0.1:1/admin/v1/callback",
            "audience": "api", "projects": [{"group": "apps", "tenant": "acme", "project": "main"}],
        }  # fmt: skip
        settings = {
            "oidc": oidc,
            "cells": {"pull": [{"cell": "eu-2", "url": silent.url, "verifier_key_file": str(vkey)}], "every_s": 0.1},
            "audit": {"timestamp_url": silent.url, "timestamp_ca": str(authority), "anchor_every_s": 1},
            "telemetry": {"otlp_endpoint": f"{silent.url}/v1/traces"},
        }
        async with gateway(made, tmp_path, **settings) as (process, base), aiohttp.ClientSession() as http:

            async def ask(url, **more):
                async with http.request("POST" if "json" in more else "GET", base + url, **more) as answer:
                    return answer.status, await answer.read()

            key = {"authorization": f"Bearer {made.key()}"}
            status, _ = await ask("/v1/chat/completions", json=chat("before"), headers=key)
            assert status == 200
            machine = {"authorization": "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.e30.c2ln"}
            hanging = [asyncio.create_task(ask("/admin/v1/login", allow_redirects=False)) for _ in range(12)]
            hanging += [asyncio.create_task(ask("/v1/models", headers=machine)) for _ in range(3)]
            stream = asyncio.create_task(ask("/v1/chat/completions", json=chat("hi", stream=True), headers=key))
            while len(made.backends["acme-1"].bodies) < 2:
                await asyncio.sleep(0.02)
            await until(lambda: b"/.well-known/openid-configuration" in {said.split()[1] for said in silent.asked})
            process.terminate()
            status, said = await stream
            assert (status, said.endswith(b"data: [DONE]\n\n")) == (200, True)
            assert await ended(process) == 0
            await asyncio.gather(*hanging, return_exceptions=True)
    assert list(outcomes(made).values()) == [COMPLETED, COMPLETED]
    assert made.events("_system")[-1]["type"] == "system.stop"
    assert made.verify().ok


async def test_with_its_vault_hanging_a_gateway_stops_by_itself_and_loses_nothing(tmp_path):
    """Vault holds the master key and signs the record: the last checkpoint is owed to a service that is silent."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with running_vault() as vault:
        async with Party(vault.url).listening() as road:
            secrets = {
                "provider": "vault",
                "vault": {"address": road.url, "token_file": str(token), "signing_key": "log", "timeout_s": 1},
            }
            known = await asyncio.to_thread(lambda: load_settings(data=tmp_path / "data", secrets=secrets).secrets)
            async with installation(tmp_path, KEEPING, known) as (made, _):
                async with (
                    gateway(made, tmp_path, secrets=secrets) as (process, base),
                    aiohttp.ClientSession() as http,
                ):

                    async def ask(said, subject, key="acme/main"):
                        headers = {"authorization": f"Bearer {made.key(key)}", "x-domicile-subject": subject}
                        async with http.post(f"{base}/v1/chat/completions", json=chat(said), headers=headers) as answer:
                            return answer.status

                    assert await ask("before", "anna") == 200
                    road.hangs = True
                    assert await ask("while it hangs", "anna") == 200
                    process.terminate()
                    assert await ended(process) == 0
                road.hangs = False
                opened = await asyncio.to_thread(Installation.open, made.data, known)
                signer = await asyncio.to_thread(opened.signer)
                assert list(outcomes(made).values()) == [COMPLETED, COMPLETED]
                assert made.events("_system")[-1]["type"] == "system.stop"
                assert {finding.check for finding in findings(made, signer)} == {"unsigned"}
                async with gateway(made, tmp_path, secrets=secrets) as (process, _):  # has them signed
                    process.terminate()
                    assert await ended(process) == 0
                assert findings(made, signer) == []


def test_what_service_managers_give_is_enough_for_running_answers_and_for_those_that_are_cut():
    assert GRACE_S + CUT_S < STOPS_WITHIN_S


async def test_with_its_backend_hanging_a_gateway_cuts_the_call_and_closes_it_on_record(tmp_path):
    async with (
        installation(tmp_path) as (made, road),
        gateway(made, tmp_path, grace_s=GRACE_S if CAMPAIGN else 1) as (process, base),
        aiohttp.ClientSession() as http,
    ):
        headers = {"authorization": f"Bearer {made.key()}"}
        road.hangs = True
        waiting = [
            asyncio.create_task(http.post(f"{base}/v1/chat/completions", json=chat("hi", stream=s), headers=headers))
            for s in (True, False)
        ]
        async with asyncio.timeout(20):
            while sum(b"POST" in said for said in road.asked) < 2:
                await asyncio.sleep(0.02)
        process.terminate()
        assert await ended(process) == 0
        answers = await asyncio.gather(*waiting)
        assert [answer.status for answer in answers] == [503, 503]
        assert {(await answer.json())["error"]["code"] for answer in answers} == {"gateway_stopped"}
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    cut = [("inference.accepted", None), ("inference.aborted", "gateway_stopped")]
    assert list(outcomes(made).values()) == [cut, cut]
    assert made.events("_system")[-1]["type"] == "system.stop"
    assert made.verify().ok
