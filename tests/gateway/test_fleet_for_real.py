"""From nothing to an answer with real processes: the gateway's own launcher, certificates, tokens and engine."""

import asyncio
import json
import ssl

import aiohttp
import psutil
import pytest
from typer.testing import CliRunner

from backend.wire import PING_PATH
from gateway.cli.app import app
from gateway.request import parking
from gateway.store.reports.cost_report import cost
from gateway.store.reports.fleet_inventory import replicas_of
from regions.fleet.deployment import Deployment
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import OPEN_POLICY, Lab, chat, lab, open_control
from tests.fakes.small_engines import small_engines
from tests.gateway.nursery import listening, nursery


@pytest.fixture(autouse=True)
def _with_a_small_cache():
    with small_engines():
        yield


def backends_of(data):
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{data}/backends/" in " ".join(process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE
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
        tenant="acme",
        id="small",
        model="small",
        weights="tiny",
        regions=("eu-fr-par",),
        idle_s=3600,
        wait_s=200,
        micro_eur_per_hour=2_500_000,
    )

    def set_up(made):
        made.tenant("acme", OPEN_POLICY + "retention: {metadata: 12mo, content: 'encrypted, 30d'}\n")
        made.control.create_deployment(wish)

    async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
        assert backends_of(made.data) == []
        first = await made.post(chat("hi", stream=True, max_tokens=4, temperature=0))
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


def tiny(tmp_path, **wish):
    """Settings of a lab whose deployment runs the tiny model, and what sets it up."""
    models = tmp_path / "models"
    write_folder(models / "tiny", tiny_model())
    wanted = Deployment(
        tenant="acme", id="small", model="small", weights="tiny", regions=("eu-fr-par",), wait_s=200, **wish
    )

    def set_up(made):
        made.tenant("acme", OPEN_POLICY)
        made.control.create_deployment(wanted)

    return {"set_up": set_up, "backends": {}, "fleet": {"models": str(models), "every_s": 0.1}}


async def state(made, wanted, within_s=60):
    """The one replica, once it is in the state `wanted`; ended ones count."""
    async with asyncio.timeout(within_s):
        while True:
            found = replicas_of(made.control._database, "acme", "small", ended=True).items
            if found and found[-1].state == wanted:
                assert len(found) == 1
                return found[0]
            await asyncio.sleep(0.05)


async def readiness(data, url):
    """What the engine says of itself, asked with the gateway's certificate."""
    context = ssl.create_default_context(cafile=data / "ca" / "ca.pem")
    context.check_hostname = False
    context.load_cert_chain(data / "gateway" / "acme" / "cert.pem", data / "gateway" / "acme" / "key.pem")
    async with aiohttp.ClientSession() as http, http.get(f"{url}{PING_PATH}", ssl=context) as answer:
        return answer.status, (await answer.json())["status"]


