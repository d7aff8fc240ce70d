"""Keeps the places of records of one sort up with the record while the gateway runs."""

import asyncio
import logging
from collections.abc import Callable

from audit.storage.store import Reader
from gateway.store.log_followers.record_places import RecordPlaces

log = logging.getLogger("domicile.gateway")

EVERY_S = 10.0
"""What came meanwhile is read by whoever asks for it."""


class PlaceFollower:
    """`open_reader`: a snapshot of the record. `what`: of which records, for the operator."""

    def __init__(self, places: RecordPlaces, open_reader: Callable[[], Reader], what: str) -> None:
        self._places = places
        self._what = what
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
        except Exception as error:  # of any kind: they are found without, by reading more
            if not self._failing:
                log.warning(
                    "the places of %s wait: %s: %s; check the control database, it is tried again",
                    self._what,
                    type(error).__name__,
                    error,
                )
            self._failing = True
