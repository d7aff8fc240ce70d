"""Files of unknown origin: read within bounds, and only if they are regular files.

A link leads out of the folder that it is in, a device or pipe never ends, a huge file fills memory. The descriptor is
checked after it is open, so that what was checked is what is read.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


class UnsafeFile(OSError):
    """Not a regular file, or larger than what is expected there."""


@contextmanager
def open_untrusted(path: Path, *, follow_links: bool = False) -> Iterator[BufferedReader]:
    """`path` opened for reading. Raises UnsafeFile for anything that is no regular file, FileNotFoundError, OSError.

    `follow_links` is for folders whose links an orchestrator makes (Kubernetes mounts a Secret's files as links).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # a pipe without a writer must not be waited for
    if not follow_links:
        if path.is_symlink():
            raise UnsafeFile(f"{path} is a symbolic link; put the file itself there")
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFile(f"{path} is not a regular file; remove it")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_untrusted(path: Path, at_most: int, *, follow_links: bool = False) -> bytes:
    """The content of `path`. Raises as `open_untrusted`, and UnsafeFile if there are more than `at_most` bytes."""
    with open_untrusted(path, follow_links=follow_links) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise UnsafeFile(f"{path} has more than {at_most} bytes; it is not what is expected there")
    return content
