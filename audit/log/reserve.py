"""Space kept back, so that calls already running can still be closed on a full disk."""

import os
import sys
from pathlib import Path

from audit.files.new_file import open_private


class Reserve:
    """A file of `size` bytes that holds nothing. Raises OSError from `fill` when the space is not there."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Take the space (again). All or nothing."""
        if self._size == 0:
            return
        fd = open_private(self._path, os.O_RDWR)
        try:
            _allocate(fd, self._size)
        except OSError:
            os.ftruncate(fd, 0)
            raise
        finally:
            os.close(fd)

    def release(self) -> None:
        """Give the space back to the file system."""
        self._path.unlink(missing_ok=True)


def _allocate(fd: int, size: int) -> None:
    if sys.platform == "linux":
        os.posix_fallocate(fd, 0, size)
    else:
        zeros = bytes(1 << 20)
        while (missing := size - os.fstat(fd).st_size) > 0:
            os.pwrite(fd, zeros[:missing], size - missing)
