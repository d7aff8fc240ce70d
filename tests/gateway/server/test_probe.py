from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from gateway.configuration.bounds import Bounds
from gateway.errors import BackendUnavailable
from gateway.server import probe
from gateway.server.probe import BackendProbe
from gateway.upstream.client import Target, Upstream
from regions.fleet.fleet import Fleet
from regions.fleet.health import MISSES, Prober
from tests.fakes.backend import FakeBackend, running
from tests.regions.fleet.test_fleet import backend


@asynccontextmanager
async def probing(url):
    one = backend()
    fleet = Fleet([one])
    async with Upstream(Bounds()) as upstream:
        routes = SimpleNamespace(target=lambda _: Target("acme-1", url, None))
        yield one, fleet, BackendProbe(upstream, routes, fleet)


async def test_a_backend_that_answers_says_whether_it_is_ready():
    async with running(FakeBackend()) as server, probing(server.url) as (one, _, ask):
        assert await ask(one) is True
        server.ready = False
        assert await ask(one) is False


async def test_no_answer_is_not_taken_for_one_that_says_it_is_not_ready(monkeypatch):
    """A probe that is missed now and then must not put out a tenant's only backend."""
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.05)
    async with running(FakeBackend()) as server, probing(server.url) as (one, fleet, ask):
        prober = Prober(fleet, ask)
        await prober.sweep()  # it has answered
        server.hangs_s = 0.5
        with pytest.raises(TimeoutError):
            await ask(one)
        for missed in range(MISSES):
            assert fleet.live()["acme-1"].available, missed
            await prober.sweep()
        assert not fleet.live()["acme-1"].available


async def test_a_refused_connection_is_no_answer():
    async with probing("http://127.0.0.1:9") as (one, _, ask):
        with pytest.raises(BackendUnavailable):
            await ask(one)
