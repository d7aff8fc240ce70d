"""An engine process without a model: random tokens at a set rate, over the engine's own channel and messages.

Started by `backend serve`'s client in the place of `backend.process.engine_process`. RATE is the tokens a second of all
sequences together, 0: as many as are taken; VOCABULARY how many token ids there are.
"""

import os
import random
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from backend.engine.core.progress import Finish, Progress, Stats
from backend.engine_config import EngineConfig
from backend.process.messages import (
    AbortSequences,
    AddSequence,
    ChannelClosed,
    EngineChannel,
    FromEngine,
    Ping,
    Pong,
    Ready,
    Start,
    StepDone,
    ToEngine,
)
from backend.process.parent import die_with_parent

RATE = "DOMICILE_BENCH_RATE"
VOCABULARY = "DOMICILE_BENCH_VOCABULARY"
CONTEXT = 8192
IDLE_S = 0.05


@dataclass(slots=True)
class Running:
    left: int
    fresh: bool = True


class StandIn:
    def __init__(self, channel: EngineChannel, rate: float, vocabulary: int) -> None:
        self._channel, self._rate = channel, rate
        rng = random.Random(0)
        self._tokens = [rng.randrange(10, vocabulary - 10) for _ in range(65_537)]  # a prime, so no stream repeats
        self._at = self._steps = 0
        self._running: dict[int, Running] = {}
        self._waiting: dict[int, Running] = {}
        self._most = 0
        self.vocabulary = vocabulary

    def run(self) -> None:
        """Until the parent closes the channel."""
        (first,) = self._channel.receive(wait_s=None)
        assert isinstance(first, Start)
        self._begin(first.config)
        due = time.monotonic()
        while True:
            pause = due - time.monotonic() if self._running or self._waiting else IDLE_S
            if pause > 0 and (self._running or self._waiting):
                time.sleep(pause)
                pause = 0
            for message in self._channel.receive(wait_s=max(0.0, pause)):
                self._handle(message)
            self._admit()
            if self._running:
                now = time.monotonic()
                due = max(due, now - 0.1) + (len(self._running) / self._rate if self._rate else 0)
                self._channel.send(StepDone(self._step(now), self.stats))
            else:
                due = time.monotonic()

    def _begin(self, config: EngineConfig) -> None:
        self._most = config.max_num_seqs
        self._channel.send(Ready(CONTEXT, self.vocabulary, self.stats))

    @property
    def stats(self) -> Stats:
        running, waiting = len(self._running), len(self._waiting)
        return Stats(running, waiting, running, self._most, 0, 0, 0, self._steps)

    def _handle(self, message: ToEngine) -> None:
        answer: FromEngine | None = None
        match message:
            case AddSequence():
                self._waiting[message.id] = Running(message.params.max_tokens)
            case AbortSequences(ids):
                for id in ids:
                    self._running.pop(id, None)
                    self._waiting.pop(id, None)
            case Ping(number):
                answer = Pong(number, self.stats)
            case _:
                raise ChannelClosed
        if answer is not None:
            self._channel.send(answer)

    def _admit(self) -> None:
        for id in list(self._waiting)[: self._most - len(self._running)]:
            self._running[id] = self._waiting.pop(id)

    def _step(self, now: float) -> list[Progress]:
        self._steps += 1
        made, tokens, at = [], self._tokens, self._at
        for id, running in list(self._running.items()):
            at = (at + 1) % len(tokens)
            running.left -= 1
            finish = Finish.LENGTH if running.left == 0 else None
            made.append(Progress(id, tokens[at], finish, 0, started=now if running.fresh else None))
            running.fresh = False
            if finish is not None:
                del self._running[id]
        self._at = at
        return made


def main() -> None:
    die_with_parent()
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[1])))
    with suppress(ChannelClosed):
        StandIn(channel, float(os.environ[RATE]), int(os.environ[VOCABULARY])).run()


if __name__ == "__main__":
    main()
