"""Batch worker of each gateway process: leases tenants' batches, and continues those that others left.

One gateway works a tenant's batches at a time, so that the bound on lines at one time holds for the tenant. Any process
may be it: the lease of one that was killed ends, and the next goes on (`gateway.database.leases`).
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.batches.batches import Batches
from gateway.batches.content.sealing import content_errors
from gateway.batches.work.answering import Pace
from gateway.batches.work.run import BatchRun
from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable
from gateway.database.leases import Lease, LeaseLost
from gateway.errors import GatewayError
from gateway.records.batches import BatchRecord
from gateway.request.pipeline import Pipeline

log = logging.getLogger("domicile.gateway")

POLL_S = 1.0
AT_ONCE = 4
"""Batches of a tenant that are worked side by side, the oldest first; they share its slots."""
LONGEST_PAUSE_S = 60.0
"""Between two attempts at a batch that cannot go on."""


class BatchMetrics:
    """Labels are bounded: tenants as elsewhere, and the words of this class."""

    def __init__(self, registry: CollectorRegistry, tenant_label: Callable[[str], str]) -> None:
        self._tenant_label = tenant_label
        self._lines = Counter(
            "domicile_batch_lines",
            "Lines of batches by outcome: output, error, or retried",
            ("tenant", "outcome"),
            registry=registry,
        )
        self._ended = Counter(
            "domicile_batches_ended", "Batches by last state", ("tenant", "status"), registry=registry
        )
        self._waiting = Gauge(
            "domicile_batch_lines_waiting",
            "Lines without a result, of batches worked by this gateway",
            ("tenant",),
            registry=registry,
        )

    def line(self, tenant: str, outcome: str) -> None:
        self._lines.labels(self._tenant_label(tenant), outcome).inc()

    def ended(self, tenant: str, status: str) -> None:
        self._ended.labels(self._tenant_label(tenant), status).inc()

    def waiting(self, tenant: str, lines: int) -> None:
        self._waiting.labels(self._tenant_label(tenant)).set(lines)


class Run(Protocol):
    """Work on one batch or response, as a task."""

    async def run(self) -> None:
        """Raises LeaseLost, GatewayError, DatabaseUnavailable where it cannot go on; it is begun again then."""
        ...

    def stop(self) -> None:
        """No attempt begins any more; the task is cancelled then."""
        ...


class SingleCall(Run, Protocol):
    """Work on one call that waits by itself."""

    def over(self) -> None:
        """It has come to an end meanwhile, as one that was cancelled has; what runs of it is cut."""
        ...


class SingleCalls(Protocol):
    """Calls that wait by themselves, and have the same queue, lease and slots as the lines of batches."""

    async def tenants(self) -> list[str]:
        """Those with calls that wait."""
        ...

    async def workable(self, tenant: str) -> list[str]:
        """The oldest calls of a tenant that wait and whose keys are here, by id."""
        ...

    def run_of(
        self, tenant: str, call: str, pace: Pace, lease: Lease, term: int, noted: Callable[[str], None]
    ) -> SingleCall:
        """`noted` is told the outcome of the call, and of each repeated attempt."""
        ...


@dataclass(slots=True)
class BatchWorker:
    """`holder`: of this process alone, and unlike any before. Run it as a task; cancel it to stop."""

    database: Database
    batches: Batches
    singles: SingleCalls
    pipeline: Pipeline
    metrics: BatchMetrics
    holder: str
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tenants: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _leases: dict[str, Lease] = field(default_factory=dict)

    def wake(self) -> None:
        """There is work."""
        self._news.set()

    async def run(self) -> None:
        if not self.batches.settings.concurrent_lines:
            return
        try:
            while True:
                await self._look()
                await wait_for_event(self._news, POLL_S)
        finally:
            for task in self._tenants.values():
                task.cancel()
            await asyncio.gather(*self._tenants.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Take the tenants that have work and that no other gateway has."""
        self._tenants = {tenant: task for tenant, task in self._tenants.items() if not task.done()}
        try:
            with content_errors():
                of_batches = await asyncio.to_thread(self.batches.stored.tenants)
            tenants = sorted({*of_batches, *await self.singles.tenants()})
            self._leases = {tenant: self._leases.get(tenant) or self._lease(tenant) for tenant in tenants}
            for tenant, lease in self._leases.items():
                if tenant in self._tenants or not await self._has_work(tenant):
                    continue
                if (term := await asyncio.to_thread(lease.take)) is not None:
                    self._tenants[tenant] = asyncio.create_task(self._work(tenant, lease, term), name="batches")
        except (DatabaseUnavailable, GatewayError) as error:
            log.warning("batches wait: %s; check the databases and keys, it is tried again", error)

    async def _has_work(self, tenant: str) -> bool:
        return bool(await self.batches.workable(tenant) or await self.singles.workable(tenant))

    def _lease(self, tenant: str) -> Lease:
        return Lease(self.database, f"batches:{tenant}", self.holder, ttl_s=self.batches.settings.lease_s)

    async def _work(self, tenant: str, lease: Lease, term: int) -> None:
        work = TenantWork(tenant, self, lease, term)
        try:
            async with renewed(lease, term, self.batches.settings.lease_s) as lost, asyncio.TaskGroup() as group:
                watching = group.create_task(_raise_when(lost))
                await work.run()
                watching.cancel()
        except* LeaseLost:
            log.warning("another gateway took over the batches of %s; it needs no action", tenant)
        except* (DatabaseUnavailable, GatewayError) as errors:
            log.warning("batches of %s wait: %s; it is tried again", tenant, errors.exceptions[0])
        finally:
            self.metrics.waiting(tenant, 0)
            with suppress(DatabaseUnavailable):  # then it ends by its time
                await asyncio.shield(asyncio.to_thread(lease.release))


