"""Starts the workers of a gateway, keeps as many running, and replaces them one after the other without a gap.

Each place has a listening socket of its own on the same port (SO_REUSEPORT), which the supervisor's process holds open
as long as it lives: connections that come while a worker is started again wait in it and are not refused. A replacement
takes calls before the worker that it replaces stops.
"""

import asyncio
import logging
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.workers.limits import LimitCounter
from gateway.workers.metrics import merged
from gateway.workers.peer import Peer, PeerGone
from gateway.workers.worker_names import GENERATIONS, worker_name

log = logging.getLogger("domicile.workers")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Before a worker that ended by itself is started again; doubled each time, from the start for one that ran so long."""
LEAVE_S = 2.0
"""In which the clients of a worker that is replaced are asked to open their next connection to another: one that is
closed while a request is on its way would fail it."""
PATIENCE_S = 2.0
"""For a worker's metrics; then its last ones are taken."""


class Start(Protocol):
    def __call__(self, place: int, generation: str, link: socket.socket) -> Awaitable[Process]:
        """Start a worker at `place` that inherits `link`."""


@dataclass(eq=False, slots=True)
class Worker:
    """One process. `place`: its number, from 1."""

    place: int
    generation: str
    name: str
    process: Process
    peer: Peer
    began: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: str = ""

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)


class Supervisor:
    """`places`: how many workers run. `node`: what their names begin with."""

    def __init__(self, start: Start, places: int, node: str) -> None:
        self._start = start
        self._places = places
        self._node = node
        self._limits = LimitCounter()
        self._workers: dict[int, Worker] = {}
        """By place: the one that takes its calls."""
        self._alive: set[Worker] = set()
        """Also replacements that are not ready yet, and those that are being replaced."""
        self._ended = ""
        """Counters and histograms of the workers that ended, in one exposition."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._replacing = asyncio.Lock()
        self._adding_up = asyncio.Lock()

    async def start(self) -> bool:
        """Start all of them; False where one ends before it is ready. Its own words on stderr say why."""
        for place in range(1, self._places + 1):
            self._workers[place] = await self._begin(place, GENERATIONS[0])
        all_ready = await asyncio.gather(*(self._is_ready(worker) for worker in self._workers.values()))
        if not all(all_ready):
            return False
        for worker in self._workers.values():
            self._spawn(self._keep(worker.place, worker))
        return True

    def send(self, number: signal.Signals) -> None:
        """To all workers."""
        for worker in self._alive:
            worker.send(number)

    def reload(self) -> None:
        """Have all workers read their settings again."""
        self.send(signal.SIGHUP)

    def replace_all(self) -> None:
        """Begin to replace the workers; the log says how that goes."""
        self._spawn(self.replace())

    async def replace(self) -> None:
        """Replace the workers one after the other, each once its replacement takes calls. One that does not come up
        leaves the running ones as they are."""
        async with self._replacing:
            for place in sorted(self._workers):
                before = self._workers[place]
                fresh = await self._begin(place, GENERATIONS[before.generation == GENERATIONS[0]])
                if not await self._is_ready(fresh):
                    if self._stopping:
                        return
                    log.error(
                        "worker %s did not start, so %s keeps running; fix the reported cause, then try again",
                        fresh.name,
                        before.name,
                    )
                    await self._over(fresh)
                    return
                self._workers[place] = fresh
                self._spawn(self._keep(place, fresh))
                with suppress(PeerGone, RuntimeError):
                    await before.peer.ask("replaced")
                    await asyncio.sleep(LEAVE_S)
                before.send(signal.SIGTERM)
                await before.process.wait()
                log.info("worker %s has replaced %s", fresh.name, before.name)

    async def stop(self, number: signal.Signals) -> int:
        """Have all workers stop, and wait for them. 0 where each ended with 0."""
        self._stopping = True
        workers = set(self._alive)
        self.send(number)
        while living := [worker for worker in self._alive if worker.process.returncode is None]:
            workers.update(living)  # one may have been begun meanwhile
            await asyncio.gather(*(worker.process.wait() for worker in living))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in workers:
            await worker.peer.close()
        return int(any(worker.process.returncode for worker in workers))

    async def metrics(self, _: Any = None) -> str:
        """Metrics of all workers, those that ended included."""
        await asyncio.gather(*(self._ask_metrics(worker) for worker in self._alive))
        return await asyncio.to_thread(merged, [each.metrics for each in self._alive if each.metrics], [self._ended])

    async def _begin(self, place: int, generation: str) -> Worker:
        name = worker_name(self._node, place, generation)
        ours, theirs = socket.socketpair()
        with theirs:
            process = await self._start(place, generation, theirs)
        handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        peer = await Peer.over(ours, handlers)
        worker = Worker(place, generation, name, process, peer, asyncio.get_running_loop().time())

        async def ready(_: Any) -> None:
            worker.ready.set()

        async def ended(metrics: str) -> None:
            worker.metrics = metrics

        self._alive.add(worker)
        if self._stopping:  # it was begun meanwhile
            worker.send(signal.SIGTERM)
        handlers |= {
            "ready": ready,
            "ended": ended,
            "metrics": self.metrics,
            "limits": lambda batch: self._limits.make(worker, batch),
        }
        return worker

    async def _is_ready(self, worker: Worker) -> bool:
        """Wait until it takes calls or has ended."""
        waits = [asyncio.ensure_future(each) for each in (worker.ready.wait(), worker.process.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return worker.ready.is_set() and worker.process.returncode is None

    async def _keep(self, place: int, worker: Worker) -> None:
        """Start `worker` again whenever it ends by itself, until it is replaced."""
        pause = FIRST_PAUSE_S
        while True:
            status = await worker.process.wait()
            await self._over(worker)
            if self._stopping or self._workers.get(place) is not worker:
                return
            if asyncio.get_running_loop().time() - worker.began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            log.error(
                "worker %s ended unexpectedly (%s); another is started; see the lines above",
                worker.name,
                status,
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            async with self._replacing:
                if self._stopping or self._workers.get(place) is not worker:
                    return
                log.info("starting %s again", worker.name)
                # Under the same name, which closes on record what that one left open.
                worker = self._workers[place] = await self._begin(place, worker.generation)

    async def _over(self, worker: Worker) -> None:
        """It ended: release what it held, and keep what it counted."""
        await worker.peer.close()
        await self._limits.release(worker)
        async with self._adding_up:
            self._ended = await asyncio.to_thread(merged, [], [self._ended, worker.metrics])
            self._alive.discard(worker)  # at once, so that no sum has what it counted twice, or not at all

    async def _ask_metrics(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                worker.metrics = await worker.peer.ask("metrics")
        except (TimeoutError, PeerGone, RuntimeError):
            return

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
