"""The engine process: ``python -m backend.process.engine_process FD``, started only by `engine_client`.

It reads requests between steps, so a ping that is answered has been through the loop. It ends when its parent does:
the socket closes, and the kernel kills it if it does not look (Linux).
"""

import faulthandler
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from backend.engine.core.progress import Stage
from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine.engine import Engine
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine.warm_up import warm_up
from backend.engine_config import EngineConfig
from backend.errors import BackendError, CannotScrub, ConfigError, RequestError
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.process.messages import (
    AbortSequences,
    AdapterChanged,
    AddSequence,
    BlocksTaken,
    BlocksWritten,
    ChannelClosed,
    EndFetch,
    EngineChannel,
    Failed,
    Fetched,
    FreeSlot,
    LifecycleChanged,
    LifecycleRefused,
    LoadAdapter,
    Loading,
    Lost,
    MakeWindow,
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
    TakeBlocks,
    ToEngine,
    UnloadAdapter,
    Wake,
    WindowMade,
    WindowOpened,
    WriteBlocks,
)
from backend.process.parent import die_with_parent
from backend.process.ranks import Ranks, require_ranks

LAST_WORD_S = 1.0
QUIET_S = 0.5
LIVE_SHARE = 0.05
COPY_S = 0.0005  # to wait for a copy from the device where there is nothing else to do


def main() -> None:
    faulthandler.enable()  # a watchdog's SIGABRT leaves a stack in the log; stacks hold no values
    die_with_parent()
    # Ctrl-C and a group-wide SIGTERM reach us too; the parent drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[1])))
    team = Starter(channel)
    try:
        engine = build(channel, team)
        if engine is not None:
            run(engine, channel)
    except ChannelClosed:
        pass
    except Exception:
        team.blame()
        raise
    team.close()


class Starter:
    """Builds the engine, and the other ranks if its model is divided among several."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._ranks: Ranks | None = None

    def engine(self, config: EngineConfig) -> Engine:
        """Raises ConfigError or ModelError."""
        checkpoint = Checkpoint(resolve(config.model), config.max_model_len)
        reporter = ProgressReporter(self._channel)
        if checkpoint.embedding is not None and config.max_adapters:
            raise ConfigError("adapters are of models that write text; leave --max-adapters out")
        if checkpoint.embedding is not None:
            return EmbeddingEngine.from_checkpoint(checkpoint, config, on_stage=reporter)
        if config.ranks == 1:
            return Engine.from_checkpoint(checkpoint, config, on_stage=reporter)
        require_ranks(config, checkpoint.config)
        self._ranks = Ranks(config, on_lost=lambda lost: self._channel.send_last(Lost(lost), LAST_WORD_S))
        engine = Engine.from_checkpoint(checkpoint, config, on_stage=reporter, team=self._ranks.join())
        self._ranks.await_ready()
        return engine

    def blame(self) -> None:
        """After an error: ends this process if another rank was lost, which is then why."""
        if self._ranks is not None:
            self._ranks.blame()

    def close(self) -> None:
        """Ends this process, too, where there are other ranks."""
        if self._ranks is not None:
            self._ranks.close()
            sys.stderr.flush()
            os._exit(0)


def build(channel: EngineChannel, starter: Starter) -> Engine | None:
    """Load as the first message says. Returns None if that failed; the parent was sent the reason."""
    first = channel.receive(wait_s=None)[0]
    if not isinstance(first, Start):
        raise ChannelClosed
    try:
        engine = starter.engine(first.config)
    except BackendError as error:
        channel.send(Failed(type(error).__name__, str(error)))
        return None
    warm_up(engine)
    channel.send(
        Ready(
            engine.max_model_len, engine.vocab_size, engine.stats, engine.vector_size, engine.layout, engine.hidden_size
        )
    )
    return engine


class ProgressReporter:
    """Reports the progress of each stage to the parent, at every percent."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._last: tuple[Stage, int] | None = None

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        now = stage, done * 100 // max(1, total)
        if now != self._last:
            self._last = now
            self._channel.send(Loading(stage, done, total))


class Scrubs:
    """Scrubs that are under way: a part of the first is done between two steps, so that no answer waits for all."""

    def __init__(self, engine: Engine, channel: EngineChannel) -> None:
        self._engine = engine
        self._channel = channel
        self._asked: deque[tuple[int, int, Iterator[int]]] = deque()  # number, blocks, what `Engine.scrubbing` gives
        self._residue = 0

    def add(self, number: int) -> None:
        self._asked.append((number, self._engine.num_scrubbed, self._engine.scrubbing()))

    def __bool__(self) -> bool:
        return bool(self._asked)

    def go_on(self) -> None:
        """Do the next part, and answer when that was the last."""
        number, blocks, parts = self._asked[0]
        try:
            self._residue += next(parts)
        except StopIteration:
            self._channel.send(StepDone([], self._engine.stats))  # the host's memory holds less than before
            self._channel.send(Scrubbed(number, blocks, self._residue))
        except CannotScrub as error:
            self._channel.send(LifecycleRefused(number, type(error).__name__, error.message))
        else:
            return
        self._asked.popleft()
        self._residue = 0


