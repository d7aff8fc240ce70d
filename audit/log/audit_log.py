"""The audit log as the rest of the program sees it: append an event, get a receipt once it is durable.

Behind it run two threads, the sequencer and the checkpointer; this module joins them to the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from audit.errors import AuditUnavailable
from audit.events.base import Event, Step
from audit.events.event import InferenceAborted, SigningDelayed, SystemSelftest, SystemStop
from audit.events.private_value import Private
from audit.events.stamp import Clock, Stamper, uuid7
from audit.files.new_file import make_private_folder
from audit.keys.signer import Signer
from audit.log.checkpointer import Cadence, Checkpointer
from audit.log.node import NodeLock
from audit.log.receipt import Receipt
from audit.log.reserve import Reserve
from audit.log.sequencer import RUNNING, Append, QueueLimits, Sequencer
from audit.storage.location import open_store
from audit.storage.store import Store

logger = logging.getLogger(__name__)

OpenStore = Callable[[Path, str, str], Store]
"""From the path of the log, the name of the node and its boot id."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Times in seconds. `queue` bounds the appends that may wait; outcomes of running calls are let in beyond it."""

    limits: QueueLimits = field(default_factory=QueueLimits)
    cadence: Cadence = field(default_factory=Cadence)
    queue: int = 8192
    probe_ttl_s: float = 5.0
    probe_timeout_s: float = 5.0


class AuditLog:
    """One process's hand on the log. Not for several event loops; other processes open the same file themselves."""

    def __init__(
        self,
        path: Path,
        lock: NodeLock,
        signer: Signer,
        stamper: Stamper,
        settings: AuditSettings,
        open_store: OpenStore,
    ) -> None:
        """Use `AuditLog.open`."""
        self._settings = settings
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._probing = asyncio.Lock()
        self._probed: tuple[float, Receipt | str] | None = None
        self._closed = False
        self._checkpointer = Checkpointer(
            signer, settings.cadence, lambda signed: self._sequencer.submit(signed), self._signing_delayed
        )
        self._sequencer = Sequencer(
            lambda: open_store(path, stamper.node, stamper.boot),
            stamper,
            Reserve(path.with_suffix(".reserve"), settings.limits.reserve_bytes),
            settings.limits,
            deliver=self._deliver,
            grown=self._checkpointer.grown,
        )

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        signer: Signer,
        node: str,
        clock: Clock = time.time,
        build: str | None = None,
        settings: AuditSettings | None = None,
        open_store: OpenStore = open_store,
    ) -> Self:
        """Open or create the log at `path` as `node`, and close what earlier boots of this node left open.

        Each of their intents without an outcome gets ``inference.aborted`` with reason ``crash``. Every process that
        writes the file at one time needs a node name of its own. `build` names the program in ``system.start``.
        Raises AuditUnavailable if the file, its reserve or the node's name cannot be had.
        """
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise AuditUnavailable(f"the audit log cannot be opened: {error}") from error
        lock = NodeLock.acquire(path.parent, node)
        stamper = Stamper(node, uuid7(int(clock() * 1000)), clock)
        log = cls(path, lock, signer, stamper, settings or AuditSettings(), open_store)
        starting = asyncio.ensure_future(asyncio.to_thread(log._start, build))
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait([starting])  # a thread cannot be cancelled, only waited for
            await asyncio.to_thread(log._stop)
            raise
        return log

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def trouble(self) -> str | None:
        """Why new calls are refused now, in a sentence; None when they are not."""
        if self._closed:
            return "the audit log is closed"
        return self._sequencer.trouble or self._checkpointer.trouble

    async def append(self, event: Event, private: Private | None = None) -> Receipt:
        """Record `event`, and keep the `private` values that it is to commit to; returns once both are durable.

        Raises AuditUnavailable if it is not and never will be called so: do nothing of what it announces. Raises
        EventRejected if this event breaks a rule (too large, an intent opened twice, an outcome without an open
        intent, private values without a value store), which leaves the log well.

        The caller need not repair the record. An outcome that met AuditUnavailable is closed by the log as aborted
        (``unrecorded``) when it is well again; an intent whose append is cancelled is closed as aborted
        (``cancelled``) as soon as it is durable.
        """
        if self._closed:
            raise AuditUnavailable("the audit log is closed; restart the gateway")
        if event.step not in RUNNING:
            if (trouble := self._checkpointer.trouble) is not None:
                raise AuditUnavailable(trouble)
            if self._sequencer.waiting >= self._settings.queue:
                raise AuditUnavailable("too many events wait to be recorded; try again")
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self._sequencer.submit(Append(event, future, private))
        try:
            return await future
        except asyncio.CancelledError:
            if event.step is Step.OPENS and _is_durable(future):
                self._abandon(event)  # it became durable, and its caller was cancelled before it ran again
            raise

    def _deliver(self, batch: Sequence[Append]) -> None:
        try:  # noqa: SIM105  # a context manager costs each batch more
            self._loop.call_soon_threadsafe(self._resolve, batch)
        except RuntimeError:  # the loop is closed: no caller waits any more
            pass

    def _resolve(self, batch: Sequence[Append]) -> None:
        for append in batch:
            waiter, outcome = append.waiter, append.outcome
            if waiter is None:
                continue
            if waiter.cancelled():
                if append.event.step is Step.OPENS and isinstance(outcome, Receipt):
                    self._abandon(append.event)
            elif isinstance(outcome, Receipt):
                waiter.set_result(outcome)
            else:
                waiter.set_exception(type(outcome)(*outcome.args))  # one exception object a waiter

    def _abandon(self, intent: Event) -> None:
        aborted = InferenceAborted(tenant=intent.tenant, request_id=intent.request_id or "", reason="cancelled")
        self._sequencer.submit(Append(aborted))

    def _signing_delayed(self, seconds: int, resumed: bool) -> None:
        self._sequencer.submit(Append(SigningDelayed(seconds=seconds, resumed=resumed)))

    async def probe(self) -> Receipt:
        """A durable append of ``system.selftest``, for readiness; the result is kept for `probe_ttl_s`.

        Raises AuditUnavailable if the log would refuse a new call, or does not answer in `probe_timeout_s`.
        """
        async with self._probing:
            if self._probed is None or time.monotonic() - self._probed[0] >= self._settings.probe_ttl_s:
                result = await self._selftest()
                self._probed = time.monotonic(), result
            result = self._probed[1]
        if isinstance(result, str):
            raise AuditUnavailable(result)
        return result

    async def _selftest(self) -> Receipt | str:
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                return await self.append(SystemSelftest())
        except AuditUnavailable as error:
            return str(error)
        except TimeoutError:
            return f"the audit log did not answer in {self._settings.probe_timeout_s:g} s"

    async def close(self) -> None:
        """Finish what waits, sign every tree, release the file and the node's name. May be called twice."""
        if self._closed:
            return
        try:
            await self.append(SystemStop())
        except AuditUnavailable as error:
            logger.error("the stop could not be recorded: %s; run `domicile audit verify` before the next start", error)
        self._closed = True
        await asyncio.to_thread(self._stop)

    def _start(self, build: str | None) -> None:
        self._checkpointer.start()
        self._sequencer.start(build)

    def _stop(self) -> None:
        self._checkpointer.stop()
        self._sequencer.stop()
        self._lock.release()


def _is_durable(append: "asyncio.Future[Receipt]") -> bool:
    return append.done() and not append.cancelled() and append.exception() is None
