"""The main process's side: starts the processes that serve HTTP, gives each the tokens of its requests, and answers for
all of them what is of the whole backend.

Each process has a listening socket of its own on one port (SO_REUSEPORT), made here: the kernel spreads connections
over them, and a process that dies is replaced behind the same socket, so no connection that waits is lost. What it was
answering is: its sequences are aborted.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from backend.errors import BackendError, RequestError
from backend.frontends.messages import (
    Answered,
    CallFailed,
    CountAnswer,
    CountRequest,
    Delivered,
    Drop,
    Forward,
    FromHub,
    Seen,
    Setup,
    State,
    Stop,
    Submit,
    TakeToken,
    ToHub,
    TokenTaken,
    to_hub,
)
from backend.process.call import Call, Event
from backend.process.engine_client import environment
from backend.process.messages import frame, read
from backend.process.metrics import Metrics
from backend.process.replicas import Engines

log = logging.getLogger(__name__)

LOOK_S = 0.02  # between two looks at whether the engine's state has changed
SEEN_S = 2.0  # to wait for all processes to have seen a state
PAUSE_S = 1.0  # before a process that died is started again
STOP_S = 5.0  # for a process that was asked to end, beyond what its answers may take
MODULE = "backend.server.front"


@dataclass(frozen=True, slots=True)
class Backend:
    """What the processes are in front of.

    app: answers what is of the whole backend. take_token: raises BackendError for one that is refused. fingerprint: of
    the weights, once known. told: what each process is told at its start. leave: is called at the first signal.
    """

    engine: Engines
    app: ASGIApp
    metrics: Metrics
    take_token: Callable[[str, float], Awaitable[None]]
    fingerprint: Callable[[], str | None]
    told: dict[str, Any]
    leave: Callable[[], None]
    drain_s: float


@dataclass(slots=True, eq=False)
class Front:
    """One process."""

    process: subprocess.Popen[bytes]
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    calls: dict[int, Call] = field(default_factory=dict)
    events: list[tuple[int, int, Any]] = field(default_factory=list)
    seen: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, message: FromHub) -> None:
        self.writer.write(frame(message))


class Hub:
    """To `serving` what its uvicorn server is: `serve_all` runs until `should_exit`; `up`: all processes listen."""

    def __init__(self, backend: Backend, listeners: list[socket.socket]) -> None:
        self._backend = backend
        self._listeners = listeners
        self._fronts: set[Front] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = State(1, None, None, False, False, False, False, [], None)
        self._exit = asyncio.Event()
        self.up = asyncio.Event()

    @property
    def should_exit(self) -> bool:
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._exit.set()

    async def serve_all(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        self._look()
        keepers = [asyncio.create_task(self._keep(listener)) for listener in self._listeners]
        watch = asyncio.create_task(self._watch())
        try:
            await self._exit.wait()
        finally:
            watch.cancel()
            self._look()  # it leaves
            for front in self._fronts:
                front.send(Stop())
            await asyncio.gather(*keepers, watch, return_exceptions=True)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        self._backend.leave()
        self._exit.set()

    async def _keep(self, listener: socket.socket) -> None:
        """One process behind this socket, and another when it dies."""
        while not self._exit.is_set():
            front = await self._start(listener)
            self._fronts.add(front)
            ended = asyncio.create_task(self._serve(front))
            stop = asyncio.create_task(self._exit.wait())
            await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            if self._exit.is_set():
                front.send(Stop())
                await asyncio.wait({ended}, timeout=self._backend.drain_s + STOP_S)
            ended.cancel()
            stop.cancel()
            await asyncio.gather(ended, stop, return_exceptions=True)
            self._forget(front)
            status = await asyncio.to_thread(_reap, front.process)
            if not self._exit.is_set():
                log.error("a process that serves HTTP ended, status %d; it is started again", status)
                await asyncio.sleep(PAUSE_S)

    async def _start(self, listener: socket.socket) -> Front:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603, ASYNC220  (fork and exec, no waiting)
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(listener.fileno())],
                pass_fds=[theirs.fileno(), listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                env=environment(),
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        front = Front(process, writer, reader)
        front.send(Setup(self._backend.engine.config, self._backend.told))
        front.send(self._state)
        return front

    async def _serve(self, front: Front) -> None:
        """Handle what the process says, until it is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                self._handle(front, await read(front.reader, to_hub))

    def _handle(self, front: Front, message: ToHub) -> None:
        match message:
            case Submit():
                self._submit(front, message)
            case Drop(number, choices):
                call = front.calls.get(number)
                for choice in choices if call is not None else ():
                    call.stop(choice)  # type: ignore[union-attr]
                if call is not None and not call.live:
                    del front.calls[number]
            case CountRequest(outcome):
                self._backend.metrics.count_request(outcome)
            case CountAnswer(answer):
                self._backend.metrics.count_answer(answer)
            case TakeToken():
                self._begin(self._take(front, message))
            case Forward():
                self._begin(self._answer(front, message))
            case Seen(number):
                front.seen = number
                front.changed.set()
                if all(one.seen for one in self._fronts) and len(self._fronts) == len(self._listeners):
                    self.up.set()

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _submit(self, front: Front, asked: Submit) -> None:
        number = asked.call
        try:
            call = self._backend.engine.submit(asked.sequences)
        except BackendError as error:
            front.send(_failed(number, error))
            return
        front.calls[number] = call

        def sink(item: Event | Exception) -> None:
            if isinstance(item, Exception):
                front.calls.pop(number, None)
                self._flush(front)
                front.send(_failed(number, item))
                return
            if not front.events:
                asyncio.get_running_loop().call_soon(self._flush, front)
            front.events.append((number, *item))
            if not call.live:
                front.calls.pop(number, None)

        call.sink = sink

    def _flush(self, front: Front) -> None:
        """One message for all that a step brought to the process."""
        if front.events:
            events, front.events = front.events, []
            front.send(Delivered(events, self._backend.engine.stats))

    async def _take(self, front: Front, asked: TakeToken) -> None:
        why = ""
        try:
            await self._backend.take_token(asked.id, asked.expires)
        except BackendError as error:
            why = str(error)
        front.send(TokenTaken(asked.number, why))

    async def _answer(self, front: Front, asked: Forward) -> None:
        answered = await _run(self._backend.app, asked)
        self._look()
        await self._all_have_seen()
        front.send(answered)

    async def _all_have_seen(self) -> None:
        """So that what a call changed holds in every process once it is answered. One that does not listen yet will
        see it before it does."""
        until = time.monotonic() + SEEN_S
        for front in [front for front in self._fronts if front.seen]:
            while front in self._fronts and front.seen < self._state.number and time.monotonic() < until:
                front.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(front.changed.wait(), max(0.0, until - time.monotonic()))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        """Tell all processes if the engine's state is another."""
        engine, number = self._backend.engine, self._state.number
        found = State(
            number,
            engine.ready,
            engine.loading,
            engine.alive,
            engine.dead,
            engine.resting,
            engine.leaving,
            engine.adapters,
            self._backend.fingerprint(),
        )
        if found != self._state:
            self._state = State(number + 1, *[getattr(found, name) for name in State.__struct_fields__[1:]])
            for front in self._fronts:
                front.send(self._state)

    def _forget(self, front: Front) -> None:
        self._fronts.discard(front)
        for call in list(front.calls.values()):
            call.close()
        front.calls.clear()
        front.writer.close()


async def _run(app: ASGIApp, asked: Forward) -> Answered:
    """The application's whole answer."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": asked.method,
        "path": asked.path, "raw_path": asked.path.encode(), "root_path": "", "scheme": "http",
        "query_string": asked.query, "headers": asked.headers, "client": None, "server": None,
    }  # fmt: skip
    sent: list[Message] = []
    bodies: list[Message] = [{"type": "http.request", "body": asked.body, "more_body": False}]
    over = asyncio.Event()

    async def receive() -> Message:
        if bodies:
            return bodies.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    finally:
        over.set()
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    headers = [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]
    return Answered(asked.number, start["status"], headers, body)


def _failed(call: int, error: Exception) -> CallFailed:
    if isinstance(error, RequestError):
        return CallFailed(call, type(error).__name__, error.message, error.param)
    return CallFailed(call, type(error).__name__, str(error), None)


def _reap(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
