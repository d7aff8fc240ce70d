"""Keeps the ledger up with the record while the gateway runs: once a second, in a thread."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from audit.privacy.schedule import Schedule, days_of_call
from audit.storage.installation_identity import Identity
from gateway.database.database import Database
from gateway.database.ownership import LOG_NAME
from gateway.records.prices import PriceBook
from gateway.store.log_followers.ledger_writer import LedgerWriter, LogReader

log = logging.getLogger(__name__)

EVERY_S = 1.0
EXPIRE_EVERY_S = 3600.0
SCHEDULE = Schedule()


class Ledger:
    """Use as ``async with Ledger(...)``: leaving reads a last time. `prices` gives those of now, `open_reader` a
    snapshot of the log that is called `log`, and `sizes` those of its trees, as `LedgerWriter` has them.

    What it could not write it writes next time, since the log keeps it: no row is lost to a database that was away.
    Rows are deleted when the record of their call is (`audit.privacy.schedule`), or after `days` where that is set; the
    sums of a day with the last of its rows, or after `sum_days` where that is later.
    """

    def __init__(
        self,
        database: Database,
        log: str,
        open_reader: Callable[[], LogReader],
        prices: Callable[[], PriceBook],
        *,
        days: int | None = None,
        sum_days: int | None = None,
        sizes: Callable[[], dict[str, int]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._open_reader = open_reader
        self._writer = LedgerWriter(database, log, record_days, sizes=sizes, now=now)
        self._prices = prices
        self._days = days
        self._sum_days = sum_days
        self._now = now
        self._expired_at = float("-inf")
        self._keeping: asyncio.Task[None] | None = None
        self._reading = threading.Lock()

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
            if self._now() - self._expired_at >= EXPIRE_EVERY_S:
                await self._expire_quietly()
            await asyncio.sleep(EVERY_S)

    async def _expire_quietly(self) -> None:
        try:
            await asyncio.to_thread(self._writer.expire, self._now(), self._days, self._sum_days)
            self._expired_at = self._now()
        except Exception as error:  # of any kind: it is tried again, and no request depends on it
            log.warning(
                "rows of the ledger wait for their deletion: %s: %s; check the control database, it is tried again",
                type(error).__name__,
                error,
            )

    async def _catch_up_quietly(self) -> None:
        try:
            await self.catch_up()
        except Exception as error:  # of any kind: it is retried, and no request depends on it
            log.warning(
                "the ledger waits: %s: %s; check the control database, it is tried again", type(error).__name__, error
            )

    def _catch_up(self) -> int:
        with self._reading:  # two at once would wait for each other's transactions, and one could time out
            return self._writer.catch_up(self._open_reader, self._prices())


def record_days(intent: dict[str, Any]) -> int:
    """How long the record of a call is kept, by its intent."""
    return days_of_call(intent, SCHEDULE)[0]


def log_name(owner: Identity) -> str:
    """Name of a log in the ledger's cursors: the fingerprint of its first key, which a rotation does not change."""
    return owner.key[:LOG_NAME]
