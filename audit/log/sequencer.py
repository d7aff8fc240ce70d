"""The sequencer: the one thread of a process that stamps events, numbers them and makes them durable, batch by batch.

Group commit without a fixed delay: a lone append is committed at once, and what arrives during its fsync forms the next
batch. Where this batch or the last held several, more are to be expected, and it stays open for `linger_s`: a commit
costs far more than a record in it.

    well ──disk full──> degraded: intents refused, running calls closed out of the reserve
      │                     │
      └──any other error────┴──> failed: everything refused
    every `heal_every_s` seconds it tries to get well again by itself.
"""

import asyncio
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime

from audit.errors import AuditError, AuditUnavailable, EventRejected, StoreError, StoreFull
from audit.events.base import Event, Step
from audit.events.event import AuditDegraded, AuditRestored, InferenceAborted, SystemStart
from audit.events.leaf import encode_leaf
from audit.events.private_value import Private, Sealed, seal
from audit.events.stamp import Stamper, rfc3339
from audit.log.receipt import Receipt
from audit.log.reserve import Reserve
from audit.storage.store import LogEntry, Refused, SignedCheckpoint, Store
from audit.tree.merkle import Frontier, leaf_hash

logger = logging.getLogger(__name__)

Outcome = Receipt | AuditError
CLOCK_TOLERANCE_S = 60.0
"""How far the clock may be behind the newest record when the log is opened: hosts that share a log differ a little, and
a policy may be in force a minute earlier than a record that it decided."""
RUNNING = (Step.WITHIN, Step.CLOSES)  # no set, since the hash of a member is a call
"""Steps of calls already accepted: they are let in where new calls are not."""


_NOT_WRITTEN = AuditUnavailable("the event was not written")


