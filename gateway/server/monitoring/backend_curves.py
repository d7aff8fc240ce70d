"""Stores queue, speed and power of the backends every few seconds, for the curves of the console."""

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.database.database import Database
from gateway.store.fleet.backend_curves import Look, note_looks
from regions.fleet.fleet import Fleet

EVERY_S = 15.0

logger = logging.getLogger("domicile.gateway")


class BackendCurves:
    """Curves of the backends in `fleet`. Several gateways that do it for one backend make the mean better, and no
    sum."""

    def __init__(self, database: Database, fleet: Fleet, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._fleet = fleet
        self._now = now

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Note what is known now. What cannot be written is left out: the next look is as good."""
        if not (looks := self._looks()):
            return
        try:
            await asyncio.to_thread(note_looks, self._database, looks, self._now())
        except Exception as error:  # of any kind: no request depends on it
            logger.warning(
                "curves of backends have a gap: %s: %s; check the control database", type(error).__name__, error
            )

    def _looks(self) -> list[Look]:
        found = []
        for backend in self._fleet:
            report = self._fleet.report(backend.id)
            rates = self._fleet.rates(backend.id)
            if report is not None and rates is not None:  # it reported within the last half minute
                found.append(
                    Look(
                        backend.tenant,
                        backend.id,
                        report.running,
                        report.waiting,
                        report.kv_use,
                        rates.tokens_per_s,
                        rates.watts,
                    )
                )
        return found