@dataclass(slots=True)
class TenantWork:
    """The batches and waiting calls of a tenant, while its lease is ours."""

    tenant: str
    worker: BatchWorker
    lease: Lease
    term: int
    _pace: Pace = field(init=False)
    _runs: dict[str, tuple[Run, asyncio.Task[None]]] = field(default_factory=dict)
    _calls: dict[str, SingleCall] = field(default_factory=dict)
    """Those of the runs that are of one call."""
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Until when a batch that could not go on is left alone, and for how long that is."""

    def __post_init__(self) -> None:
        self._pace = Pace(asyncio.Semaphore(self.worker.batches.settings.concurrent_lines))

    async def run(self) -> None:
        """Until no work is left."""
        singles = self.worker.singles
        try:
            while True:
                batches = (await self.worker.batches.workable(self.tenant))[:AT_ONCE]
                calls = await singles.workable(self.tenant)
                if not (batches or calls or self._runs):
                    return
                self.worker.metrics.waiting(
                    self.tenant, sum(max(0, each.total - each.completed - each.failed) for each in batches)
                )
                for batch in batches:
                    self._advance(batch)
                self._advance_calls(calls)
                if running := [task for _, task in self._runs.values()]:
                    await asyncio.wait(running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(POLL_S)
                self._collect()
        finally:
            for run, task in self._runs.values():
                run.stop()
                task.cancel()
            await asyncio.gather(*(task for _, task in self._runs.values()), return_exceptions=True)

    def _advance_calls(self, calls: Sequence[str]) -> None:
        metrics, tenant = self.worker.metrics, self.tenant
        for id_, call in self._calls.items():
            if id_ not in calls:
                call.over()
        for id_ in calls:
            if id_ not in self._runs and not self._is_paused(id_):
                noted = partial(metrics.line, tenant)
                run = self.worker.singles.run_of(tenant, id_, self._pace, self.lease, self.term, noted)
                self._calls[id_] = run
                self._runs[id_] = run, asyncio.create_task(run.run(), name=id_)

    def _is_paused(self, id_: str) -> bool:
        return self._pauses.get(id_, (0.0, 0.0))[0] > asyncio.get_running_loop().time()

    def _advance(self, batch: BatchRecord) -> None:
        if batch.id in self._runs:
            known = self._runs[batch.id][0]
            if isinstance(known, BatchRun):
                known.see(batch.status)
            return
        if self._is_paused(batch.id):
            return
        metrics, tenant = self.worker.metrics, self.tenant
        run = BatchRun(
            batch,
            self.worker.batches,
            self.worker.pipeline,
            self._pace,
            self.lease,
            self.term,
            lambda part: metrics.line(tenant, part),
            lambda: metrics.line(tenant, "retried"),
            lambda status: metrics.ended(tenant, status),
        )
        self._runs[batch.id] = run, asyncio.create_task(run.run(), name=batch.id)

    def _collect(self) -> None:
        """Raises LeaseLost."""
        for id_, (_, task) in list(self._runs.items()):
            if not task.done():
                continue
            del self._runs[id_]
            self._calls.pop(id_, None)
            error = None if task.cancelled() else task.exception()
            if error is None:
                self._pauses.pop(id_, None)
                continue
            if _is_lost(error):
                raise LeaseLost("the lease was taken by another gateway; it needs no action")
            pause = min(LONGEST_PAUSE_S, 2 * self._pauses.get(id_, (0.0, POLL_S / 2))[1])
            self._pauses[id_] = asyncio.get_running_loop().time() + pause, pause
            log.warning("%s waits %g s: %s; it is tried again", id_, pause, _without_content(error))


@asynccontextmanager
async def renewed(lease: Lease, term: int, lease_s: float) -> AsyncIterator[asyncio.Event]:
    """Renew the lease in a thread of its own while the block runs: an event loop or a pool of threads that is busy for
    long must not lose it. The event is set where another gateway has it."""
    loop, lost, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def renew() -> None:
        while not done.wait(lease_s / 3):
            with suppress(DatabaseUnavailable):  # each transaction checks the lease itself
                if lease.take() != term:
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(lost.set)
                    return

    thread = threading.Thread(target=renew, name="batches lease", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        await asyncio.shield(asyncio.to_thread(thread.join))  # it must not take the lease again once that is released


async def _raise_when(lost: asyncio.Event) -> None:
    """Raises LeaseLost."""
    await lost.wait()
    raise LeaseLost("the lease was taken by another gateway; it needs no action")


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_lost, error.exceptions))
    return isinstance(error, LeaseLost)


def _without_content(error: BaseException) -> str:
    """What is known to hold no content: our own sentences, and the types of other errors."""
    if isinstance(error, BaseExceptionGroup):
        return _without_content(error.exceptions[0])
    return str(error) if isinstance(error, GatewayError | DatabaseUnavailable) else type(error).__name__


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Until it is set, or for `seconds`; it is cleared then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
