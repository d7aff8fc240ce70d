"""The server outlives its engine: a new process takes over, until it is plain that none will do."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend.errors import EngineDead
from backend.process import supervision
from backend.process.supervision import supervise
from tests.backend.faults import armed, order
from tests.backend.running import Backend

ASK = {"model": "tiny", "prompt": "the sea", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


async def text_of(http: aiohttp.ClientSession, **changes: Any) -> str:
    async with http.post("/v1/completions", json={**ASK, **changes}) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["choices"][0]["text"])


async def ready(http: aiohttp.ClientSession, within: float = 60) -> set[str]:
    """Wait for readiness; what was said until then."""
    said: set[str] = set()
    until = time.monotonic() + within
    while time.monotonic() < until:
        async with http.get("/readyz") as answer:
            body = await answer.json()
            if answer.status == 200:
                return said
            said.add(body.get("status") or body["error"]["code"])
        await asyncio.sleep(0.02)
    raise AssertionError(f"not ready within {within} s, but {said}")


async def test_a_hung_step_costs_its_requests_and_no_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in armed(tmp_path / "faults").items():
        monkeypatch.setenv(name, value)
    options = ["--model", str(folder), "--served-name", "tiny", "--step-timeout", "1"]
    with Backend(tmp_path / "log", *options) as backend:
        async with aiohttp.ClientSession(backend.url) as http:
            expected = await text_of(http)
            engine = backend.engine
            answer = await http.post("/v1/completions", json={**ASK, "max_tokens": 3000, "stream": True})
            await answer.content.readline()
            order(tmp_path / "faults", "hang")
            lines = [line async for line in answer.content if line.strip()]
            assert json.loads(lines[-1].removeprefix(b"data: "))["error"]["code"] == "engine_unavailable"
            assert await ready(http) & {"engine_unavailable", "loading"}
            assert backend.engine.pid != engine.pid
            assert await text_of(http) == expected
            async with http.get("/metrics") as metrics:
                assert "domicile_backend_engine_up 1.0" in await metrics.text()
        assert backend.stop() == 0
        assert "the sea" not in backend.log  # the stack that a hang leaves holds no text


class Engine:
    """Dies as told. restart: raises what is next in `outcomes`, or lives for that many milliseconds."""

    def __init__(self, outcomes: list[int | Exception]) -> None:
        self.outcomes, self.restarts, self.resting = outcomes, 0, False
        self.died = asyncio.Event()
        self.died.set()

    async def restart(self, on_loading: object) -> Any:
        self.restarts += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.died.clear()
        asyncio.get_running_loop().call_later(outcome / 1000, self.died.set)

        class Ready:
            class stats:
                total_blocks = 1

        return Ready


async def watch(engine: Engine, restarts: int = 3) -> None:
    await asyncio.wait_for(supervise(engine, restarts), 5)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S", (0.0, 0.01))


async def test_after_so_many_restarts_it_stays_dead() -> None:
    engine = Engine([1] * 9)
    await watch(engine)
    assert engine.restarts == 3


async def test_a_restart_that_fails_counts_too() -> None:
    engine = Engine([EngineDead("no"), EngineDead("no"), 1, 1])
    await watch(engine)
    assert engine.restarts == 3


async def test_restarts_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "WINDOW_S", 0.05)
    engine = Engine([60, 60, 60, 60, 60, 1, 1, 1])
    await watch(engine, 2)
    assert engine.restarts > 5


async def test_with_no_restarts_asked_for_there_is_none() -> None:
    engine = Engine([])
    await watch(engine, 0)
    assert engine.restarts == 0


async def test_one_that_died_asleep_stays_dead() -> None:
    engine = Engine([1])
    engine.resting = True
    await watch(engine)
    assert engine.restarts == 0
