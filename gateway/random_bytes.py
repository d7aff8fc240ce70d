"""Random bytes of the operating system, fetched by the page: a request needs few, several times.

Each call of `os.urandom` gives the interpreter to another thread, which costs a busy gateway far more than the bytes.
"""

import os
import threading

PAGE = 4096


class RandomBytes:
    """Never gives the same bytes twice, also not to a process that was forked. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page = b""
        self._at = 0
        os.register_at_fork(after_in_child=self._forget)

    def take(self, count: int) -> bytes:
        """`count` bytes, at most PAGE."""
        with self._lock:
            start, end = self._at, self._at + count
            if end > len(self._page):
                self._page, start, end = os.urandom(PAGE), 0, count
            self._at = end
            return self._page[start:end]

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._page, self._at = b"", 0


_SOURCE = RandomBytes()


def random_bytes(count: int) -> bytes:
    return _SOURCE.take(count)


def random_hex(count: int) -> str:
    """`count` bytes as hex digits, two for each."""
    return _SOURCE.take(count).hex()
