"""Processes of one group, which run a function of a test each, together.

On a machine with enough cards each has one of them, and NCCL; elsewhere they are of the CPU, and gloo.
"""

import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from backend.parallel.group import ParallelGroup
from backend.parallel.joining import join, leave
from backend.parallel.shard import Shard

WAIT_S = 120.0


def device_for(size: int) -> str:
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= size else "cpu"


def processes() -> Any:
    """Makes processes from one that has imported the libraries already: each would take seconds for it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "backend.engine.engine", "backend.process.ranks"])
    return context


class Crew:
    """ordered, peer_memory: of the group."""

    def __init__(self, size: int, **settings: bool) -> None:
        self.size, self.device = size, device_for(size)
        self._folder = tempfile.mkdtemp()
        context = processes()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = theirs, Shard(rank, size), Path(self._folder) / "rendezvous", self.device, settings
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(group, *arguments)`` returns on each rank; an error of any is raised here."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        results, errors = [], []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(WAIT_S), f"rank {rank} does not answer"
            right, result = pipe.recv()
            (results if right else errors).append(result)
        assert not errors, "\n".join(errors)
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Crews:
    """One of each size, made when it is first asked for."""

    def __init__(self) -> None:
        self._crews: dict[int, Crew] = {}

    def __getitem__(self, size: int) -> Crew:
        if size not in self._crews:
            self._crews[size] = Crew(size)
        return self._crews[size]

    def close(self) -> None:
        for crew in self._crews.values():
            crew.close()


def _work(pipe: Connection, shard: Shard, rendezvous: Path, device: str, settings: dict[str, bool]) -> None:
    torch.set_num_threads(1)
    group: ParallelGroup = join(shard, rendezvous, device, **settings)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            with torch.no_grad():  # weights are read by other threads
                answer = True, function(group, *arguments)
        except Exception:
            answer = False, f"rank {shard.rank}: {traceback.format_exc()}"
        pipe.send(answer)
    leave()
    os._exit(0)  # the libraries' threads take their time to end
