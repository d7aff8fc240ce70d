"""What is over its time is deleted: files by the retention that they were stored under, batches with their results.

Of several gateways the one that holds the lease does it. What a legal hold covers, or a batch still reads, stays until
the next run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from audit.errors import AuditError
from gateway.batches.batches import Batches
from gateway.batches.content.files import Files
from gateway.batches.content.sealing import content_errors
from gateway.database.errors import DatabaseUnavailable
from gateway.database.leases import Lease
from gateway.errors import GatewayError, ObjectInUse
from gateway.records.batches import BatchRecord, FileRecord

log = logging.getLogger("domicile.gateway")

EVERY_S = 60.0
AT_ONCE = 100
LEASE = "files"
Found = TypeVar("Found")


async def expire_again_and_again(what: str, lease: Lease, expire: Callable[[], Awaitable[int]]) -> None:
    """Call `expire` every EVERY_S seconds while this gateway has the lease, until cancelled. `what` it deletes, in the
    words of the log."""
    while True:
        try:
            if await asyncio.to_thread(lease.take) is not None:
                await expire()
        except (GatewayError, DatabaseUnavailable, AuditError) as error:
            log.warning("%s wait for their deletion: %s; it is tried again", what, error)
        await asyncio.sleep(EVERY_S)


@dataclass(frozen=True, slots=True)
class FileRetention:
    """Run it as a task; cancel it to stop."""

    batches: Batches
    lease: Lease
    at_once: int = AT_ONCE

    async def run(self) -> None:
        await expire_again_and_again("files", self.lease, self.expire)

    async def expire(self) -> int:
        """How many files and batches were deleted. What stays, however much, does not keep the rest from its turn."""
        return await self._each(self._files.stored.due, self._expired) + await self._each(
            self.batches.stored.over, self._over
        )

    async def _each(
        self, find: Callable[[float, int, int], list[Found]], expired: Callable[[Found], Awaitable[bool]]
    ) -> int:
        """`find` is given the time, how many, and how many to pass over; `expired` says whether one was deleted."""
        now, deleted, stayed = self.batches.now(), 0, 0
        while True:
            with content_errors():
                found = await asyncio.to_thread(find, now, self.at_once, stayed)
            if not found:
                return deleted
            for one in found:
                if await expired(one):
                    deleted += 1
                else:
                    stayed += 1

    async def _over(self, batch: BatchRecord) -> bool:
        if await self.batches.sealing.is_held(batch.owner.tenant, batch.id):
            return False
        with content_errors():
            await asyncio.to_thread(self.batches.stored.purge, batch.id)
        await self.batches.forget(batch)
        return True

    @property
    def _files(self) -> Files:
        return self.batches.files

    async def _expired(self, file: FileRecord) -> bool:
        if file.state == "ready":
            with content_errors():
                used = await asyncio.to_thread(self.batches.stored.uses_file, file.id)
            if used or await self.batches.sealing.is_held(file.owner.tenant, file.batch or file.id):
                return False
            await self._files.record_expiry(file)
        try:
            await self._files.purge(file)
        except ObjectInUse:
            return False
        return True
