"""An engine process that died is replaced: a kernel that hangs or faults takes its CUDA context along, not the server.

Requests that ran have failed by then, readiness is red until the new process has loaded, and a client that waits for an
answer gets 503. An engine that dies again and again is left dead: something is wrong then that a restart does not mend,
and `/readyz` says so to the launcher of this backend. One that dies asleep stays dead, too, for its memory may be
another's by now.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from backend.errors import BackendError
from backend.process.engine_client import EngineClient
from backend.process.messages import Loading

log = logging.getLogger(__name__)

RESTARTS = 3
WINDOW_S = 600.0  # so many restarts within so many seconds, and it stays dead
PAUSE_S = (0.0, 1.0, 5.0)  # before the first, the second, any later restart in that time


async def supervise(
    engine: EngineClient, restarts: int = RESTARTS, on_loading: Callable[[Loading], None] | None = None
) -> None:
    """Restart `engine` whenever it dies; returns when it is to stay dead. Cancel it before the engine is stopped."""
    begun: deque[float] = deque()
    while True:
        await engine.died.wait()
        if engine.resting:
            log.error("the engine died asleep; it stays dead")
            return
        while begun and time.monotonic() - begun[0] > WINDOW_S:
            begun.popleft()
        if len(begun) >= restarts:
            log.error("the engine died, and was restarted %d times in %g s; it stays dead", len(begun), WINDOW_S)
            return
        await asyncio.sleep(PAUSE_S[min(len(begun), len(PAUSE_S) - 1)])
        begun.append(time.monotonic())
        try:
            ready = await engine.restart(on_loading)
        except BackendError as error:
            log.error("the engine did not start again: %s; read the lines of the engine above", error)
        else:
            log.warning("the engine was restarted: %d KV blocks", ready.stats.total_blocks)
