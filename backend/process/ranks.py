"""The processes of an engine that is divided among several cards: started and watched by rank 0.

Rank 0 is the engine process. It starts the others, tells them each step (`engine.parallel`), and watches them: one that
dies, or is silent, ends the engine with its name, for the others would wait for it in a collective for ever.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from backend.engine.engine import Team
from backend.engine.parallel.step_messages import FromFollower, RankLost, Refused, ToFollower
from backend.engine_config import EngineConfig, weight_format
from backend.errors import ConfigError
from backend.models.config import ModelConfig
from backend.models.sharding import of_rank
from backend.parallel.group import ParallelGroup
from backend.parallel.joining import join, leave
from backend.parallel.shard import Shard, Stage
from backend.process import heartbeats
from backend.process.heartbeats import Heartbeats

log = logging.getLogger(__name__)

WATCH_S = 0.25
SILENT_S = 5.0  # of a rank that serves
SILENT_STARTING_S = 60.0  # of one that loads, compiles and captures, whose interpreter may be held for long
CLOSE_GRACE_S = 5.0
BLAME_S = 1.0  # in which a rank is found to be lost whose connections have closed
LOST_STATUS = 70  # EX_SOFTWARE
LENGTH_BYTES = 4


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message to a rank. rendezvous: path of the file by which the ranks find each other."""

    rank: int
    size: int
    rendezvous: str
    config: EngineConfig


_encoder = msgspec.msgpack.Encoder()
_from_follower = msgspec.msgpack.Decoder(FromFollower)


def frame(message: Begin | ToFollower | FromFollower) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def receive(sock: socket.socket) -> bytes:
    """The next message. Waits; raises EOFError when the other side is gone."""
    length = int.from_bytes(_exactly(sock, LENGTH_BYTES), "big")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            chunk = sock.recv(size - len(parts))
        except OSError:
            chunk = b""
        if not chunk:
            raise EOFError
        parts += chunk
    return bytes(parts)


def require_ranks(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError if the model does not divide as it is to, or the host has fewer cards than that takes."""
    of_rank(
        model,
        Shard(0, config.tensor_parallel_size),
        weight_format(config, model),
        stage=Stage(0, config.pipeline_parallel_size),
        spare=config.spare_experts,
    )
    there = torch.cuda.device_count()
    if config.device.startswith("cuda") and there < config.ranks:
        raise ConfigError(
            f"--tensor-parallel-size {config.tensor_parallel_size} needs as many cards, and {there} are visible; lower "
            "it, or set CUDA_VISIBLE_DEVICES to more"
        )


def join_as(number: int, config: EngineConfig, rendezvous: Path) -> ParallelGroup:
    """The group of rank `number`, and its place among the stages. Waits until all ranks have come."""
    stage, rank = divmod(number, config.tensor_parallel_size)
    return join(
        Shard(rank, config.tensor_parallel_size),
        rendezvous,
        config.device,
        ordered=config.batch_invariant,
        peer_memory=config.peer_memory,
        stage=Stage(stage, config.pipeline_parallel_size),
        spare=config.spare_experts,
    )


class _Rank:
    """Another rank's process, and the connection to it."""

    def __init__(self, number: int, beats: int) -> None:
        self.number = number
        self.socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "backend.process.rank_process", str(theirs.fileno()), str(beats)],
                pass_fds=[theirs.fileno(), beats],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=environment(),
            )
        finally:
            theirs.close()

    @property
    def name(self) -> str:
        return f"rank {self.number} (process {self.process.pid})"

    def end(self) -> str | None:
        """How its process has ended; None: it runs."""
        status = self.process.poll()
        if status is None:
            return None
        if status < 0:
            return f"{self.name} was killed by {signal.Signals(-status).name}"
        return f"{self.name} ended with status {status}{self._last_words()}"

    def _last_words(self) -> str:
        self.socket.setblocking(False)
        with contextlib.suppress(EOFError, msgspec.DecodeError):
            message = _from_follower.decode(receive(self.socket))
            if isinstance(message, Refused):
                return f": {message.message}"
        return ""


