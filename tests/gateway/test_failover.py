"""A backend that fails, in each way that backends do: what the client sees, what goes on record, what is billed."""

import asyncio
import random
import ssl
import time
from datetime import timedelta

import aiohttp
import pytest
from aiohttp import web

from audit.log.receipt import Receipt
from backend.server.tls import TlsFiles, reload_when_renewed, server_context
from gateway.configuration.bounds import Bounds
from gateway.installation.installation import Installation
from gateway.server import fleet as fleet_room
from gateway.store.reports.usage_report import usage
from gateway.upstream.client import Target, Upstream
from gateway.upstream.credentials import TenantCredentials
from regions.fleet.deployment import Deployment
from regions.fleet.fleet import Backend
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import BackendIdentity, GatewayIdentity
from tests.conftest import how_many, seed_of
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, chat, lab
from tests.fakes.launcher import FakeLauncher

GARBAGE = "nonsense"
TWO = ("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2")


def two(first, second=None):
    return dict(zip(TWO, (first, second or FakeBackend()), strict=True))


OVER = ("inference.completed", "inference.aborted")


def outcomes(made):
    return [event for event in made.events() if event["type"] in OVER]


async def ask_until(made, broken, stream):
    """Ask until the broken backend was tried: which of the two comes first is not ours to say."""
    for number in range(20):
        answer = await made.post(chat(f"question {number}", stream=stream))
        if broken.bodies:
            return answer
    raise AssertionError("the broken backend was never tried")


@pytest.mark.parametrize("stream", [False, True])
async def test_busy_or_out_of_memory_before_the_first_byte_another_answers(tmp_path, stream):
    """An engine that runs out of memory while it starts a call answers 503, as one that is full does."""
    broken = FakeBackend(status=503, error={"message": "the engine is out of memory", "type": "server_error"})
    async with lab(tmp_path, backends=two(broken)) as made:
        answer = await ask_until(made, broken, stream)
        assert (answer.status, answer.text) == (200, "The capital is Paris.")
        moved = [event for event in made.events() if event["type"] == "routing.decision"]
        assert made.types().count("inference.accepted") == len(outcomes(made))
        assert {event["type"] for event in outcomes(made)} == {"inference.completed"}
        assert [event["fallback_index"] for event in moved] == [1] * len(broken.bodies)


async def test_dying_inside_a_stream_ends_it_with_an_error_and_no_text_comes_twice(tmp_path):
    broken = FakeBackend(say="one two three four five six", pieces=6, die_after=3)
    async with lab(tmp_path, backends=two(broken)) as made:
        answer = await ask_until(made, broken, True)
        assert answer.events[-1]["error"]["code"] in ("backend_error", "stream_truncated")
        assert "one two three four five six".startswith(answer.text)
        aborted = outcomes(made)[-1]
        assert (aborted["type"], aborted["tokens_estimated"]) == ("inference.aborted", True)


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ({"status": 500, "error": {"message": "CUDA error: out of memory"}}, 502, "backend_error"),
        ({"fail_inside": True, "die_after": 2}, 502, "backend_error"),
        ({"delay_s": 30.0}, 504, "backend_timeout"),
    ],
    ids=["answers 500", "fails inside", "hangs"],
)
async def test_what_may_have_begun_is_not_asked_twice(tmp_path, how, status, code):
    async with lab(tmp_path, backends={TWO[0]: FakeBackend(**how)}, requests={"silence_timeout_s": 0.5}) as made:
        answer = await made.post(chat("hi", stream="fail_inside" in how))
        if "fail_inside" in how:
            assert answer.events[-1]["error"]["code"] == code
        else:
            assert (answer.status, answer.error["code"]) == (status, code)
        assert len(made.backends["acme-1"].bodies) == 1
        (only,) = outcomes(made)
        assert (only["type"], only["reason"]) == ("inference.aborted", code)


async def test_garbage_is_not_passed_on(tmp_path):
    class Babbler(FakeBackend):
        async def generate(self, request):
            self.bodies.append(await request.json())
            return web.Response(text=GARBAGE, content_type="application/json")

    async with lab(tmp_path, backends={TWO[0]: Babbler()}) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (502, "backend_error")
        assert GARBAGE not in answer.body.decode()
        assert outcomes(made)[-1]["reason"] == "backend_error"