@dataclass
class Transfers:
    """Prompts that are sent to another backend, and room for those that come from one."""

    engine: Engine
    channel: EngineChannel
    _asked: dict[int, int] = field(default_factory=dict)  # sequence -> bytes

    def __bool__(self) -> bool:
        return bool(self._asked)

    def take(self, id: int, most_bytes: int) -> None:
        self._asked[id] = most_bytes

    def go_on(self) -> None:
        """Answer what can be answered now."""
        for id, most_bytes in list(self._asked.items()):
            taken = self.engine.exports.take(id, most_bytes)
            if taken is not None:
                del self._asked[id]
                self.channel.send(BlocksTaken(id, *taken))
        rooms = self.engine.make_room()
        for room in rooms:
            self.channel.send(RoomMade(room.id, room.first, room.end))
        if rooms and not self.engine.has_work:
            self.channel.send(StepDone([], self.engine.stats))  # else the gauges would stay as they were


@dataclass
class Preparations:
    """When the engine does what no answer waits for yet, which may take some tenths of a second of a large model.

    With nothing to do: once QUIET_S have gone by since the last message, and then until the next one, so that a request
    that follows another at once meets none. Between steps: only what a step lacked and did without, in LIVE_SHARE of
    the time.
    """

    engine: Engine
    clock: Callable[[], float] = time.monotonic
    _quiet_s: float | None = QUIET_S  # to wait for a message; None: there is nothing to prepare
    _not_before: float = 0.0

    def wait_s(self, idle: bool) -> float | None:
        """How long to wait for the next message."""
        return self._quiet_s if idle else 0

    def on_messages(self) -> None:
        self._quiet_s = QUIET_S

    def when_quiet(self) -> None:
        self._quiet_s = 0 if self.engine.prepare() else None

    def between_steps(self) -> None:
        begin = self.clock()
        if self.engine.runner.missed and begin >= self._not_before:
            self.engine.prepare()
            now = self.clock()
            self._not_before = now + (now - begin) / LIVE_SHARE


def run(engine: Engine, channel: EngineChannel) -> None:
    """Until the parent closes the channel."""
    scrubs, preparations, transfers = Scrubs(engine, channel), Preparations(engine), Transfers(engine, channel)
    while True:
        idle = not engine.has_work and not scrubs
        copying = idle and bool(transfers)
        messages = channel.receive(wait_s=COPY_S if copying else preparations.wait_s(idle))
        for message in messages:
            if not transferred(message, engine, channel, transfers):
                handle(message, engine, channel, scrubs)
        transfers.go_on()
        if messages:
            preparations.on_messages()
        elif idle and not copying:
            preparations.when_quiet()
        if scrubs:
            scrubs.go_on()
        if engine.has_work:
            progress = engine.step()
            channel.send(StepDone(progress, engine.stats))
            preparations.between_steps()


def transferred(message: ToEngine, engine: Engine, channel: EngineChannel, transfers: Transfers) -> bool:
    """Whether it was a message about blocks that travel, which has been carried out then."""
    match message:
        case TakeBlocks(id, most_bytes):
            transfers.take(id, most_bytes)
        case WriteBlocks(id, frame):
            channel.send(BlocksWritten(id, engine.imports.write(id, frame)))
        case FreeSlot(id, slot):
            engine.exports.free(id, slot)
        case MakeWindow(number, peer):
            channel.send(WindowMade(number, engine.windows.make(peer)))
        case OpenWindow(number, handle):
            channel.send(WindowOpened(number, engine.windows.open(handle)))
        case EndFetch(id, whole):
            channel.send(Fetched(id, engine.imports.end(id, whole=whole)))
        case _:
            return False
    return True


def handle(message: ToEngine, engine: Engine, channel: EngineChannel, scrubs: Scrubs) -> None:
    match message:
        case AddSequence(
            id, prompt, params, priority, leader, cache_root, project, adapter, exports, fetches, window, digest
        ):
            try:
                engine.add(
                    id,
                    prompt,
                    params,
                    priority=priority,
                    leader=leader,
                    cache_root=cache_root,
                    project=project,
                    adapter=adapter,
                    exports=exports,
                    fetches=fetches,
                    window=window,
                    adapter_digest=digest,
                )
            except RequestError as error:
                channel.send(Refused(id, type(error).__name__, error.message, error.param))
        case AbortSequences(ids):
            for id in ids:
                engine.abort(id)
            if not engine.has_work:
                channel.send(StepDone([], engine.stats))  # else the gauges would stay as they were
        case Scrub(number):
            scrubs.add(number)
        case Ping(number):
            channel.send(Pong(number, engine.stats))
        case Sleep(number):
            change_state(channel, number, engine, lambda: engine.sleep(partial(ProgressReporter(channel), Stage.SLEEP)))
        case Wake(number):
            change_state(channel, number, engine, lambda: engine.wake(partial(ProgressReporter(channel), Stage.WAKE)))
        case LoadAdapter():
            asked = message.name, message.path, message.project, message.digest
            change_adapters(channel, message.number, lambda: engine.load_adapter(*asked))
        case UnloadAdapter():
            change_adapters(channel, message.number, lambda: engine.unload_adapter(message.name, message.project))
        case _:
            raise ChannelClosed


def change_adapters(channel: EngineChannel, number: int, change: Callable[[], LoadedAdapter | None]) -> None:
    try:
        found = change()
    except RequestError as error:
        channel.send(LifecycleRefused(number, type(error).__name__, error.message))
    else:
        channel.send(AdapterChanged(number, found))


def change_state(channel: EngineChannel, number: int, engine: Engine, change: Callable[[], int | None]) -> None:
    try:
        released = change() or 0
    except BackendError as error:
        channel.send(LifecycleRefused(number, type(error).__name__, str(error)))
    else:
        channel.send(LifecycleChanged(number, released, engine.stats))


if __name__ == "__main__":
    main()
