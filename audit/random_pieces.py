"""Random bytes for identifiers, drawn from the kernel many at a time.

A draw is a system call for which the interpreter's lock is given away, and taken back from the thread that got it: that
costs more than the identifier does. Not for keys, salts and nonces of ciphers, which must not be in memory before
their use.
"""

import os
from collections import deque

AHEAD = 256


class RandomPieces:
    """Call it for `size` random bytes. Any thread may: each piece is given once. A forked process draws its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pieces: deque[bytes] = deque()
        os.register_at_fork(after_in_child=self._pieces.clear)

    def __call__(self) -> bytes:
        try:
            return self._pieces.popleft()
        except IndexError:
            size = self._size
            drawn = os.urandom(AHEAD * size)
            self._pieces.extend(drawn[at : at + size] for at in range(size, len(drawn), size))
            return drawn[:size]
