"""Kept responses are deleted when their time is over, with their keys. What a legal hold covers stays meanwhile.

Of several gateways the one that holds the lease does it.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from audit.errors import AuditUnavailable as RecordUnavailable
from audit.events.privacy import ResponsesExpired
from gateway.batches.content.sealing import content_errors
from gateway.batches.retention import expire_again_and_again
from gateway.database.leases import Lease
from gateway.errors import AuditUnavailable
from gateway.records.responses import DueResponse
from gateway.responses.responses import Responses

AT_ONCE = 500
LEASE = "responses"


@dataclass(frozen=True, slots=True)
class ResponseRetention:
    """Run it as a task; cancel it to stop."""

    responses: Responses
    lease: Lease

    async def run(self) -> None:
        await expire_again_and_again("responses", self.lease, self.expire)

    async def expire(self) -> int:
        """How many were deleted."""
        deleted = held = 0
        while True:
            with content_errors():
                due = await asyncio.to_thread(self.responses.stored.due, self.responses.now(), AT_ONCE, held)
            if not due:
                return deleted
            done = await self._deleted(due)
            deleted, held = deleted + done, held + len(due) - done

    async def _deleted(self, due: list[DueResponse]) -> int:
        by_tenant = defaultdict[str, list[DueResponse]](list)
        for one in due:
            by_tenant[one.tenant].append(one)
        deleted = 0
        for tenant, some in by_tenant.items():
            released = set(await self.responses.sealing.release_all(tenant, [one.id for one in some]))
            if not released:
                continue
            expired = sum(one.expired and one.id in released for one in some)
            if expired:
                await self._record(tenant, expired)
            with content_errors():
                await asyncio.to_thread(self.responses.stored.purge, released)
            deleted += len(released)
        return deleted

    async def _record(self, tenant: str, responses: int) -> None:
        """Raises AuditUnavailable; the rows, which can no longer be decrypted, stay until the next run then."""
        try:
            await self.responses.context.record(ResponsesExpired(tenant=tenant, responses=responses))
        except RecordUnavailable as error:
            raise AuditUnavailable("The deletion cannot be recorded now; it is tried again") from error