class Ranks:
    """An `engine.parallel.leader.Followers`.

    on_lost: called with the rank that was lost and the reason, from a thread of its own; then the process exits.
    """

    def __init__(self, config: EngineConfig, on_lost: Callable[[str], None]) -> None:
        self._config, self._on_lost = config, on_lost
        self._size = config.ranks
        self._folder = Path(tempfile.mkdtemp(prefix="domicile-ranks-"))  # mode 700
        self._ready = self._closing = False
        descriptor = heartbeats.create(self._size)
        self._beats = Heartbeats(descriptor, 0, self._size)
        self._ranks = [_Rank(number, descriptor) for number in range(1, self._size)]
        os.close(descriptor)
        self._beats.start()
        for rank in self._ranks:
            rank.socket.sendall(frame(Begin(rank.number, self._size, str(self._rendezvous), config)))
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the other ranks, from 1 on."""
        return [rank.process.pid for rank in self._ranks]

    @property
    def _rendezvous(self) -> Path:
        return self._folder / "rendezvous"

    def join(self) -> Team:
        """Waits until all ranks have come."""
        return Team(join_as(0, self._config, self._rendezvous), self)

    def await_ready(self) -> None:
        """Until the others have loaded what rank 0 has."""
        self.answers()
        self._ready = True

    def send(self, message: ToFollower) -> None:
        data = frame(message)
        for rank in self._ranks:
            _send(rank, data)

    def send_to(self, rank: int, message: ToFollower) -> None:
        _send(self._ranks[rank - 1], frame(message))

    def answers(self) -> list[FromFollower]:
        return [self._answer(rank) for rank in self._ranks]

    def answer_of(self, rank: int) -> FromFollower:
        return self._answer(self._ranks[rank - 1])

    def _answer(self, rank: _Rank) -> FromFollower:
        try:
            answer: FromFollower = _from_follower.decode(receive(rank.socket))
        except EOFError:
            raise RankLost(f"{rank.name} has closed its connection; its own lines in the log say why") from None
        return answer

    def close(self) -> None:
        """End the others; waits for them. On cards this process should then end by `os._exit`: NCCL does not leave
        a group while there are graphs with its operations."""
        self._closing = True
        self._watcher.join()
        for rank in self._ranks:
            rank.socket.close()
        if not self._config.device.startswith("cuda"):
            leave_quietly()
        for rank in self._ranks:
            try:
                rank.process.wait(CLOSE_GRACE_S)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def blame(self) -> None:
        """After an error in this process: if it came of the loss of another rank, that is noticed meanwhile, and ends
        this process. The others end with it."""
        self._watcher.join(BLAME_S)

    def _watch(self) -> None:
        while not self._closing:
            time.sleep(WATCH_S)
            lost = self._lost()
            if lost is not None and not self._closing:
                self._end(lost)

    def _lost(self) -> str | None:
        limit = SILENT_S if self._ready else SILENT_STARTING_S
        for rank in self._ranks:
            if ended := rank.end():
                return ended
            if (silent := self._beats.silence(rank.number)) > limit:
                return f"{rank.name} hangs: no sign of life for {silent:.0f} s"
        return None

    def _end(self, lost: str) -> None:
        log.error("%s; the engine ends", lost)
        with contextlib.suppress(Exception):
            self._on_lost(lost)
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(LOST_STATUS)  # the main thread waits in a collective, and cannot be woken


def _send(rank: _Rank, data: bytes) -> None:
    try:
        rank.socket.sendall(data)
    except OSError:
        raise RankLost(f"{rank.name} has closed its connection; its own lines in the log say why") from None


def leave_quietly() -> None:
    """A group whose other ranks are gone may say so while it is left."""
    with contextlib.suppress(RuntimeError):
        leave()


def environment() -> dict[str, str]:
    """Ours, with this package importable from any place."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path}
