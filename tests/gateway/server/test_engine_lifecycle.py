import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Requests
from gateway.request.routes import Routes
from gateway.server.engine_lifecycle import WITH_PROCESS, EngineLifecycle
from gateway.upstream.client import Upstream
from regions.fleet.fleet import Backend, Fleet
from regions.identity.identity import BackendIdentity


@asynccontextmanager
async def sleeper(answer):
    """A backend that is asked to sleep; yields what it was asked with, and it."""
    asked = []

    async def sleep(request):
        asked.append(await request.json() if request.can_read_body else None)
        return answer()

    app = web.Application()
    app.router.add_post("/sleep", sleep)
    app.router.add_post("/wake", sleep)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    uri = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1").uri
    yield (
        asked,
        Backend(
            id="acme-1", tenant="acme", region="eu-fr-par", url=f"http://127.0.0.1:{port}", uri=uri, models=("small",)
        ),
    )
    await runner.cleanup()


async def asked_to(what, backend):
    async with Upstream(Bounds()) as upstream:
        return await getattr(
            EngineLifecycle(upstream, Routes(Fleet(), None, None, Bounds(Requests(max_attempts=1)))), what
        )(backend)


async def test_an_engine_that_sleeps_has_wiped_its_cache_and_says_how_much():
    async with sleeper(lambda: web.json_response({"status": "asleep", "seconds": 0.1, "released_bytes": 7})) as (
        asked,
        backend,
    ):
        assert (
            await asked_to("sleep", backend)
            == await asked_to("release", backend)
            == {"cache": "zeroed", "released_bytes": "7"}
        )
        assert asked == [{"grace_s": 30}] * 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.json_response({"status": "falling_asleep", "released_bytes": 7}),
        lambda: web.json_response({"status": "asleep", "released_bytes": -1}),
        lambda: web.json_response({"status": "asleep"}),
        lambda: web.Response(text="asleep"),
        lambda: web.Response(status=404),
        lambda: web.Response(status=500),
    ],
)
async def test_without_that_proof_the_record_does_not_claim_it(answer):
    async with sleeper(answer) as (_, backend):
        assert await asked_to("release", backend) == WITH_PROCESS
        assert await asked_to("sleep", backend) is None


@pytest.mark.parametrize(
    ("answer", "woken"),
    [
        (lambda: web.json_response({"status": "ready", "seconds": 0.2}), True),
        (lambda: web.json_response({"status": "asleep"}), False),
        (lambda: web.Response(status=404), False),
        (lambda: web.Response(text="ready"), False),
    ],
)
async def test_it_is_awake_when_it_says_so(answer, woken):
    async with sleeper(answer) as (_, backend):
        assert await asked_to("wake", backend) is woken


async def test_one_that_is_gone_ended_with_its_process():
    async with sleeper(lambda: None) as (_, backend):
        pass
    await asyncio.sleep(0)
    assert await asked_to("release", backend) == WITH_PROCESS
