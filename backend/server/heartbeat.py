"""A file that is touched after each round trip through the engine loop, for probes that cannot speak mutual TLS.

Kubernetes' own HTTP probe shows no certificate, and a listener for it without one would be a second way in. A probe
that looks at a file's age asks the same question as ``/readyz``.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from backend.errors import EngineDead

log = logging.getLogger(__name__)

EVERY_S = 2.0
TIMEOUT_S = 5.0


async def beat(ping: Callable[[float], Awaitable[object]], file: Path, *, every_s: float = EVERY_S) -> None:
    """Touch `file` every `every_s` seconds as long as `ping` answers. Runs until cancelled; the file then goes.

    ping: `EngineClient.ping`, which takes a timeout in seconds and raises EngineDead.
    """
    try:
        while True:
            try:
                await ping(TIMEOUT_S)
            except EngineDead:
                log.warning("the engine loop did not answer; no heartbeat")
            else:
                _touch(file)
            await asyncio.sleep(every_s)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file)


def _touch(file: Path) -> None:
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(file)
    except OSError as error:  # a full or read-only volume: not ready, but answers continue
        log.error(
            "the heartbeat cannot be written: %s; let this process write to the folder of --heartbeat", error.strerror
        )
