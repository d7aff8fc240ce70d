"""The process of a rank other than 0: ``python -m backend.process.rank_process FD BEATS``, started only by `ranks`.

It exits when rank 0 does: its connection closes, and on Linux the kernel kills it in case it does not read. If rank 0
hangs, this process kills it, because no other process can determine which rank hangs.
"""

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import torch

from backend.engine.parallel.computing import computing
from backend.engine.parallel.follower import Follower
from backend.engine.parallel.step_messages import Done, FromFollower, Refused, ToFollower
from backend.errors import BackendError
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.process.heartbeats import Heartbeats
from backend.process.parent import die_with_parent
from backend.process.ranks import SILENT_S, SILENT_STARTING_S, WATCH_S, Begin, frame, join_as, receive

log = logging.getLogger(__name__)

REFUSAL_S = 5.0  # rank 0 usually fails by itself for the same reason, and says it better


class Connection:
    """To rank 0: a `follower.Leader`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = msgspec.msgpack.Decoder(ToFollower)

    def begin(self) -> Begin:
        return msgspec.msgpack.decode(receive(self._socket), type=Begin)

    def receive(self) -> ToFollower:
        message: ToFollower = self._decoder.decode(receive(self._socket))
        return message

    def answer(self, message: FromFollower) -> None:
        try:
            self._socket.sendall(frame(message))
        except OSError:
            raise EOFError from None


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 is drained first, and then closes the connection
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    try:
        follow(connection, int(sys.argv[2]))
    except EOFError:
        os._exit(0)  # whatever is in flight waits for rank 0, which is gone


def follow(connection: Connection, beats: int) -> None:
    begin = connection.begin()
    hearts = Heartbeats(beats, begin.rank, begin.size)
    hearts.start()
    watch = Watch(hearts)
    threading.Thread(target=watch.run, name="rank 0", daemon=True).start()
    config = begin.config
    try:
        group = join_as(begin.rank, config, Path(begin.rendezvous))
        checkpoint = Checkpoint(resolve(config.model), config.max_model_len)
        made = computing(checkpoint, config, group, lambda stage, done, total: None)
    except (BackendError, torch.OutOfMemoryError) as error:
        connection.answer(Refused(type(error).__name__, str(error)))
        time.sleep(REFUSAL_S)
        sys.exit(1)
    connection.answer(Done())
    watch.ready = True
    Follower(made.runner, made.sleeper, connection, made.places, made.host).run()


class Watch:
    """Ends a rank 0 that hangs."""

    def __init__(self, beats: Heartbeats) -> None:
        self._beats = beats
        self._parent = os.getppid()
        self.ready = False

    def run(self) -> None:
        while True:
            time.sleep(WATCH_S)
            silent = self._beats.silence(0)
            if silent > (SILENT_S if self.ready else SILENT_STARTING_S):
                log.error("rank 0 (process %d) hangs: no sign of life for %.0f s; it is ended", self._parent, silent)
                if os.getppid() == self._parent:
                    os.kill(self._parent, signal.SIGKILL)
                os._exit(1)


if __name__ == "__main__":
    main()
