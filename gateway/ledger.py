"""Keeps the ledger up with the record while the gateway runs: once a second, in a thread."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from audit.identity import Identity
from gateway.prices import PriceBook
from gateway.store.database import Database
from gateway.store.ledger_writer import LedgerWriter, LogReader
from gateway.store.ownership import LOG_NAME

log = logging.getLogger(__name__)

EVERY_S = 1.0


class Ledger:
    """Use as ``async with Ledger(...)``: leaving reads a last time. `prices` gives those of now, `open_reader` a
    snapshot of the log that is called `log`.

    What it could not write it writes next time, since the log keeps it: no row is lost to a database that was away.
    """

    def __init__(
        self, database: Database, log: str, open_reader: Callable[[], LogReader], prices: Callable[[], PriceBook]
    ) -> None:
        self._open_reader = open_reader
        self._writer = LedgerWriter(database, log)
        self._prices = prices
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.create_task(self._keep(), name="ledger")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self._catch_up_quietly()

    async def catch_up(self) -> int:
        """Read what is new on record; how many events."""
        return await asyncio.to_thread(self._catch_up)

    async def _keep(self) -> None:
        while True:
            await self._catch_up_quietly()
            await asyncio.sleep(EVERY_S)

    async def _catch_up_quietly(self) -> None:
        try:
            await self.catch_up()
        except Exception as error:  # of any kind: it is tried again, and nobody's request hangs on it
            log.warning("the ledger waits: %s: %s", type(error).__name__, error)

    def _catch_up(self) -> int:
        return self._writer.catch_up(self._open_reader, self._prices())


def log_name(owner: Identity) -> str:
    """Of a log in the ledger's cursors: the fingerprint of its first key, which a rotation does not change."""
    return owner.key[:LOG_NAME]
