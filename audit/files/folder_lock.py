"""A lock on a folder: one process at a time changes what is in it.

The lock is the folder's own (`flock`), so it needs no file, works in a folder that cannot be written, and ends with the
process that holds it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUse(OSError):
    """Another process holds the lock of the folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; waits for another process that holds it. Raises OSError."""
    with _held(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def lock_folder_now(folder: Path) -> Iterator[None]:
    """As `lock_folder`, but raises FolderInUse instead of waiting."""
    with _held(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        yield


@contextmanager
def _held(folder: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise FolderInUse(f"another process is changing {folder}; wait until it has ended") from None
        yield
    finally:
        os.close(descriptor)
