"""The engine as a process of the server has it: another process has it, and this one asks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from backend.engine.core.progress import Stats
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine_config import EngineConfig
from backend.errors import EngineDead
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
    from_hub,
)
from backend.process.call import Call
from backend.process.engine_client import error_of
from backend.process.messages import AddSequence, Loading, Ready, Scrubbed, Sleep, Wake, frame, read
from backend.process.metrics import AnsweredRequest, Metrics


class RemoteEngine:
    """An `Engines` for requests. What is of the whole backend (scrub, sleep, adapters, its start and end) is asked of
    the main process as it was asked over HTTP (`forward`); called here it raises RuntimeError.

    Submitting never fails at once: what the engine refuses, the call's response gets as its first event.
    """

    def __init__(self, config: EngineConfig, writer: asyncio.StreamWriter, on_state: Callable[[State], None]) -> None:
        self.config: Final = config
        self.capacity: Final = config.max_num_seqs + config.max_waiting
        self._writer = writer
        self._on_state = on_state
        self._state = State(0, None, None, False, False, False, False, [], None)
        self._calls: dict[int, Call] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self.stats: Stats | None = None
        self.resting = self.leaving = False
        self.stop_asked = asyncio.Event()

    # What the main process said last

    @property
    def ready(self) -> Ready | None:
        return self._state.ready

    @property
    def loading(self) -> Loading | None:
        return self._state.loading

    @property
    def alive(self) -> bool:
        return self._state.alive

    @property
    def dead(self) -> bool:
        return self._state.dead

    @property
    def adapters(self) -> list[LoadedAdapter]:
        return self._state.adapters

    # Requests

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        number = self._number()
        call = Call(lambda choices: self._drop(number, choices), range(len(sequences)), sequences[0].project)
        self._calls[number] = call
        self.send(Submit(number, list(sequences)))
        return call

    def _drop(self, call: int, choices: list[int]) -> None:
        if choices and call in self._calls:
            self.send(Drop(call, choices))
        if call in self._calls and not self._calls[call].live:
            del self._calls[call]

    async def take_token(self, id: str, expires: float) -> str:
        """Why it was refused; "" if it was taken, which no process will do again."""
        taken: TokenTaken = await self._ask(lambda number: TakeToken(number, id, expires))
        return taken.why

    async def forward(
        self, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Answered:
        answered: Answered = await self._ask(lambda number: Forward(number, method, path, query, headers, body))
        return answered

    async def _ask(self, question: Callable[[int], ToHub]) -> Any:
        number = self._number()
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(question(number))
        try:
            return await future
        finally:
            del self._asked[number]

    def _number(self) -> int:
        self._next += 1
        return self._next

    def send(self, message: ToHub) -> None:
        self._writer.write(frame(message))

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Until the main process is gone; fails what waits for it then."""
        try:
            while True:
                self._handle(await read(reader, from_hub))
        except (asyncio.IncompleteReadError, OSError):
            gone = EngineDead("the main process of this backend is gone; restart the backend")
            for call in list(self._calls.values()):
                call.fail(gone)
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(gone)
            self.stop_asked.set()

    def _handle(self, message: FromHub) -> None:
        match message:
            case Delivered(events, stats):
                self.stats = stats
                for number, choice, progress in events:
                    call = self._calls.get(number)
                    if call is not None:
                        call.deliver(progress, choice)
                        if not call.live:
                            del self._calls[number]
            case CallFailed(number, kind, text, param):
                call = self._calls.pop(number, None)
                if call is not None:
                    call.fail(error_of(kind, text, param))
            case TokenTaken(number) | Answered(number):
                future = self._asked.get(number)
                if future is not None and not future.done():
                    future.set_result(message)
            case State(number):
                self._state = message
                self.resting, self.leaving = message.resting, message.leaving
                self._on_state(message)
                self.send(Seen(number))
            case Stop():
                self.stop_asked.set()
            case Setup():
                raise RuntimeError("a second setup; restart the backend, and report it")

    def require_alive(self) -> None:
        """Raises EngineDead if the engine is not running."""
        if not self.alive:
            raise EngineDead("the engine of this backend is not running; try again when /readyz answers 200")

    # Of the whole backend

    async def ping(self, timeout_s: float) -> None:
        raise _elsewhere()

    async def scrub(self, timeout_s: float) -> Scrubbed:
        raise _elsewhere()

    async def load_adapter(
        self, name: str, path: str, project: str = "", digest: str = "", *, timeout_s: float
    ) -> LoadedAdapter:
        raise _elsewhere()

    async def unload_adapter(self, name: str, project: str = "", *, timeout_s: float) -> None:
        raise _elsewhere()

    async def drain(self, grace_s: float, error: Exception) -> None:
        raise _elsewhere()

    async def change_state(self, to: type[Sleep] | type[Wake]) -> int:
        raise _elsewhere()

    async def start(self, on_loading: Callable[[Loading], None] | None = None) -> Ready:
        raise _elsewhere()

    async def stop(self) -> None:
        raise _elsewhere()

    def leave(self) -> None:
        raise _elsewhere()


def _elsewhere() -> RuntimeError:
    return RuntimeError("this is of the whole backend, not of one process that serves it; forward the call")


class RemoteMetrics(Metrics):
    """Counts in the main process, which shows the sums of all."""

    def __init__(self, model: str, engine: RemoteEngine, like: Metrics) -> None:
        super().__init__(model, lambda: engine.stats, lambda: engine.alive, meter=like.meter)
        self._engine = engine

    def count_request(self, outcome: str) -> None:
        self._engine.send(CountRequest(outcome))

    def count_answer(self, answer: AnsweredRequest) -> None:
        self._engine.send(CountAnswer(answer))
