"""Storage of the wrapped keys of owners: a file each in a folder, or elsewhere behind the same protocol."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from audit.errors import KeyProviderError
from audit.files.new_file import open_private
from audit.files.secret_file import create_secret, read_secret, replace_secret

DESTROYED = b""
"""Content in the place of a key that was destroyed, so that no process makes its owner a new one."""


class WrappedKeys(Protocol):
    """By owner. Every method may raise KeyProviderError: the place is out of reach, or others may change it."""

    @property
    def place(self) -> str:
        """In words, for messages."""

    @property
    def is_shared(self) -> bool:
        """Whether several hosts use the same."""

    def name_of(self, owner: str) -> str:
        """Name of one key, in words, for messages."""

    def owners(self) -> list[str]:
        """All that ever had a key, sorted."""

    def read(self, owner: str) -> bytes | None:
        """None if the owner never had a key."""

    def create(self, owner: str, content: bytes) -> bytes:
        """What is kept now: `content`, or what was there, which is not changed."""

    def replace(self, owner: str, content: bytes) -> None:
        """The old content is gone from the place itself; backups of it may hold it."""

    def changing(self) -> AbstractContextManager[None]:
        """While it lasts no other process changes a key here.

        Who also holds the lock of the value store took that one first, so that no two wait for each other.
        """


class KeyFolder:
    """``OWNER.kek`` in a folder of one machine, mode 0600."""

    is_shared = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        return str(self._folder)

    def name_of(self, owner: str) -> str:
        return str(self._path(owner))

    def owners(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.kek"))

    def read(self, owner: str) -> bytes | None:
        try:
            return read_secret(self._path(owner))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyProviderError(
                f"the key of {owner} cannot be read: {error}; let this process read the folder keys"
            ) from error

    def create(self, owner: str, content: bytes) -> bytes:
        return create_secret(self._path(owner), content)

    def replace(self, owner: str, content: bytes) -> None:
        replace_secret(self._path(owner), content)

    @contextmanager
    def changing(self) -> Iterator[None]:
        try:
            lock = open_private(self._folder / ".lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise KeyProviderError(
                f"the keys in {self._folder} cannot be changed: {error}; let this process write to it"
            ) from error

    def _path(self, owner: str) -> Path:
        return self._folder / f"{owner}.kek"
