"""Signs of life of an engine's ranks, in memory that they share: each writes the time, the others read it.

A process that was stopped, or whose interpreter hangs, writes no more, though its sockets stay open and the ranks that
wait for it in a collective would wait for ever.
"""

import mmap
import os
import struct
import threading
import time

BEAT_S = 0.25
TIME = struct.Struct("d")


def create(size: int) -> int:
    """A file descriptor of such memory for `size` ranks; other processes inherit it."""
    descriptor = os.memfd_create("domicile-heartbeats")
    os.ftruncate(descriptor, TIME.size * size)
    return descriptor


class Heartbeats:
    """rank: whose process this is. Times are of CLOCK_MONOTONIC, which is one for a host."""

    def __init__(self, descriptor: int, rank: int, size: int) -> None:
        self._memory = mmap.mmap(descriptor, TIME.size * size)
        self._rank = rank
        self._looked = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while True:
            TIME.pack_into(self._memory, TIME.size * self._rank, time.monotonic())
            time.sleep(BEAT_S)

    def silence(self, rank: int) -> float:
        """Seconds since that rank was last heard of; 0 before it has begun. To be asked often: after a pause of this
        process itself, as when its container was frozen, the others' silence counts from then."""
        now = time.monotonic()
        if now - self._looked > 4 * BEAT_S:
            self._awake_since = now
        self._looked = now
        (last,) = TIME.unpack_from(self._memory, TIME.size * rank)
        return now - max(last, self._awake_since) if last else 0.0

    _awake_since = 0.0
