"""An engine process whose step hangs, fails or crashes, on what device there is: requests fail, and it comes back.

Each test runs its own event loop: a bare GPU machine has no plugin for that.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from backend.engine.core.progress import Finish
from backend.engine.core.sampling import SamplingParams
from backend.engine_config import EngineConfig
from backend.errors import EngineDead
from backend.process.engine_client import EngineClient
from backend.process.messages import AddSequence
from tests.backend.faults import armed, order
from tests.backend.tiny import tiny_model, write_folder

GPU = torch.cuda.is_available()
FAULTS = ["hang", "raise", "crash", *(["hang-kernel", "fault-kernel"] if GPU else [])]
STEP_TIMEOUT_S = 3.0 if GPU else 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny", tiny_model(head_dim=16))


@asynccontextmanager
async def running(folder: Path, faults: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineClient]:
    for name, value in armed(faults).items():
        monkeypatch.setenv(name, value)
    client = EngineClient(
        EngineConfig(
            model=str(folder),
            num_blocks=256,
            max_model_len=2048,
            step_timeout_s=STEP_TIMEOUT_S,
            threads=1,
            max_num_seqs=8,
            **({"device": "cuda", "dtype": "bfloat16", "graphs": False} if GPU else {}),
        )
    )
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


async def answer(client: EngineClient, prompt: list[int], count: int) -> list[int | None]:
    call = client.submit([AddSequence(0, prompt, SamplingParams(max_tokens=count, temperature=0, ignore_eos=True))])
    tokens: list[int | None] = []
    while not call.done:
        events = [progress for _, progress in await call.next_events()]
        tokens += [progress.token for progress in events]
        if events[-1].finish is Finish.ERROR:
            break
    return tokens


@pytest.mark.parametrize("fault", FAULTS)
def test_running_requests_fail_health_is_red_and_a_new_process_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async def scenario() -> None:
        async with running(folder, tmp_path / "faults", monkeypatch) as client:
            expected = await answer(client, [1, 2, 3], 20)
            first = client.pid
            calls = [asyncio.create_task(answer(client, [1, 2, i], 1500)) for i in range(3)]
            await asyncio.sleep(0.2)
            order(tmp_path / "faults", fault)
            failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
            assert [type(f) for f in failed] == [EngineDead] * 3
            with pytest.raises(EngineDead):
                await client.ping(5)
            with pytest.raises(EngineDead):
                await answer(client, [1, 2, 3], 2)
            await client.restart()
            assert client.pid not in (None, first)
            assert await answer(client, [1, 2, 3], 20) == expected
            await client.ping(5)
            assert first is not None
            with pytest.raises(ProcessLookupError):
                os.kill(first, 0)

    asyncio.run(scenario())


def test_what_is_not_a_number_fails_one_request_and_the_process_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(folder, tmp_path / "faults", monkeypatch) as client:
            expected = await answer(client, [1, 2, 3], 20)
            pid = client.pid
            calls = [asyncio.create_task(answer(client, [1, 2, i], 800)) for i in range(3)]
            await asyncio.sleep(0.2)
            order(tmp_path / "faults", "nan")
            tokens = await asyncio.wait_for(asyncio.gather(*calls), 60)
            assert sorted(t[-1] is None for t in tokens) == [False, False, True]
            assert sorted(len(t) for t in tokens)[1:] == [800, 800]
            assert await answer(client, [1, 2, 3], 20) == expected
            assert client.pid == pid

    asyncio.run(scenario())


def test_a_restart_that_cannot_be_leaves_it_dead_and_says_so_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(folder, tmp_path / "faults", monkeypatch) as client:
            assert client.pid is not None
            order(tmp_path / "faults", "crash")
            with pytest.raises(EngineDead):
                await answer(client, [1], 500)
            monkeypatch.setenv("PYTHONPATH", "/nowhere")
            monkeypatch.setattr("sys.executable", "/bin/false")
            with pytest.raises(EngineDead):
                await client.restart()
            assert client.dead
            assert client.died.is_set()
            with pytest.raises(EngineDead):
                await client.ping(1)

    asyncio.run(scenario())
