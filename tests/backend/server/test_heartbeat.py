"""The heartbeat's age says whether the engine loop answers."""

import asyncio
import os
import time

import pytest

from backend.errors import EngineDead
from backend.server.heartbeat import beat


class Engine:
    def __init__(self):
        self.dead = False

    async def ping(self, timeout):
        if self.dead:
            raise EngineDead("it does not answer")


@pytest.fixture
async def beating(tmp_path):
    engine, file = Engine(), tmp_path / "beat"
    task = asyncio.create_task(beat(engine.ping, file, every_s=0.01))
    yield engine, file, task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def age(file):
    os.utime(file, (0, 0))
    return lambda: file.stat().st_mtime > time.time() - 60


async def test_the_file_is_fresh_while_the_engine_answers(beating):
    _, file, _ = beating
    await until(file.exists)
    await until(age(file))
    assert file.stat().st_mode & 0o777 == 0o600


async def test_the_file_grows_old_while_it_does_not_and_fresh_again_after(beating):
    engine, file, _ = beating
    await until(file.exists)
    engine.dead = True
    await asyncio.sleep(0.05)
    is_fresh = age(file)
    await asyncio.sleep(0.1)
    assert not is_fresh()
    engine.dead = False
    await until(is_fresh)


async def test_the_file_goes_when_serving_ends(beating):
    _, file, task = beating
    await until(file.exists)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not file.exists()


async def test_a_file_that_cannot_be_written_does_not_stop_the_loop(tmp_path):
    folder = tmp_path / "gone"
    task = asyncio.create_task(beat(Engine().ping, folder / "beat", every_s=0.01))
    await asyncio.sleep(0.05)
    folder.mkdir()
    await until((folder / "beat").exists)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