class Append:
    """One event on its way; the sequencer sets `outcome` before it delivers the batch."""

    __slots__ = ("event", "outcome", "private", "waiter")

    def __init__(
        self, event: Event, waiter: "asyncio.Future[Receipt] | None" = None, private: Private | None = None
    ) -> None:
        self.event = event
        self.waiter = waiter
        self.private = private
        self.outcome: Outcome = _NOT_WRITTEN


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How the sequencer batches and recovers; times in seconds."""

    batch: int = 256
    linger_s: float = 0.001
    heal_every_s: float = 5.0
    reserve_bytes: int = 64 << 20


class Sequencer:
    """Owns the store. In its thread it calls `deliver` with each batch that has outcomes, `grown` with new heads."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        stamper: Stamper,
        reserve: Reserve,
        limits: QueueLimits,
        *,
        deliver: Callable[[Sequence[Append]], None],
        grown: Callable[[dict[str, Frontier]], None],
    ) -> None:
        self._open_store = open_store
        self._stamper = stamper
        self._reserve = reserve
        self._limits = limits
        self._deliver = deliver
        self._grown = grown
        self._queue: queue.SimpleQueue[Append | SignedCheckpoint | None] = queue.SimpleQueue()
        self._store: Store | None = None
        self._failure: str | None = None
        self._degraded = False
        self._company = False  # whether the last batch had more than one append
        self._next_heal = 0.0
        self._refused = 0  # appends turned away since the log was last well
        self._unrecorded: set[tuple[str, str]] = set()  # calls whose intent or outcome may not be as reported

    @property
    def trouble(self) -> str | None:
        """Why new calls are refused now, None when all is well. Any thread may ask."""
        if self._failure is not None:
            return self._failure
        return "the disk is full: only running calls are still closed" if self._degraded else None

    @property
    def waiting(self) -> int:
        """Appends and checkpoints not yet taken up."""
        return self._queue.qsize()

    def start(self, build: str | None) -> None:
        """Open the store, close this node's orphans, record the start; then run. Blocks; raises AuditUnavailable."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started, build), name="audit-sequencer", daemon=True)
        self._thread.start()
        started.result()

    def submit(self, item: Append | SignedCheckpoint) -> None:
        self._queue.put(item)

    def stop(self) -> None:
        """Finish what was submitted, close the store, end the thread. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def _run(self, started: "Future[None]", build: str | None) -> None:
        try:
            self._open(build)
        except (AuditError, OSError) as error:
            self._close_store()
            started.set_exception(AuditUnavailable(f"the audit log cannot be opened: {error}"))
            return
        except BaseException as error:
            self._close_store()
            started.set_exception(error)
            return
        started.set_result(None)
        running = True
        while running:
            appends, checkpoints, running = self._collect()
            try:
                if self.trouble is not None and time.monotonic() >= self._next_heal:
                    self._heal()
                if appends or checkpoints:
                    self._commit(appends, checkpoints)
            except Exception as error:  # a defect of ours fails closed, like a defect of the disk
                logger.exception("the audit sequencer failed; restart the gateway, and report it")
                self._fail(AuditUnavailable(f"the audit log failed: {type(error).__name__}"), appends)
            if appends:
                self._deliver(appends)
        self._close_store()

    def _open(self, build: str | None) -> None:
        self._store = self._open_store()
        self._check_clock(self._store)
        self._store.consolidate()  # the boot before may have died of an fsync error
        self._reserve.fill()
        self._grown(self._store.unsigned())
        orphans = [intent for intent in self._store.intents(self._stamper.node) if intent.boot != self._stamper.boot]
        closing = [
            Append(InferenceAborted(tenant=intent.tenant, request_id=intent.request_id, reason="crash"))
            for intent in orphans
        ]
        closing.append(Append(SystemStart(orphans_closed=len(orphans), build=build)))
        self._write(closing, [])

    def _check_clock(self, store: Store) -> None:
        """Records dated before those that are there would make packs that no later record can explain."""
        moments = [_moment(payload) for payload in store.newest()]
        if not moments:
            return
        newest, now = max(moments), self._stamper.clock()
        if newest - now > CLOCK_TOLERANCE_S:
            raise StoreError(
                f"this machine's clock reads {rfc3339(int(now * 1000))}, {round(newest - now)} s behind the newest"
                f" record ({rfc3339(int(newest * 1000))}); set the clock (chronyc makestep, or timedatectl set-time),"
                " then start again"
            )

    def _collect(self) -> tuple[list[Append], list[SignedCheckpoint], bool]:
        """The next batch, and whether to continue after it. Empty when it is only time to try to heal."""
        appends: list[Append] = []
        checkpoints: list[SignedCheckpoint] = []
        lingered = False
        company, self._company = self._company, False
        try:
            item = self._queue.get(timeout=self._limits.heal_every_s if self.trouble is not None else None)
            while item is not None:
                if isinstance(item, Append):
                    appends.append(item)
                else:
                    checkpoints.append(item)
                if len(appends) >= self._limits.batch:
                    return appends, checkpoints, True
                self._company = len(appends) > 1
                if (company or self._company) and not lingered and self._queue.empty():
                    lingered = True
                    time.sleep(self._limits.linger_s)
                item = self._queue.get_nowait()
        except queue.Empty:
            return appends, checkpoints, True
        return appends, checkpoints, False

    # --- writing -----------------------------------------------------------------------------------------------------

    def _commit(self, appends: Sequence[Append], checkpoints: Sequence[SignedCheckpoint]) -> None:
        """Give every append its outcome: a receipt once durable, or the error that its caller gets."""
        if self._failure is not None:
            self._turn_away(appends, AuditUnavailable(self._failure))
            return
        if self._degraded:
            appends = self._only_running_calls(appends)
        try:
            self._write(appends, checkpoints)
        except StoreFull as error:
            if self._degraded:
                self._fail(AuditUnavailable("the disk is full and the reserve is used up"), appends)
            else:
                self._degrade(appends, checkpoints, error)
        except StoreError as error:
            self._fail(AuditUnavailable(str(error)), appends)

    def _write(self, appends: Sequence[Append], checkpoints: Sequence[SignedCheckpoint]) -> None:
        sealed: list[tuple[Append, LogEntry]] = []
        for append in appends:
            try:
                sealed.append((append, self._seal(append.event, append.private)))
            except EventRejected as error:
                append.outcome = error
        if not sealed and not checkpoints:
            return
        if self._store is None:
            raise StoreError("the audit file is closed; restart the gateway")
        appended = self._store.append([entry for _, entry in sealed], checkpoints)
        for (append, entry), place in zip(sealed, appended.placed, strict=True):
            if isinstance(place, Refused):
                append.outcome = (AuditUnavailable if place.for_now else EventRejected)(place.because)
                if place.for_now and append.event.step is Step.CLOSES:  # its caller need not repair the record
                    self._queue.put(Append(_unrecorded(*_call(append))))
            else:
                append.outcome = Receipt(entry.tenant, place, entry.leaf_hash)
        if appended.heads:
            self._grown(appended.heads)

    def _seal(self, event: Event, private: Private | None) -> LogEntry:
        if event.commits is not None:
            raise EventRejected(
                f"the event {event.type} already has commitments, which only the log makes; leave them out"
            )
        stamp = self._stamper.fields()
        sealed: tuple[Sealed, ...] = ()
        if private is not None:
            event, sealed = seal(event, str(stamp["event_id"]), private)
        payload = encode_leaf(event, stamp)
        return LogEntry(event.tenant, leaf_hash(payload), payload, event.step, event.request_id, sealed)

    # --- trouble -----------------------------------------------------------------------------------------------------

    def _degrade(self, appends: Sequence[Append], checkpoints: Sequence[SignedCheckpoint], error: StoreFull) -> None:
        logger.error(
            "new calls are refused, running calls are closed out of the reserve: %s; free space on the disk", error
        )
        self._degraded = True
        self._next_heal = time.monotonic() + self._limits.heal_every_s
        running = self._only_running_calls(appends)
        try:
            self._reserve.release()
            self._write([Append(AuditDegraded(reason="disk_full")), *running], checkpoints)
        except (StoreError, OSError) as second:
            self._fail(AuditUnavailable(str(second)), running)

    def _only_running_calls(self, appends: Sequence[Append]) -> list[Append]:
        running = [append for append in appends if append.event.step in RUNNING]
        fresh = [append for append in appends if append.event.step not in RUNNING]
        self._turn_away(fresh, AuditUnavailable(self.trouble or "the disk is full"))
        return running

    def _fail(self, error: AuditUnavailable, appends: Sequence[Append]) -> None:
        """Nothing that was tried can be promised; the file handles are given up with it."""
        logger.error("new calls are refused: %s; remove the cause; the log is retried automatically", error)
        self._failure = str(error)
        self._next_heal = time.monotonic() + self._limits.heal_every_s
        self._turn_away(appends, error)
        self._unrecorded.update(_call(append) for append in appends if append.event.step is Step.OPENS)
        self._close_store()

    def _turn_away(self, appends: Sequence[Append], error: AuditUnavailable) -> None:
        """An outcome that is turned away leaves its call open: the log closes it itself when it is well again."""
        for append in appends:
            append.outcome = error
        self._unrecorded.update(_call(append) for append in appends if append.event.step is Step.CLOSES)
        self._refused += len(appends)

    def _heal(self) -> None:
        """Recover: open the files again, rewrite every page, refill the reserve, record the gap itself."""
        self._next_heal = time.monotonic() + self._limits.heal_every_s
        try:
            if self._store is None:
                self._store = self._reopened()
                self._degraded, self._failure = True, None  # running calls may continue; new ones wait for the reserve
            self._reserve.fill()
            self._write([Append(AuditRestored(refused=self._refused)), *self._abort_unrecorded()], [])
            self._grown(self._store.unsigned())
        except StoreFull:
            self._reserve.release()
        except StoreError as error:
            self._fail(AuditUnavailable(str(error)), [])
        except OSError as error:
            logger.error("the reserve cannot be filled yet: %s; free space on the disk", error)
        else:
            logger.warning("the audit log is well again; %d appends were refused", self._refused)
            self._degraded, self._refused = False, 0
            self._unrecorded.clear()

    def _reopened(self) -> Store:
        store = self._open_store()
        try:
            if not store.consolidate():
                raise StoreError(
                    "the audit file is in use by a long reader or another writer; end the other process that uses it"
                )
        except StoreError:
            store.close()
            raise
        return store

    def _abort_unrecorded(self) -> list[Append]:
        """Calls that are closed after all are refused by the store, as they should be."""
        return [Append(_unrecorded(*call)) for call in sorted(self._unrecorded)]

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        try:
            store.close()
        except StoreError as error:
            logger.error("the audit file did not close: %s; run `domicile audit verify`", error)


def _unrecorded(tenant: str, request_id: str) -> InferenceAborted:
    return InferenceAborted(tenant=tenant, request_id=request_id, reason="unrecorded")


def _moment(payload: bytes) -> float:
    """When the record was made, in seconds since the epoch; 0 for one that cannot be read, which `verify` reports."""
    try:
        return datetime.fromisoformat(json.loads(payload)["ts"]).timestamp()
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def _call(append: Append) -> tuple[str, str]:
    return append.event.tenant, append.event.request_id or ""
