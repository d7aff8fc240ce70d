"""From nothing to an answer with real processes: the gateway's own launcher, certificates, tokens and engine."""

import asyncio
import json
import ssl

import aiohttp
import psutil
from typer.testing import CliRunner

from gateway.cli import app
from regions.deployment import Deployment
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import OPEN_POLICY, chat, lab


def backends_of(data):
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(data) in " ".join(process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE
    ]


async def call_without_token(data, url):
    """With the gateway's own certificate: mutual TLS lets it in."""
    context = ssl.create_default_context(cafile=data / "ca" / "ca.pem")
    context.check_hostname = False
    context.load_cert_chain(data / "gateway" / "acme" / "cert.pem", data / "gateway" / "acme" / "key.pem")
    async with aiohttp.ClientSession() as http:
        body = {**chat("hi"), "max_tokens": 1}
        async with http.post(f"{url}/v1/chat/completions", json=body, ssl=context) as answer:
            return answer.status, await answer.json()


async def test_a_sleeping_model_answers_its_second_lock_holds_and_nothing_is_left(tmp_path):
    models = tmp_path / "models"
    write_folder(models / "tiny", tiny_model())
    wish = Deployment(
        tenant="acme", id="small", model="small", weights="tiny", regions=("eu-fr-par",), idle_s=3600, wait_s=200,
        micro_eur_per_hour=2_500_000,
    )  # fmt: skip

    def set_up(made):
        made.tenant("acme", OPEN_POLICY + "retention: {metadata: 12mo, content: 'encrypted, 30d'}\n")
        made.control.create_deployment(wish)

    async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
        assert backends_of(made.data) == []
        first = await made.post(chat("hi", stream=True, max_tokens=4))
        assert (first.status, first.events[-1]) == (200, "[DONE]")
        second = await made.post(chat("hi", max_tokens=4, seed=1))
        assert second.status == 200
        name = second.headers["x-domicile-backend"]
        (log,) = (made.data / "backends").glob("*/backend.log")
        assert log.parent.name == name
        assert log.stat().st_mode & 0o077 == 0
        ready = next(json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"event"'))
        status, said = await call_without_token(made.data, f"https://127.0.0.1:{ready['port']}")
        assert (status, said["error"]["code"]) == (401, "request_token")
        connected = next(event for event in made.events() if event["type"] == "routing.connected")
        assert connected["peer_uri"] == f"spiffe://domicile.eu-1/tenant/acme/region/eu-fr-par/backend/{name}"
        line = ["backend", "replay", "acme", second.headers["x-request-id"], "--data", str(made.data)]
        replayed = await asyncio.to_thread(CliRunner().invoke, app, line)  # over its TLS, with a token of its own
        assert (replayed.exit_code, f"equal: {name}" in replayed.output) == (0, True), replayed.output
        psutil.Process(ready["pid"]).kill()
        await asyncio.sleep(1.5)
        third = await made.post(chat("hi", max_tokens=4))
        assert third.status == 200
        assert third.headers["x-domicile-backend"] != name
    assert backends_of(made.data) == []
    told = [event["type"] for event in made.events() if event["type"].startswith("admin.replica.")]
    assert told == [
        "admin.replica.starting", "admin.replica.ready", "admin.replica.failed",
        "admin.replica.starting", "admin.replica.ready", "admin.replica.stopped",
    ]  # fmt: skip