def port_of(data):
    (log,) = (data / "backends").glob("*/backend.log")
    return next(json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"event"'))["port"]


async def test_an_engine_sleeps_when_idle_wakes_for_a_call_and_ends_when_it_slept_long(tmp_path, monkeypatch):
    monkeypatch.setattr(parking, "COMMENT_S", 0.005)
    monkeypatch.setattr(parking, "LOOK_S", 0.02)
    monkeypatch.setattr("regions.fleet.reconciler.METER_EVERY_S", 0.5)
    async with lab(tmp_path, **tiny(tmp_path, idle_s=2, asleep_s=4, micro_eur_per_hour=2_500_000)) as made:
        first = await made.post(chat("hi", stream=True, max_tokens=4, temperature=0))
        assert (first.status, first.events[-1]) == (200, "[DONE]")
        name = (await state(made, "asleep")).id
        url = f"https://127.0.0.1:{port_of(made.data)}"
        assert await readiness(made.data, url) == (503, "asleep")
        second = await made.post(chat("hi", stream=True, max_tokens=4, temperature=0))
        assert (second.status, second.events[-1]) == (200, "[DONE]")
        assert b": waiting for a backend" in second.body, "the stream was kept alive while it woke"
        assert second.text == first.text
        assert f": x-domicile-backend: {name}".encode() in second.body
        assert await readiness(made.data, url) == (200, "ready")
        await state(made, "asleep")
        ended = await state(made, "stopped")
        assert backends_of(made.data) == []
        (line,) = cost(made.control._database, tenant="acme", by=("replica",))
        events = made.events()
        third = await made.post(chat("hi", max_tokens=4))  # it is gone for good: another is started
        assert (third.status, third.headers["x-domicile-backend"] != name) == (200, True)
    told = [event for event in events if event["type"].startswith("admin.replica.")]
    assert [event["type"].rpartition(".")[2] for event in told] == [
        "starting", "ready", "asleep", "ready", "asleep", "draining", "stopped"
    ]  # fmt: skip
    # From the first moment to the last, asleep or not, it is billed; at work it was for the least part of it.
    up_s = (ended.ended_at - ended.created_at).total_seconds()
    assert line.replica == name
    assert abs(line.up_seconds - up_s) < 0.5
    assert line.busy_seconds < line.up_seconds / 2
    assert line.requests == 2
    assert line.nano_eur == int(round(line.up_seconds * 1000) * 2_500_000 * 1000 // 3_600_000)


async def test_a_stream_that_runs_when_its_deployment_is_drained_is_answered_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.server.engine_lifecycle.ASKED", b'{"grace_s": 200.0}')  # however slow this machine is
    monkeypatch.setattr("gateway.server.engine_lifecycle.TIMEOUT_S", 230.0)
    async with lab(tmp_path, **tiny(tmp_path)) as made:
        assert (await made.post(chat("hi", max_tokens=1))).status == 200
        body = chat("hi", stream=True, max_tokens=400, temperature=0, ignore_eos=True)
        headers = {"authorization": f"Bearer {made.key()}"}
        async with made.http.post(f"{made.base}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.content.readany()
            made.control.drain_deployment("acme", "small")
            await state(made, "draining")
            async with asyncio.timeout(10):
                while (await made.post(chat("hi", max_tokens=1))).status != 404:
                    await asyncio.sleep(0.1)
            text = (await answer.read()).decode()
        assert text.endswith("data: [DONE]\n\n")
        assert text.count('"finish_reason":"length"') + text.count('"finish_reason": "length"') == 1
        await state(made, "stopped")
        assert backends_of(made.data) == []
        (stopped,) = [event for event in made.events() if event["type"] == "admin.replica.stopped"]
        assert stopped["detail"]["cache"] == "zeroed"


async def test_a_backend_that_hangs_is_drained_all_the_same_and_nothing_is_left_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.server.engine_lifecycle.TIMEOUT_S", 1.0)
    monkeypatch.setattr("gateway.server.fleet.GRACE_S", 1.0)
    async with lab(tmp_path, **tiny(tmp_path)) as made:
        assert (await made.post(chat("hi", max_tokens=1))).status == 200
        hung = backends_of(made.data)
        for process in hung:
            if (
                "backend" in process.cmdline()
                and "serve" in process.cmdline()
                and "leash.py" not in " ".join(process.cmdline())
            ):
                process.suspend()
        made.control.drain_deployment("acme", "small")
        await state(made, "stopped", within_s=20)
        assert backends_of(made.data) == []
        (stopped,) = [event for event in made.events() if event["type"] == "admin.replica.stopped"]
        assert stopped["detail"]["cache"] == "ended_with_process", "what it did not prove is not claimed"


async def test_a_gateway_that_is_killed_takes_its_backends_along_and_the_next_one_starts_others(tmp_path, monkeypatch):
    models = tiny(tmp_path)["fleet"]["models"]
    made = Lab(tmp_path / "data", open_control(tmp_path / "data"))
    tiny(tmp_path)["set_up"](made)
    monkeypatch.setenv("DOMICILE__FLEET__MODELS", models)
    headers = {"authorization": f"Bearer {made.key()}"}

    async def ask(base):
        body = chat("hi", max_tokens=4)
        url = f"{base}/v1/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
            return answer.status, answer.headers.get("x-domicile-backend")

    async with nursery(made.data) as gateways:
        first = await gateways.start("one", tmp_path / "first.log")
        status, name = await ask(await listening(tmp_path / "first.log"))
        assert status == 200
        old = backends_of(made.data)
        assert old
        await gateways.end(first, "KILL")
        second = await gateways.start("one", tmp_path / "second.log")
        status, other = await ask(await listening(tmp_path / "second.log"))  # it waits until the lease has run out
        assert (status, other != name) == (200, True)
        assert not [process for process in old if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert await gateways.end(second, "TERM") == 0
    assert backends_of(made.data) == []
    ended = {each.id: each.reason for each in replicas_of(made.control._database, "acme", "small", ended=True).items}
    assert ended == {name: "lost", other: "gateway_stopped"}
    made.control._database.close()
