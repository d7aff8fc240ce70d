"""The HTTP process's side of the engine: start it, talk to it, notice when it is gone or hangs."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from backend import errors
from backend.engine.cache.window_handle import WindowHandle
from backend.engine.core.progress import Progress, Stats
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine_config import EngineConfig
from backend.errors import Asleep, BackendError, EngineDead, Leaving, Overloaded, ProjectBusy, RequestError
from backend.process.call import Call
from backend.process.messages import (
    AbortSequences,
    AdapterChanged,
    AddSequence,
    BlocksTaken,
    BlocksWritten,
    Failed,
    Fetched,
    FromEngine,
    LifecycleChanged,
    LifecycleRefused,
    LoadAdapter,
    Loading,
    Lost,
    MakeWindow,
    OfTransfer,
    OpenWindow,
    Ping,
    Pong,
    Ready,
    Refused,
    RoomMade,
    Scrub,
    Scrubbed,
    Sleep,
    Start,
    StepDone,
    ToEngine,
    UnloadAdapter,
    Wake,
    WindowMade,
    WindowOpened,
    frame,
    from_engine,
    read,
)

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5
ABORT_GRACE_S = 2.0
TURN_TIMEOUT_S = 180.0  # to fall asleep or to wake
DRAIN_INTERVAL_S = 0.02
STOP_GRACE_S = 5.0
T = TypeVar("T")
_Answer = Pong | Scrubbed | AdapterChanged | WindowMade | WindowOpened


class EngineClient:
    """One engine process at a time.

    name: of one of several behind a server. environment: what is different in its process's.

    Once dead it stays dead until `restart` (see `supervision`): every call raises EngineDead.
    """

    program: ClassVar[str] = "backend.process.engine_process"
    """The module that the process runs; a bench puts one without a model in its place."""

    def __init__(self, config: EngineConfig, name: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._name, self._own_environment = name, environment or {}
        self.config: Final = config
        self.capacity: Final = config.max_num_seqs + config.max_waiting
        self.ready: Ready | None = None
        self.loading: Loading | None = None  # how far the last long undertaking is
        self.resting = False  # asleep, or on the way there or back: nothing is submitted
        self.leaving = False
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: dict[int, Call] = {}
        self._transfers: dict[int, Call] = {}  # of sequences whose blocks travel, until they are aborted or over
        self._asked: dict[int, asyncio.Future[_Answer]] = {}
        self._adapters: dict[
            tuple[str, str], LoadedAdapter
        ] = {}  # that the engine has; one that replaces it gets them again
        self._turns: dict[int, asyncio.Future[int]] = {}
        self._next_id = 0
        self._last_heard = 0.0
        self._stats: Stats | None = None
        self._dead: str | None = None
        self.died = asyncio.Event()

    @property
    def stats(self) -> Stats | None:
        """As of the last message from the engine."""
        return self._stats

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def load(self) -> int:
        """Sequences that run or wait."""
        return len(self._calls)

    def load_of(self, project: bytes) -> int:
        """The same of one project."""
        return sum(call.project == project for call in self._calls.values())

    @property
    def alive(self) -> bool:
        return self.ready is not None and self._dead is None

    @property
    def dead(self) -> bool:
        return self._dead is not None

    async def start(self, on_loading: Callable[[Loading], None] | None = None) -> Ready:
        """Start the process and wait until it has loaded the model; ``on_loading`` hears how far it is.

        Raises the process's own ConfigError or ModelError, or EngineDead if it ends without saying why.
        """
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220  (fork and exec, no waiting)
                [sys.executable, "-m", self.program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else None,
                env={**environment(), **self._own_environment},
            )
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._send(Start(self.config))
        try:
            while isinstance(first := await read(reader, from_engine), Loading):
                self.loading = first
                if on_loading:
                    on_loading(first)
        except (asyncio.IncompleteReadError, OSError):
            self._dead = "it ended while starting"
            await self.stop()
            raise EngineDead(
                f"the engine process ended while starting, status {self._process.returncode}; read its last lines above"
            ) from None
        if isinstance(first, Failed):
            self._dead = first.message
            await self.stop()
            raise error_of(first.kind, first.message, None)
        if isinstance(first, Lost):
            self._dead = first.message
            await self.stop()
            raise EngineDead(f"{first.message}; read the lines of the engine above")
        if not isinstance(first, Ready):
            raise EngineDead("the engine process spoke out of turn; restart the backend, and report it")
        self.ready, self._stats = first, first.stats
        self._last_heard = time.monotonic()
        self._tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._watch())]
        return first

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        """Queue the sequences of one request; `id` and `leader` in them count from 0 and are replaced.

        Raises EngineDead, Leaving, Asleep, Overloaded (they do not all fit into the queue now), ProjectBusy (nor into
        their project's share of it) or, if they never could, InvalidRequest.
        """
        self.require_alive()
        if self.leaving:
            raise Leaving("the backend is stopping; try again")
        if self.resting:
            raise Asleep("the backend is asleep; wake it with POST /wake, or try again later")
        if len(sequences) > self.capacity:
            raise errors.InvalidRequest(
                f"{len(sequences)} sequences in one request; at most {self.capacity}", param="n"
            )
        if len(self._calls) + len(sequences) > self.capacity:
            raise Overloaded("the engine's queue is full; try again")
        self._check_share(sequences)
        if not self._calls:
            self._last_heard = time.monotonic()
        base = self._next_id
        self._next_id += len(sequences)
        ids = range(base, self._next_id)
        call = Call(self.abort, ids, sequences[0].project if sequences else b"", self._tell)
        for id, sequence in zip(ids, sequences, strict=True):
            self._calls[id] = call
            if sequence.fetches or sequence.exports is not None:
                self._transfers[id] = call
            leader = None if sequence.leader is None else base + sequence.leader
            self._send(msgspec.structs.replace(sequence, id=id, leader=leader))
        return call

    def _check_share(self, sequences: Sequence[AddSequence]) -> None:
        """Raises ProjectBusy if the project would hold more than its share of queue and batch."""
        most = self.config.max_per_project
        if most is None or not sequences:
            return
        project = sequences[0].project
        if self.load_of(project) + len(sequences) > most:
            raise ProjectBusy(f"this project has {most} sequences here already, or would; try again")

    def abort(self, ids: list[int]) -> None:
        for id in ids:
            self._calls.pop(id, None)
            self._transfers.pop(id, None)
        if ids and self.alive:
            self._send(AbortSequences(ids))

    async def ping(self, timeout_s: float) -> None:
        """One round trip through the engine loop. Raises EngineDead if the engine does not answer in time."""
        await self._ask(Ping, timeout_s)

    @property
    def adapters(self) -> list[LoadedAdapter]:
        """That are loaded."""
        return sorted(self._adapters.values())

    async def load_adapter(
        self, name: str, path: str, project: str = "", digest: str = "", *, timeout_s: float
    ) -> LoadedAdapter:
        """See `Engine.load_adapter`, whose errors it raises, and EngineDead."""
        done = await self._ask(lambda number: LoadAdapter(number, name, path, project, digest), timeout_s)
        assert isinstance(done, AdapterChanged) and done.adapter is not None  # noqa: S101
        self._adapters[project, name] = done.adapter
        return done.adapter

    async def unload_adapter(self, name: str, project: str = "", *, timeout_s: float) -> None:
        """See `Engine.unload_adapter`, whose errors it raises, and EngineDead."""
        await self._ask(lambda number: UnloadAdapter(number, name, project), timeout_s)
        self._adapters.pop((project, name), None)

    async def _restore_adapters(self) -> None:
        """Load what the engine before had. One that is not the same any more stays away."""
        for had in self.adapters:
            try:
                await self.load_adapter(
                    had.name, had.path, had.project, had.digest, timeout_s=self.config.step_timeout_s
                )
            except RequestError as error:
                del self._adapters[had.project, had.name]
                log.error("adapter %s was not loaded again: %s; load it once that is mended", had.name, error)

    async def scrub(self, timeout_s: float) -> Scrubbed:
        """Zero every free KV block. Raises EngineDead if the engine does not answer in time, CannotScrub as the
        engine."""
        done = await self._ask(Scrub, timeout_s)
        assert isinstance(done, Scrubbed)  # noqa: S101
        return done

    async def make_window(self, peer: str, timeout_s: float) -> WindowHandle | None:
        """See `Windows.make`. Raises EngineDead."""
        done = await self._ask(lambda number: MakeWindow(number, peer), timeout_s)
        assert isinstance(done, WindowMade)  # noqa: S101
        return done.handle

    async def open_window(self, handle: WindowHandle, timeout_s: float) -> str:
        """See `Windows.open`. Raises EngineDead."""
        done = await self._ask(lambda number: OpenWindow(number, handle), timeout_s)
        assert isinstance(done, WindowOpened)  # noqa: S101
        return done.why

    async def _ask(self, question: Callable[[int], ToEngine], timeout_s: float) -> _Answer:
        """question: makes the message of its number."""
        self.require_alive()
        number = self._next_id
        self._next_id += 1
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._send(question(number))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineDead(f"the engine loop did not answer within {timeout_s:g} s; restart the backend") from None
        finally:
            self._asked.pop(number, None)

    async def drain(self, grace_s: float, error: Exception) -> None:
        """Wait until no call runs; after `grace_s` seconds, fail the rest with `error`. Set `resting` before."""
        until = time.monotonic() + grace_s
        while self._calls and time.monotonic() < until:  # noqa: ASYNC110  (calls end in many places, drains are rare)
            await asyncio.sleep(DRAIN_INTERVAL_S)
        for call in set(self._calls.values()):
            self.abort(call.ids)
            call.fail(error)

    def leave(self) -> None:
        """For good: nothing is taken any more, and calls of whose answer there is nothing yet fail with Leaving, so
        that the caller may ask another."""
        self.leaving = True
        for call in set(self._calls.values()):
            if not call.begun:
                self.abort(call.ids)
                call.fail(Leaving("the backend is stopping; try again"))

    async def change_state(self, to: type[Sleep] | type[Wake]) -> int:
        """Send the engine to sleep, or wake it; returns the bytes it gave back.

        Raises CannotSleep, CannotWake or ModelError if it stays as it was, EngineDead if it ends over it or does not
        come to an end of it in TURN_TIMEOUT_S.
        """
        self.require_alive()
        number = self._next_id
        self._next_id += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._turns[number] = future
        self.loading = None
        self._send(to(number))
        try:
            return await asyncio.wait_for(future, TURN_TIMEOUT_S)
        except TimeoutError:
            await self._end_hung()
            raise EngineDead("the engine hung; restart the backend") from None
        finally:
            self._turns.pop(number, None)

    async def restart(self, on_loading: Callable[[Loading], None] | None = None) -> Ready:
        """`start` again, with a new process, once this one is dead. Raises what `start` raises, dead again."""
        await self.stop()
        self._dead, self.ready, self.loading = None, None, None
        self.resting = True  # until it has the adapters that requests name
        self.died.clear()
        try:
            ready = await self.start(on_loading)
            await self._restore_adapters()
            return ready
        except BaseException:
            self._dead = self._dead or "it did not start again"
            self.died.set()
            raise
        finally:
            self.resting = False

    async def stop(self) -> None:
        """End the process; waits for it. Harmless when it is gone."""
        self._die("stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._process is not None:
            await asyncio.to_thread(_reap, self._process, STOP_GRACE_S)

    def require_alive(self) -> None:
        """Raises EngineDead if the engine process is not running."""
        if self._dead is not None:
            raise EngineDead("the engine of this backend is not running; restart the backend")
        if self.ready is None:
            raise EngineDead("the engine of this backend has not started; try again when /readyz answers 200")

    def _tell(self, message: ToEngine) -> None:
        """Nothing once it is dead: its calls have failed then."""
        if self.alive:
            self._send(message)

    def _send(self, message: ToEngine) -> None:
        assert self._writer is not None  # noqa: S101
        self._writer.write(frame(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await read(reader, from_engine)
                self._last_heard = time.monotonic()
                self._handle(message)
        except (asyncio.IncompleteReadError, OSError):
            if self._dead is None:
                self._log_end(self._ended)
            self._die(self._ended)

    @property
    def _ended(self) -> str:
        rank = "" if self.config.ranks == 1 else f", rank 0 (process {self.pid}),"
        name = f" of {self._name}" if self._name else ""
        return f"the engine process{name}{rank} ended"

    def _log_end(self, why: str) -> None:
        others = "requests go to the others" if self._name else "this backend answers 503 from now on"
        log.error("%s; %s", why, others)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case StepDone(progress, stats):
                self._stats = stats
                self._deliver(progress)
            case Pong(number, stats):
                self._stats = stats
                _resolve(self._asked.get(number), message)
            case Scrubbed(number) | AdapterChanged(number) | WindowMade(number) | WindowOpened(number):
                _resolve(self._asked.get(number), message)
            case RoomMade() | BlocksWritten() | Fetched() | BlocksTaken():
                self._hand_over(message)
            case Lost(lost):
                lost = f"{self._name}: {lost}" if self._name else lost
                self._log_end(lost)
                self._die(lost)
            case Loading():
                self.loading = message
            case LifecycleChanged(number, released, stats):
                self._stats = stats
                _resolve(self._turns.get(number), released)
            case LifecycleRefused(number, kind, text):
                waiting = self._turns.get(number) or self._asked.get(number)
                _reject(waiting, error_of(kind, text, None))
            case Refused():
                self._refuse(message)

    def _refuse(self, refused: Refused) -> None:
        self._transfers.pop(refused.id, None)
        call = self._calls.pop(refused.id, None)
        if call is not None:
            call.fail(error_of(refused.kind, refused.message, refused.param))
            self.abort([id for id in call.ids if id != refused.id])

    def _hand_over(self, message: OfTransfer) -> None:
        """To the call whose blocks travel; forgets it once none are to come."""
        transfer = self._transfers.get(message.id)
        if transfer is not None:
            transfer.told.put_nowait(message)
        if isinstance(message, Fetched) or (isinstance(message, RoomMade) and message.first == message.end):
            self._transfers.pop(message.id, None)

    def _deliver(self, progress: Sequence[Progress]) -> None:
        for item in progress:
            call = self._calls.get(item.id)
            if call is not None:
                if item.finish is not None:
                    del self._calls[item.id]
                call.deliver(item)

    async def _watch(self) -> None:
        """A step that does not end is a hang: the process gets SIGABRT, which leaves its stack in the log."""
        while self._dead is None:
            await asyncio.sleep(WATCH_INTERVAL_S)
            busy = bool(self._calls or self._asked)
            if busy and time.monotonic() - self._last_heard > self.config.step_timeout_s:
                log.error("the engine has been silent for %g s; ending it", self.config.step_timeout_s)
                await self._end_hung()

    async def _end_hung(self) -> None:
        self._die("the engine hung")
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)
            await asyncio.to_thread(_reap, self._process, ABORT_GRACE_S)

    def _die(self, why: str) -> None:
        if self._dead is not None:
            return
        self._dead = why
        self.died.set()
        calls, self._calls = {*self._calls.values(), *self._transfers.values()}, {}
        self._transfers = {}
        for call in calls:
            call.fail(EngineDead(why))
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._turns.values()]
        for future in waiting:
            _reject(future, EngineDead(why))


def _resolve(future: asyncio.Future[T] | None, result: T) -> None:
    """Give the future its result, unless nothing waits for it any more."""
    if future is not None and not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any] | None, error: Exception) -> None:
    """Fail the future with the error, unless nothing waits for it any more."""
    if future is not None and not future.done():
        future.set_exception(error)


def environment() -> dict[str, str]:
    """Ours, with this package importable from any place."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path}


def _reap(process: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def error_of(kind: str, message: str, param: str | None) -> BackendError:
    """The error that another process raised, by its class name."""
    found = getattr(errors, kind, BackendError)
    if not (isinstance(found, type) and issubclass(found, BackendError)):
        return BackendError(message)
    return found(message, param=param) if issubclass(found, RequestError) else found(message)


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
