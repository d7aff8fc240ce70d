"""The engine process: ``python -m backend.process.engine_process FD``, started only by `engine_client`.

It reads requests between steps, so a ping that is answered has been through the loop. It ends when its parent does:
the socket closes, and the kernel kills it if it does not look (Linux).
"""

import faulthandler
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from backend.engine.adapters import LoadedAdapter
from backend.engine.core.progress import Stage
from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine.engine import Engine
from backend.engine.warm_up import warm_up
from backend.engine_config import EngineConfig
from backend.errors import BackendError, CannotScrub, ConfigError, RequestError
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.process.messages import (
    AbortSequences,
    AdapterChanged,
    AddSequence,
    ChannelClosed,
    EngineChannel,
    Failed,
    LifecycleChanged,
    LifecycleRefused,
    LoadAdapter,
    Loading,
    Lost,
    Ping,
    Pong,
    Ready,
    Refused,
    Scrub,
    Scrubbed,
    Sleep,
    Start,
    StepDone,
    ToEngine,
    UnloadAdapter,
    Wake,
)
from backend.process.parent import die_with_parent
from backend.process.ranks import Ranks, require_ranks

LAST_WORD_S = 1.0


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
    """Load as told by the first message; None if that failed, which the parent then knows why."""
    first = channel.receive(wait=True)[0]
    if not isinstance(first, Start):
        raise ChannelClosed
    try:
        engine = starter.engine(first.config)
    except BackendError as error:
        channel.send(Failed(type(error).__name__, str(error)))
        return None
    warm_up(engine)
    channel.send(Ready(engine.max_model_len, engine.vocab_size, engine.stats, engine.vector_size))
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
        self._asked.append((number, self._engine.blocks.num_free, self._engine.scrubbing()))

    def __bool__(self) -> bool:
        return bool(self._asked)

    def go_on(self) -> None:
        """Do the next part, and answer when that was the last."""
        number, blocks, parts = self._asked[0]
        try:
            self._residue += next(parts)
        except StopIteration:
            self._channel.send(Scrubbed(number, blocks, self._residue))
        except CannotScrub as error:
            self._channel.send(LifecycleRefused(number, type(error).__name__, error.message))
        else:
            return
        self._asked.popleft()
        self._residue = 0


def run(engine: Engine, channel: EngineChannel) -> None:
    """Until the parent closes the channel."""
    scrubs = Scrubs(engine, channel)
    while True:
        waits = not engine.has_work and not scrubs and not engine.prepare()
        for message in channel.receive(wait=waits):
            handle(message, engine, channel, scrubs)
        if scrubs:
            scrubs.go_on()
        if engine.has_work:
            progress = engine.step()
            channel.send(StepDone(progress, engine.stats))


def handle(message: ToEngine, engine: Engine, channel: EngineChannel, scrubs: Scrubs) -> None:
    match message:
        case AddSequence(id, prompt, params, priority, leader, cache_root, project, adapter):
            try:
                engine.add(
                    id, prompt, params, priority=priority, leader=leader, cache_root=cache_root, project=project,
                    adapter=adapter,
                )  # fmt: skip
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
        case Start():
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