async def test_a_server_that_is_not_who_it_must_be_gets_nothing(tmp_path):
    broken = FakeBackend()
    async with lab(tmp_path, backends={TWO[0]: broken}) as made:
        identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
        made.control.register_backend(identity, url=broken.url.replace("http:", "https:"), models=["small"])
        await made.taken_over()
        answer = await made.post(chat("hi"))
        assert answer.status == 503
        assert broken.bodies == []
        assert outcomes(made)[-1]["type"] == "inference.aborted"
        assert outcomes(made)[-1].get("tokens_out") is None


async def test_another_s_backend_on_the_port_of_one_that_is_gone_gets_nothing(tmp_path):
    """Ports are given again: a stale address must not lead a prompt to the next tenant."""
    async with lab(tmp_path) as made:
        authority = Installation.open(made.data).authority()
        stranger = BackendIdentity("eu-1", "globex", "eu-fr-par", "globex-1")
        files = authority.issue(stranger, tmp_path / "globex")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # of the same cell; and it would let in anybody
        context.load_cert_chain(files.certificate, files.key)
        heard = FakeBackend()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", heard.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        url = f"https://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        made.control.register_backend(BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1"), url=url, models=["small"])
        await made.taken_over()
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (503, "backend_identity")
        assert heard.bodies == []
        assert outcomes(made)[-1]["type"] == "inference.aborted"
        assert outcomes(made)[-1].get("tokens_out") is None
        await runner.cleanup()


async def test_one_that_keeps_failing_is_left_alone_and_one_that_recovers_is_asked_again(tmp_path):
    broken = FakeBackend(status=503, error={"message": "no", "type": "server_error"})
    async with lab(tmp_path, backends=two(broken)) as made:
        began = time.monotonic()
        for number in range(40):
            assert (await made.post(chat(f"question {number}"))).status == 200
        tried = len(broken.bodies)
        assert tried <= 4 + (time.monotonic() - began) / 2, "three in a row, then one after each two seconds"
        broken.status = 200
        await asyncio.sleep(2.2)
        for number in range(40):
            assert (await made.post(chat(f"more {number}"))).status == 200
        assert len(broken.bodies) > tried + 3


async def test_certificates_of_both_ends_change_under_an_open_stream(tmp_path):
    """A stream goes on over the connection that it has; the next connection shows the new leaves, both ways."""
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    identity = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1")
    files = authority.issue(identity, tmp_path / "backend", lifetime=timedelta(hours=1))
    peer = GatewayIdentity("demo", "acme").uri
    tls = TlsFiles(cert=files.certificate, key=files.key, ca=files.root, peer_uri=peer)
    context = server_context(tls)
    shown = []

    async def stream(request):
        shown.append(request.transport.get_extra_info("ssl_object").getpeercert()["serialNumber"])
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(20):
            await response.write(b"%d " % number)
            await asyncio.sleep(0.03)
        return response

    app = web.Application()
    app.router.add_post("/v1/x", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    reloading = asyncio.create_task(reload_when_renewed(context, tls, every_s=0.02))
    backend = Backend(
        id="acme-1",
        tenant="acme",
        region="eu-fr-par",
        url=f"https://127.0.0.1:{port}",
        uri=identity.uri,
        models=("small",),
    )
    credentials = TenantCredentials(tmp_path / "gateway", "demo", authority.root_file, authority)
    seen = []

    async def connected(_backend, connection):
        seen.append(connection.certificate_sha256)

    async def read(upstream, target):
        async with upstream.call(target, "/v1/x", b"{}", "req-1") as answer:
            return await answer.body(1 << 20)

    async with Upstream(Bounds(), connected) as upstream:
        target = Target("acme-1", backend.url, lambda: credentials.context_for(backend), backend)
        first = asyncio.create_task(read(upstream, target))
        await asyncio.sleep(0.15)
        authority.issue(identity, tmp_path / "backend")
        authority.issue(GatewayIdentity("demo", "acme"), tmp_path / "gateway" / "acme")
        credentials.renew()
        await asyncio.sleep(0.1)
        second = await read(upstream, target)
        assert await first == second == b"".join(b"%d " % number for number in range(20))
    assert len(set(seen)) == 2
    assert len(set(shown)) == 2
    reloading.cancel()
    await runner.cleanup()


# --- rounds of kills, hangs and restarts -----------------------------------------------------------------------------

ROUNDS, CALLERS = how_many(20, 6), 8
SEED = 20261128
WISH = Deployment(
    tenant="acme",
    id="small",
    model="small",
    weights="m.gguf",
    regions=("eu-fr-par",),
    min_replicas=2,
    max_replicas=3,
    wait_s=20,
)


def long_answer(body):
    """What only this question gets, in words that can be told apart."""
    asked = body["messages"][-1]["content"]
    return " ".join(f"{asked}-{number}" for number in range(12))


class Talker(FakeBackend):
    hangs = False

    async def generate(self, request):
        while self.hangs:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.01)
        return await super().generate(request)


