import asyncio
import contextlib

from gateway.server.heap import keep_trimmed, malloc_trim


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
