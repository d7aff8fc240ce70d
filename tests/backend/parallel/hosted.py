"""An engine in a process of its own, with the other ranks that it may have, for what a test asks of it."""

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.process.ranks import Ranks
from tests.backend.parallel.crew import processes

WAIT_S = 300.0


class HostedEngine:
    def __init__(self, config: EngineConfig) -> None:
        context = processes()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_host, args=(theirs, config))  # no daemon: it has children
        self._process.start()
        theirs.close()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function(engine, *arguments)`` returns there."""
        self._pipe.send((function, arguments))
        assert self._pipe.poll(WAIT_S), "the engine does not answer"
        right, result = self._pipe.recv()
        assert right, result
        return result

    def close(self) -> None:
        self._pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()


def _host(pipe: Connection, config: EngineConfig) -> None:
    torch.set_num_threads(1)
    checkpoint = Checkpoint(Path(config.model), config.max_model_len)
    ranks = Ranks(config, on_lost=print) if config.ranks > 1 else None
    engine = Engine.from_checkpoint(checkpoint, config, team=ranks.join() if ranks else None)
    if ranks:
        ranks.await_ready()
    try:
        while True:
            function, arguments = pipe.recv()
            try:
                answer = True, function(engine, *arguments)
            except Exception:
                answer = False, traceback.format_exc()
            pipe.send(answer)
    except EOFError:
        if ranks:
            ranks.close()
        os._exit(0)
