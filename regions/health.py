"""Active health: ask every backend on a beat whether it is ready, and tell the fleet.

The probe is the caller's (over mTLS, to ``/readyz``), so that this module knows no HTTP.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from regions.fleet import Backend, Fleet

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
TIMEOUT_S = 2.0
AT_ONCE = 32

Probe = Callable[[Backend], Awaitable[bool]]
"""True if the backend is ready. An exception or no answer within the timeout means no."""


class Prober:
    """Probes until cancelled: ``asyncio.create_task(prober.run())``."""

    def __init__(
        self, fleet: Fleet, probe: Probe, *, interval_s: float = INTERVAL_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._fleet = fleet
        self._probe = probe
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """Probe every backend once."""
        await asyncio.gather(*(self._check(backend) for backend in list(self._fleet)))

    async def _check(self, backend: Backend) -> None:
        async with self._gate:
            try:
                async with asyncio.timeout(self._timeout_s):
                    ready = await self._probe(backend)
            except Exception as error:  # whatever stands between us and it, it cannot be used
                log.info("backend %s is not ready: %s", backend.id, type(error).__name__)
                ready = False
        self._fleet.mark_ready(backend, ready)
