"""Keeps the places of incidents and requests up with the record while the gateway runs, and counts what is due."""

import asyncio
import logging
from collections.abc import Callable

from audit.storage.store import Reader
from gateway.store.log_followers.case_places import CasePlaces

log = logging.getLogger("domicile.gateway")

EVERY_S = 10.0
"""What came meanwhile is read when incidents are asked for."""


class CaseFollower:
    """`open_reader`: a snapshot of the record."""

    def __init__(self, places: CasePlaces, open_reader: Callable[[], Reader]) -> None:
        self._places = places
        self._open_reader = open_reader
        self._failing = False

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(EVERY_S)

    async def step(self) -> None:
        try:
            await asyncio.to_thread(self._places.follow, self._open_reader)
            self._failing = False
        except Exception as error:  # of any kind: incidents are found without, by reading more
            if not self._failing:
                log.warning(
                    "the places of incidents and requests wait: %s: %s; check the control database, it is tried again",
                    type(error).__name__,
                    error,
                )
            self._failing = True
