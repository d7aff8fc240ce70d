"""Returns freed memory to the operating system.

glibc keeps what buffers of many slow clients took for the next ones: without this the memory of a gateway is that of
its busiest minute permanently (malloc_trim(3)). Where the C library has no such function nothing is done.
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import NoReturn

TRIM_EVERY_S = 10.0


def malloc_trim() -> Callable[[], object] | None:
    """The C library's function, which runs without Python's lock; None where there is none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return lambda: trim(0)


async def keep_trimmed(trim: Callable[[], object] | None, every_s: float = TRIM_EVERY_S) -> NoReturn:
    """Call `trim` every `every_s` seconds in a worker thread, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        if trim is not None:
            await asyncio.to_thread(trim)
