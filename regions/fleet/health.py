"""Active health checks: probe every backend at an interval and report the result to the fleet.

The probe is the caller's (over mTLS, to ``/readyz``), so that this module knows no HTTP.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from regions.fleet.fleet import Backend, Fleet

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
TIMEOUT_S = 5.0
MISSES = 3
AT_ONCE = 32

Probe = Callable[[Backend], Awaitable[bool]]
"""True if the backend answers that it is ready, False if that it is not. Raises if it does not answer."""


class Prober:
    """Probes until cancelled: ``asyncio.create_task(prober.run())``.

    An answer counts at once. Silence of one that has answered counts when it lasts: an engine in a long step
    may miss a probe or two, and a tenant with one backend must not be refused for that. Silence of one that never
    answered counts at once, so that calls wait for a backend that is being started and do not fail at one that is
    gone. Calls that fail are the circuit breaker's business.
    """

    def __init__(
        self, fleet: Fleet, probe: Probe, *, interval_s: float = INTERVAL_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._fleet = fleet
        self._probe = probe
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._missed: dict[str, int] = {}
        self._answered: set[str] = set()

    async def run(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """Probe every backend once."""
        backends = list(self._fleet)
        self._missed = {backend.id: self._missed.get(backend.id, 0) for backend in backends}
        self._answered &= self._missed.keys()
        await asyncio.gather(*(self._check(backend) for backend in backends))

    async def _check(self, backend: Backend) -> None:
        async with self._gate:
            try:
                async with asyncio.timeout(self._timeout_s):
                    ready = await self._probe(backend)
            except Exception as error:  # it did not answer, for any reason
                self._missed[backend.id] += 1
                if backend.id in self._answered and self._missed[backend.id] < MISSES:
                    return
                log.info("backend %s does not answer probes: %s", backend.id, type(error).__name__)
                ready = False
            else:
                self._missed[backend.id] = 0
                self._answered.add(backend.id)
        self._fleet.mark_ready(backend, ready)
