"""A rank that dies or hangs ends the backend's engine at once, by its name, and a new engine takes over; all of it
through `domicile backend serve`."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.backend.process.test_supervision import ready, text_of
from tests.backend.running import ROOT, Backend
from tests.backend.tiny import tiny_model, write_folder

WITHIN_S = 10.0  # a rank that is lost is to be noticed
ASK = {"model": "tiny", "prompt": "the sea", "max_tokens": 3900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def divisible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(3, num_heads=8, num_kv_heads=4, head_dim=8)
    return write_folder(tmp_path_factory.mktemp("divisible") / "tiny", model)


@pytest.fixture(scope="module")
def backend(divisible: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    options = ["--model", str(divisible), "--served-name", "tiny", "--tensor-parallel-size", "2", "--restarts", "9"]
    with Backend(tmp_path_factory.mktemp("log") / "log", *options) as found:
        yield found


def rank_of(backend: Backend, number: int) -> psutil.Process:
    engine = backend.engine
    return engine if number == 0 else engine.children()[number - 1]


@asynccontextmanager
async def running(backend: Backend) -> AsyncIterator[tuple[aiohttp.ClientSession, aiohttp.ClientResponse]]:
    """A request whose answer has begun."""
    async with aiohttp.ClientSession(backend.url) as http:
        await ready(http)
        answer = await http.post("/v1/completions", json=ASK)
        await answer.content.readline()
        yield http, answer


@pytest.mark.parametrize(
    ("number", "way"), [(1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP)], ids=["dies", "hangs", "0 hangs"]
)
async def test_a_lost_rank_ends_the_engine_by_its_name_and_another_takes_over(
    backend: Backend, number: int, way: signal.Signals
) -> None:
    async with running(backend) as (http, answer):
        engine, lost, before = backend.engine, rank_of(backend, number), len(backend.log)
        lost.send_signal(way)
        async with asyncio.timeout(WITHIN_S):
            lines = [line async for line in answer.content if line.strip()]
        error = json.loads(lines[-1].removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_unavailable"
        said = f"rank {number} (process {lost.pid})"
        assert said in backend.log[before:]
        assert said in error["message"] or (number == 0 and "rank 0" in error["message"])
        await ready(http)
        assert await text_of(http) and backend.engine.pid != engine.pid
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in (engine, lost))


async def test_health_sleep_wake_and_scrub_speak_for_all_ranks(backend: Backend) -> None:
    async with aiohttp.ClientSession(backend.url) as http:
        await ready(http)
        expected = await text_of(http)
        async with http.post("/scrub") as answer:
            assert (await answer.json())["residue_bytes"] == 0
        async with http.post("/sleep") as answer:
            assert answer.status == 200, await answer.text()
        async with http.post("/wake") as answer:
            assert answer.status == 200, await answer.text()
        assert await text_of(http) == expected


def test_what_cannot_be_divided_is_refused_with_the_numbers_that_would(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backend", "serve", "--model", str(folder), "--tensor-parallel-size", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error: 6 heads do not divide among 4 ranks; choose 1, 2 or 6 for --tensor-parallel-size" in done.stderr


async def test_a_backend_that_leaves_leaves_no_rank(backend: Backend) -> None:
    async with aiohttp.ClientSession(backend.url) as http:
        await ready(http)
    processes = [backend.engine, *backend.engine.children()]
    assert len(processes) == 2
    assert backend.stop() == 0
    gone, alive = psutil.wait_procs(processes, timeout=10)
    assert len(gone) == 2 and not alive
