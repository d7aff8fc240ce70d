from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from gateway.configuration.bounds import Bounds
from gateway.errors import BackendUnavailable
from gateway.server import probe
from gateway.server.probe import BackendProbe, parse_report
from gateway.upstream.client import Target, Upstream
from regions.fleet.fleet import EngineReport, Fleet
from regions.fleet.health import MISSES, Prober
from tests.fakes.backend import FakeBackend, running
from tests.regions.fleet.test_fleet import backend

OURS = b"""# HELP domicile_backend_sequences_running Sequences in the running batch.
domicile_backend_sequences_running{gen_ai_request_model="m"} 3.0
domicile_backend_sequences_waiting{gen_ai_request_model="m"} 2.0
domicile_backend_kv_blocks_used{gen_ai_request_model="m"} 25.0
domicile_backend_kv_blocks{gen_ai_request_model="m"} 100.0
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
"""


def test_our_engine_and_vllm_tell_of_their_queue_and_cache():
    assert parse_report(OURS) == EngineReport(3, 2, 0.25)
    report = parse_report(VLLM)
    assert (report.running, report.waiting, round(report.kv_use, 2)) == (3, 4, 0.6)


def test_sglang_and_tgi_tell_by_names_of_their_own():
    sglang = b'sglang:num_running_reqs{m="x"} 2.0\nsglang:num_queue_reqs{m="x"} 1.0\nsglang:token_usage{m="x"} 0.4\n'
    assert parse_report(sglang) == EngineReport(2, 1, 0.4)
    assert parse_report(b"tgi_batch_current_size 3\ntgi_queue_size 5\n") == EngineReport(3, 5, 0.0)


@pytest.mark.parametrize(
    "text",
    [b"", b"<html>", b"vllm:num_requests_running 1", OURS.replace(b"3.0", b"-3"), OURS.replace(b"2.0", b"1e999"),
     OURS.replace(b"3.0", b"1.2.3"), b"\xff\xfe"],
)  # fmt: skip
def test_what_tells_of_no_queue_is_no_report(text):
    assert parse_report(text) is None


def test_without_a_word_on_the_cache_it_counts_as_empty():
    assert parse_report(VLLM.partition(b"vllm:kv")[0]) == EngineReport(3, 4, 0.0)


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
