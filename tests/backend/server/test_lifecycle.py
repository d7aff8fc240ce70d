"""A real backend is sent to sleep and woken over HTTP, in the middle of things and with nonsense."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend.answer.error_bodies import error_response
from backend.process.engine_client import EngineClient
from backend.server.lifecycle import Lifecycle, LifecycleState
from tests.backend.running import ROOT, Backend

ASK = {"model": "tiny", "prompt": "the sea", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
LONG = {**ASK, "max_tokens": 3000, "stream": True}


def start(folder: Path, log: Path, *options: str) -> Backend:
    return Backend(log, "--model", str(folder), "--served-name", "tiny", *options)


@pytest.fixture(scope="module")
def backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with start(folder, tmp_path_factory.mktemp("lifecycle") / "log") as running:
        yield running


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session
        await call(session, "POST", "/wake")


async def call(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
    async with http.request(method, path, **options) as answer:
        return answer.status, await answer.json()


async def test_it_sleeps_and_wakes_and_says_what_it_said(http: aiohttp.ClientSession) -> None:
    _, before = await call(http, "POST", "/v1/completions", json=ASK)
    status, slept = await call(http, "POST", "/sleep")
    assert (status, slept["status"]) == (200, "asleep")
    assert slept["released_bytes"] > 1 << 20
    assert await call(http, "GET", "/readyz") == (503, {"status": "asleep"})
    async with http.get("/metrics") as metrics:
        assert "domicile_backend_asleep 1.0" in await metrics.text()
    status, refused = await call(http, "POST", "/v1/completions", json=ASK)
    assert (status, refused["error"]["code"]) == (503, "backend_asleep")
    async with http.post("/v1/completions", json=ASK) as answer:
        assert int(answer.headers["retry-after"]) > 0
    assert (await call(http, "GET", "/healthz"))[0] == 200
    status, woken = await call(http, "POST", "/wake")
    assert (status, woken["status"]) == (200, "ready")
    assert await call(http, "GET", "/readyz") == (200, {"status": "ready"})
    _, after = await call(http, "POST", "/v1/completions", json=ASK)
    assert after["choices"] == before["choices"]
    async with http.get("/metrics") as metrics:
        assert "domicile_backend_asleep 0.0" in await metrics.text()


async def until(http: aiohttp.ClientSession, status: str) -> None:
    """Wait until readiness shows `status`, or the code of an error."""
    async with asyncio.timeout(30):
        while True:
            _, said = await call(http, "GET", "/readyz")
            if status in (said.get("status"), said.get("error", {}).get("code")):
                return
            await asyncio.sleep(0.01)


async def test_both_may_be_asked_for_twice(http: aiohttp.ClientSession) -> None:
    assert (await call(http, "POST", "/wake"))[1]["seconds"] == 0
    first, second = await asyncio.gather(call(http, "POST", "/sleep"), call(http, "POST", "/sleep"))
    assert {first[0], second[0]} == {200}
    assert sorted([first[1]["released_bytes"] > 0, second[1]["released_bytes"] > 0]) == [False, True]
    assert {s for s, _ in await asyncio.gather(*(call(http, "POST", "/wake") for _ in range(3)))} == {200}
    assert (await call(http, "POST", "/v1/completions", json=ASK))[0] == 200


async def test_running_answers_end_before_it_sleeps_and_new_ones_are_refused(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json={**LONG, "max_tokens": 400}) as answer:
        await answer.content.readline()
        sleeping = asyncio.create_task(call(http, "POST", "/sleep", json={"grace_s": 30}))
        await until(http, "draining")
        assert (await call(http, "POST", "/v1/completions", json=ASK))[0] == 503
        assert (await answer.text()).rstrip().endswith("data: [DONE]")
        assert (await sleeping)[0] == 200


async def test_what_outlasts_the_grace_is_aborted_with_an_error(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json=LONG) as answer:
        await answer.content.readline()
        assert (await call(http, "POST", "/sleep", json={"grace_s": 0}))[0] == 200
        lines = [line for line in (await answer.text()).splitlines() if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "backend_asleep"
    assert (await call(http, "POST", "/wake"))[0] == 200
    assert (await call(http, "POST", "/v1/completions", json=ASK))[0] == 200


async def test_a_wake_that_comes_while_it_falls_asleep_has_the_last_word(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json={**LONG, "max_tokens": 300}) as answer:
        await answer.content.readline()
        sleeping = asyncio.create_task(call(http, "POST", "/sleep"))
        await until(http, "draining")
        woken = await call(http, "POST", "/wake")
        assert (woken[0], (await sleeping)[0]) == (200, 200)
        await answer.read()
    assert (await call(http, "GET", "/readyz"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b'{"grace_s": -1}', b'{"grace_s": "30"}', b'{"grace_s": 3601}', b'{"grace": 1}', b'{"grace_s": NaN}',
     b" " * 2000, b"\xff"],
    ids=str,
)  # fmt: skip
async def test_nonsense_is_refused_and_nobody_sleeps(http: aiohttp.ClientSession, body: bytes) -> None:
    status, answer = await call(http, "POST", "/sleep", data=body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert (await call(http, "GET", "/readyz"))[0] == 200


@pytest.mark.parametrize("path", ["/sleep", "/wake"])
async def test_only_a_post_does_it(http: aiohttp.ClientSession, path: str) -> None:
    assert (await call(http, "GET", path))[0] == 405
    assert (await call(http, "GET", "/readyz"))[0] == 200


async def test_a_backend_that_cannot_wake_says_why_stays_asleep_and_can_later(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "model")
    with start(moved, tmp_path / "log") as backend:
        async with aiohttp.ClientSession(backend.url) as http:
            assert (await call(http, "POST", "/sleep"))[0] == 200
            (moved / "model.safetensors").rename(tmp_path / "away")
            status, refused = await call(http, "POST", "/wake")
            assert (status, refused["error"]["code"]) == (503, "cannot_wake")
            assert (await call(http, "GET", "/readyz"))[1]["status"] == "asleep"
            (tmp_path / "away").rename(moved / "model.safetensors")
            assert (await call(http, "POST", "/wake"))[0] == 200
            assert (await call(http, "POST", "/v1/completions", json=ASK))[0] == 200


async def test_an_engine_that_dies_asleep_is_dead_and_not_asleep(folder: Path, tmp_path: Path) -> None:
    with start(folder, tmp_path / "log") as backend:
        async with aiohttp.ClientSession(backend.url) as http:
            assert (await call(http, "POST", "/sleep"))[0] == 200
            backend.engine.kill()
            await until(http, "engine_unavailable")
            for method, path in (("GET", "/readyz"), ("POST", "/wake"), ("POST", "/sleep")):
                status, answer = await call(http, method, path)
                assert (status, answer["error"]["code"]) == (503, "engine_unavailable")


def test_while_it_loads_readiness_says_how_far_it_is(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "backend", "serve", "--model", str(folder), "--served-name", "tiny", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=(log := (tmp_path / "log").open("w+b")),
    )
    try:
        port = None
        seen = set()
        until = time.monotonic() + 30
        while time.monotonic() < until and "ready" not in seen:
            found = re.search(r"reach 127.0.0.1:(\d+)", (tmp_path / "log").read_text())
            port = port or (found and found[1])
            if port:
                with contextlib.suppress(OSError):
                    seen.add(_status(f"http://127.0.0.1:{port}/readyz"))
            time.sleep(0.02)
        assert {"loading", "ready"} <= seen
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
        log.close()


def _status(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(json.load(answer)["status"])
    except urllib.error.HTTPError as refused:
        with refused:
            return str(json.load(refused)["status"])


def test_a_stop_signal_while_it_loads_ends_it(folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "backend", "serve", "--model", str(folder), "--port", "0"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        until = time.monotonic() + 20
        while "reach 127.0.0.1" not in (tmp_path / "log").read_text() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def test_before_the_engine_has_started_the_state_is_loading(folder: Path) -> None:
    from backend.engine_config import EngineConfig

    assert Lifecycle(EngineClient(EngineConfig(model=str(folder))), error_response).state is LifecycleState.LOADING
