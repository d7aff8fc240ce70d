"""One live process a node name: two of one name would close each other's running calls as crashed."""

import fcntl
import os
import re
from pathlib import Path

from audit.errors import AuditUnavailable
from audit.stamp import NODE_PATTERN


class NodeLock:
    """Held from `acquire` to `release`, or until the process dies."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, folder: Path, node: str) -> "NodeLock":
        """Raises AuditUnavailable if the name is not one, or another process lives under it."""
        if not re.fullmatch(NODE_PATTERN, node):
            raise AuditUnavailable(f"{node!r} is not a node name: lower-case letters, digits, '.', '_' and '-' only")
        try:
            fd = os.open(folder / f"node-{node}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise AuditUnavailable(f"the lock of node {node} cannot be opened: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise AuditUnavailable(f"another process already writes this log as node {node}") from error
        return cls(fd)

    def release(self) -> None:
        os.close(self._fd)
