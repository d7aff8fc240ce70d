import asyncio
import contextlib
import gc
import weakref

import pytest

from gateway.server.heap import ENOUGH, keep_collected, keep_trimmed, malloc_trim


def rss_kb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4


async def test_memory_that_buffers_left_is_returned_while_others_are_in_use():
    buffers = [bytes(30_000) for _ in range(3000)]  # 90 MB, each below the size that is mapped by itself
    kept = buffers[::30]
    del buffers
    before = rss_kb()
    trimming = asyncio.create_task(keep_trimmed(malloc_trim(), every_s=0.01))
    async with asyncio.timeout(30):
        while before - rss_kb() <= 40_000:
            await asyncio.sleep(0.01)
    trimming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await trimming
    assert len(kept) == 100


async def test_without_the_function_nothing_is_done():
    trimming = asyncio.create_task(keep_trimmed(None, every_s=0.001))
    await asyncio.sleep(0.01)
    assert not trimming.done()
    trimming.cancel()


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self):
        self.itself = self


def old_garbage():
    """A reference to garbage that a full collection finds and no other one, in a process due for one."""
    ring = Ring()
    for _ in range(ENOUGH + 1):
        gc.collect(1)
    return weakref.ref(ring)


@pytest.fixture(autouse=True)
def thresholds():
    found, ran = gc.get_threshold(), gc.isenabled()
    before = 700, 10, 10  # Python's own, whatever tests before this one left
    gc.set_threshold(*before)
    gc.enable()
    yield
    assert gc.get_threshold() == before, "they are given back with the task"
    gc.set_threshold(*found)
    if not ran:
        gc.disable()
    gc.unfreeze()


@contextlib.asynccontextmanager
async def collecting(is_idle, **times):
    times = {"every_s": 0, "at_latest_s": 1000, "look_s": 0.001} | times
    task = asyncio.create_task(keep_collected(is_idle, **times))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def collected(garbage, seconds):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while garbage() is not None:
                await asyncio.sleep(0.001)
    return garbage() is None


async def test_old_garbage_is_collected_while_requests_pause_and_not_in_mid_answer():
    idle = False
    async with collecting(lambda: idle):
        garbage = old_garbage()
        assert not await collected(garbage, 0.1)
        idle = True
        assert await collected(garbage, 30)


async def test_old_garbage_is_collected_in_the_end_where_requests_never_pause():
    async with collecting(lambda: False, at_latest_s=0.01):
        assert await collected(old_garbage(), 30)


async def test_no_full_collection_follows_the_last_one_at_once():
    async with collecting(lambda: True, every_s=1000):
        assert await collected(old_garbage(), 30), "the first"
        assert not await collected(old_garbage(), 0.1)


async def test_nothing_is_collected_where_little_was_made_since_the_last_time():
    async with collecting(lambda: True):
        assert await collected(old_garbage(), 30), "the first"
        ring = Ring()
        garbage = weakref.ref(ring)
        gc.collect()
        del ring
        assert not await collected(garbage, 0.05)
        for _ in range(ENOUGH + 1):
            gc.collect(1)
        assert await collected(garbage, 30)


async def test_what_idle_collections_leave_is_not_looked_through_again():
    async with collecting(lambda: True):
        assert await collected(old_garbage(), 30), "the first"
        kept = Ring()
        assert await collected(old_garbage(), 30), "the next, which leaves it"
        await asyncio.sleep(0.01)
        garbage = weakref.ref(kept)
        del kept
        assert await collected(old_garbage(), 30)
        assert garbage() is not None


@pytest.mark.parametrize(("idle", "which"), [(True, "whole_s"), (False, "whole_at_latest_s")])
async def test_garbage_of_what_was_left_is_collected_by_the_next_whole_collection(idle, which):
    pausing = True
    async with collecting(lambda: pausing, at_latest_s=0.001, **{which: 0.2}):
        kept = Ring()
        assert await collected(old_garbage(), 30), "the first, which leaves it"
        await asyncio.sleep(0.01)
        garbage, pausing = weakref.ref(kept), idle
        del kept
        async with asyncio.timeout(30):
            while garbage() is not None:
                assert await collected(old_garbage(), 30)


async def test_nothing_that_requests_in_flight_use_is_kept_from_collections():
    async with collecting(lambda: False, at_latest_s=0.01):
        before = gc.get_freeze_count()
        assert await collected(old_garbage(), 30)
        assert gc.get_freeze_count() <= before


async def test_python_itself_begins_no_full_collection_meanwhile():
    generations = []

    def seen(phase, info):
        generations.append(info["generation"])

    gc.callbacks.append(seen)
    try:
        async with collecting(lambda: False):
            generations.clear()
            kept = [[] for _ in range(400_000)]
            assert 1 in generations and 2 not in generations
            assert len(kept) == 400_000
    finally:
        gc.callbacks.remove(seen)
