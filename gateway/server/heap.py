"""Returns freed memory to the operating system, and collects garbage while no request is answered.

glibc keeps what buffers of many slow clients took for the next ones: without this the memory of a gateway is that of
its busiest minute permanently (malloc_trim(3)). Where the C library has no such function nothing is done.

A collection of all generations holds the event loop for 20 ms and more per 1,000 open connections, and Python begins
one whenever long-lived objects have grown by a quarter: under a burst of connections every other second. Young objects,
which nearly all garbage of a request is, are collected as ever.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

TRIM_EVERY_S = 10.0
COLLECT_EVERY_S, COLLECT_AT_LATEST_S = 10.0, 60.0
"""Between two full collections while requests pause, and while they never do."""
LOOK_S = 1.0
ENOUGH = 10
"""Collections of younger objects before a full one is worth its time; the same as Python's own."""
WHOLE_EVERY_S, WHOLE_AT_LATEST_S = 600.0, 3600.0
"""Between two collections that look through what earlier ones left, too: while requests pause, and if they never do."""
NEVER = 2**31 - 1


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


async def keep_collected(
    is_idle: Callable[[], bool],
    every_s: float = COLLECT_EVERY_S,
    at_latest_s: float = COLLECT_AT_LATEST_S,
    whole_s: float = WHOLE_EVERY_S,
    whole_at_latest_s: float = WHOLE_AT_LATEST_S,
    look_s: float = LOOK_S,
) -> NoReturn:
    """Until cancelled, run the full collections of garbage that Python would run by itself: while `is_idle`, or after
    `at_latest_s`. The first comes in the first pause.

    What a collection leaves while no request is answered lives long (modules, policies, open connections): it is not
    looked through again before a whole collection, so that the others take a few milliseconds however much a gateway
    holds. What becomes garbage of it by a cycle waits for that one.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    warm = False
    try:
        last = whole = monotonic()
        while True:
            await asyncio.sleep(look_s)
            now, idle = monotonic(), is_idle()
            due = now - last >= (every_s if idle else at_latest_s)
            if not (gc.get_count()[2] > ENOUGH and due) and not (idle and not warm):
                continue
            if now - whole >= (whole_s if idle else whole_at_latest_s):
                gc.unfreeze()
                whole = now
            gc.collect()
            if idle:
                gc.freeze()
                warm = True
            last = monotonic()
    finally:
        gc.set_threshold(young, middle, old)