class TalkingLauncher(FakeLauncher):
    async def start(self, spec, **more):
        started = await super().start(spec, **more)
        fake = self.fakes[spec.identity.backend]
        fake.__class__ = Talker
        fake.say, fake.pieces = long_answer, 12
        return started


@pytest.mark.campaign
@pytest.mark.timeout(3600)
async def test_rounds_of_failure_under_load_lose_no_record_and_duplicate_no_text(
    tmp_path, monkeypatch, record_property
):
    seed = seed_of(SEED)
    record_property("examples", ROUNDS)
    record_property("seed", seed)
    print(f"seed {seed}")  # shown where it fails
    launcher = TalkingLauncher()

    def local(*_, on_change, **__):
        launcher.on_change = on_change
        return launcher

    def set_up(made):
        made.tenant("acme", OPEN_POLICY)
        made.control.create_deployment(WISH)

    monkeypatch.setattr(fleet_room, "LocalLauncher", local)
    monkeypatch.setattr("regions.fleet.back_off.FIRST_BACK_OFF_S", 0.1)
    monkeypatch.setattr("regions.fleet.back_off.LONGEST_BACK_OFF_S", 0.3)
    chance, promised, whole, refused = random.Random(seed), [], [], []

    async with lab(
        tmp_path, set_up=set_up, backends={}, fleet={"every_s": 0.1}, requests={"silence_timeout_s": 0.5}
    ) as made:

        async def ask_for_ever(caller):
            number = 0
            while True:
                number += 1
                asked = f"c{caller}q{number}"
                try:
                    answer = await made.post(chat(asked, stream=number % 2 == 0))
                except aiohttp.ClientError:
                    continue
                expected = long_answer({"messages": [{"content": asked}]})
                if answer.status != 200:
                    refused.append(answer.error["code"])
                    continue
                if receipt := answer.headers.get("x-domicile-receipt"):
                    promised.append((answer.headers["x-request-id"], Receipt.parse(receipt)))
                assert expected.startswith(answer.text), answer.text
                if number % 2 or answer.events[-1] == "[DONE]":
                    assert answer.text == expected
                    whole.append(answer.headers["x-request-id"])

        callers = [asyncio.create_task(ask_for_ever(caller)) for caller in range(CALLERS)]
        for _ in range(ROUNDS):
            before = len(whole)
            while len(launcher.running) < 2 or len(whole) < before + 10:
                assert not any(caller.done() for caller in callers), [c.exception() for c in callers if c.done()]
                await asyncio.sleep(0.02)
            victim = chance.choice(sorted(launcher.running))
            match chance.choice(["kill", "hang", "restart"]):
                case "kill":
                    await launcher.crash(victim)
                case "hang":
                    launcher.fakes[victim].hangs = True
                    await asyncio.sleep(0.8)
                    await launcher.crash(victim)
                case "restart":
                    await launcher.stop(victim)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        database = made.control._database
        async with asyncio.timeout(30):
            events = made.events()
            while True:  # those that were cut just now are closed in a moment, or even accepted only then
                await asyncio.sleep(0.6)
                before, events = len(events), made.events()
                accepted = sum(e["type"] == "inference.accepted" for e in events)
                if len(events) == before and accepted == sum(e["type"] in OVER for e in events):
                    break
        made.verify()
    intents = [event["request_id"] for event in events if event["type"] == "inference.accepted"]
    ended = [e["request_id"] for e in events if e["type"] in OVER]
    completed = {event["request_id"] for event in events if event["type"] == "inference.completed"}
    assert len(intents) == len(set(intents))
    assert sorted(ended) == sorted(intents)  # one outcome each
    assert completed >= set(whole)
    assert {request_id for request_id, _ in promised} <= set(intents)
    (line,) = usage(database, tenant="acme")
    assert line.requests == len(intents)
    assert line.tokens_out <= 5 * len(intents) + 12 * line.aborted
    assert set(refused) <= {
        "directory_unavailable",
        "backend_error",
        "backend_timeout",
        "backend_unavailable",
        "stream_truncated",
    }
    assert len(whole) > ROUNDS * 10
