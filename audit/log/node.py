"""One live process a node name: two of one name would close each other's running calls as crashed.

A lock file is removed with its lock. What a killed command left behind, the next process to take a name removes.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from audit.errors import AuditUnavailable
from audit.events.stamp import NODE_PATTERN
from audit.files.new_file import describe_error, open_private


class NodeLock:
    """Held from `acquire` to `release`, or until the process dies."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @classmethod
    def acquire(cls, folder: Path, node: str) -> "NodeLock":
        """Raises AuditUnavailable if the name is not one, or another process lives under it."""
        if not re.fullmatch(NODE_PATTERN, node):
            raise AuditUnavailable(
                f"the node name {node!r} has other characters; use lower-case letters, digits, '.', '_' and '-'"
            )
        try:
            fd = _locked(folder / f"node-{node}.lock")
        except OSError as error:
            raise AuditUnavailable(
                f"the lock of node {node} cannot be opened: {describe_error(error, folder)}"
                "; let this process write to it"
            ) from error
        if fd is None:
            raise AuditUnavailable(
                f"another process already writes this log as node {node}; give each process its own name by `node`"
            )
        _sweep(folder)
        return cls(fd, folder / f"node-{node}.lock")

    def release(self) -> None:
        """Remove the file while it is still locked: no other process can hold it, and a waiting one looks again."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._fd)


def _locked(path: Path) -> int | None:
    """A descriptor of the file at `path` that holds its lock; None if another process holds it. Raises OSError."""
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                return fd
        os.close(fd)  # its last holder removed it between the open and the lock


def _sweep(folder: Path) -> None:
    """Remove the lock files of commands that were killed. Those of gateways are few, and kept."""
    for path in folder.glob("node-cli-*.lock"):
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    path.unlink()
            finally:
                os.close(fd)
