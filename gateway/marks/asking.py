"""Rate-limited watermark detection by the tenant's own backends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from audit.events.privacy import MarkTested
from gateway.marks.detection import BEFORE_DECIDING, Ask, Detected, detected
from gateway.store.marks import MarkKeys
from gateway.store.text_tests import TextTests
from regions.fleet.fleet import Backend

Allowed = Callable[[str, str, str], Sequence[Backend | None]]
"""Returns, for tenant, project and model, the Domicile backends that the project's policy allows; None stands for a
test without a backend. Blocks. Raises NotFound, PolicyError."""
Fetch = Callable[[Backend | None, bytes], Awaitable[bytes | None]]
"""Sends a body to a backend's POST /marks and returns the response body, None without one."""

Record = Callable[[MarkTested], Awaitable[object]]


class Detection:
    """Tests a text. The test is recorded before its result is returned."""

    def __init__(
        self, keys: MarkKeys, allowed: Allowed, fetch: Fetch, record: Record, bound: TextTests | None = None
    ) -> None:
        self._keys = keys
        self._allowed = allowed
        self._fetch = fetch
        self._record = record
        self._bound = bound

    async def __call__(self, tenant: str, project: str, text: str, actor: str) -> Detected:
        """Test a text. Raises TooManyTests, NotFound, PolicyError, and the errors of keys and record."""
        if self._bound is not None:
            await asyncio.to_thread(self._bound.take, tenant)
        keys = await asyncio.to_thread(self._keys.all, tenant)
        found = await detected(keys, text, self._asking(tenant, project))
        if found.verdict == "marked":
            found = replace(found, warning=BEFORE_DECIDING.format(tenant=tenant))
        event = MarkTested(
            tenant=tenant,
            actor=actor,
            project=project,
            verdict=found.verdict,
            period=found.period,
            tests=found.tests,
            tokens=found.tokens,
        )
        await self._record(event)
        return found

    def _asking(self, tenant: str, project: str) -> Ask:
        async def ask(model: str, body: bytes) -> bytes | None:
            for backend in await asyncio.to_thread(self._allowed, tenant, project, model):
                if (answer := await self._fetch(backend, body)) is not None:
                    return answer
            return None

        return ask
