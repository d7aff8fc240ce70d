"""What the record needs done by the clock: interrupted deletions finished, checkpoints anchored and time-stamped, what
is over its time deleted, the state of the clock told.

Of several gateways on one log the one that holds the lock does it; when it ends, another takes over.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from audit.errors import AuditError, AuditUnavailable
from audit.events.base import ANCHOR_TENANT
from audit.log.node import NodeLock
from audit.privacy.retention import run_all
from audit.private.audit_context import AuditContext
from audit.private.erasure import finish
from audit.witness.anchor import Anchors, anchor
from audit.witness.anchor_attestations import last_stamped
from audit.witness.late_trees import RECORDED_EVERY_S, LateTrees, record_late_trees
from audit.witness.ntp import record_clock
from audit.witness.timestamp import load_roots, timestamp
from gateway.configuration.settings import Audit

logger = logging.getLogger("domicile.gateway")

LOCK = "gateway.server.maintenance"
TAKE_OVER_EVERY_S = 30.0
CLOCK_EVERY_S = 3600.0
TIMESTAMP_RETRY_S = 600.0


class Maintenance:
    """`folder` is that of the log, and of the lock. Run it as a task; cancel it to stop."""

    def __init__(
        self, context: AuditContext, folder: Path, settings: Audit, learn: Callable[[], object] = lambda: None
    ) -> None:
        """`learn` takes over the successions of the log's key that other hosts wrote into the record. Blocks."""
        self._audit_context = context
        self._folder = folder
        self._settings = settings
        self._anchors = Anchors()
        self._learn = learn
        self._late_trees = LateTrees()
        self._telling = asyncio.Lock()

    async def run(self) -> NoReturn:
        lock = await self._turn()
        try:
            await _logged("deletions that were interrupted", lambda: finish(self._audit_context))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._every(self._settings.retention_every_s, "retention", self.expire))
                group.create_task(self._every(self._settings.anchor_every_s, "anchoring", self.anchor))
                group.create_task(self._every(RECORDED_EVERY_S, "recording of key changes", self.record_key_changes))
                group.create_task(self._every(CLOCK_EVERY_S, "the state of the clock", self.record_clock_state))
                if self._settings.timestamp_url is not None:
                    often = min(TIMESTAMP_RETRY_S, self._settings.timestamp_every_s)
                    group.create_task(self._every(often, "time-stamping", self.stamp))
        finally:
            lock.release()
        raise AssertionError("neither ends by itself")

    async def expire(self) -> None:
        """Private values, and records by the class that a policy wrote into them."""
        await run_all(self._audit_context)

    async def anchor(self) -> None:
        """Checkpoints that a gateway on another host signed with a newer key are trusted by its succession."""
        await self.record_key_changes()
        await self._audit_context.in_thread(self._audit_context.exchange)
        await anchor(self._audit_context, self._anchors)

    async def record_key_changes(self) -> None:
        """In trees that began on a host which still had the old key, however seldom anchoring is configured."""
        async with self._telling:
            await asyncio.to_thread(self._learn)
            await record_late_trees(self._audit_context, self._late_trees)

    async def stamp(self) -> None:
        """The anchor, once the last token is old enough: also that of an earlier start, or of the command.

        Raises TimestampError, which is recorded then; the log continues without.
        """
        url, ca, every_s = self._settings.timestamp_url, self._settings.timestamp_ca, self._settings.timestamp_every_s
        if url is None or ca is None or time.time() < (last_stamped(self._folder) or 0) + every_s:
            return
        with self._audit_context.reading() as reader:
            if reader.last_checkpoint(ANCHOR_TENANT) is None:
                return  # nothing is anchored yet
        await timestamp(self._audit_context, self._folder, url, load_roots(ca))

    async def record_clock_state(self) -> None:
        await record_clock(self._audit_context)

    async def _turn(self) -> NodeLock:
        while True:
            with suppress(AuditUnavailable):
                return NodeLock.acquire(self._folder, LOCK)
            await asyncio.sleep(TAKE_OVER_EVERY_S)

    async def _every(self, seconds: float, name: str, work: Callable[[], Awaitable[object]]) -> NoReturn:
        while True:
            await _logged(name, work)
            await asyncio.sleep(seconds)


async def _logged(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """What cannot be done now is tried again at its next turn; deletions are carried through by the next start."""
    try:
        await work()
    except AuditError as error:
        logger.error("%s could not be done: %s; read the cause, it is tried again", name, error)
    except Exception as error:  # a defect in one chore must not end the others
        logger.error("%s failed: %s; read the cause, it is tried again", name, type(error).__name__)
