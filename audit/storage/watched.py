"""Watches on the stores of a running process: what was removed, replaced or put back to an older state is noticed.

A process that keeps using a file that its path no longer names, or with an older copy, acknowledges records that are
not there after its next start. So a store is looked at before and after each commit (`GuardedStore`), and more closely
by a round of its own (`Watches.look_closely`). While a watch finds fault, nothing is written and nothing acknowledged.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from audit.errors import StoreError
from audit.storage.store import Appended, LogEntry, OpenIntent, SignedCheckpoint, Store
from audit.tree.merkle import Frontier

logger = logging.getLogger(__name__)

OpenStore = Callable[[Path, str, str], Store]


FolderState = tuple[int, int, int]
"""Device, inode and change time (ns)."""
FolderStates = dict[str, FolderState | None]
"""State of folders by their path as one look found them; None of one that is not there."""


class StoreReplaced(StoreError):
    """The store is not the one that this process opened, or holds less than it did."""


class Watch(Protocol):
    """One database. Any thread may call it."""

    def look(self, seen: FolderStates | None = None) -> None:
        """In microseconds. Raises StoreReplaced. `seen`: folders that this round of looks has read already."""

    def look_closely(self) -> None:
        """Also at what the database holds. Raises StoreReplaced, or StoreError if it cannot be read."""

    def close(self) -> None: ...


class Watches:
    """All watches of a process. `begin` opens those of the record, once its stores are open for the first time."""

    def __init__(self, begin: Callable[[], Sequence[Watch]], others: Sequence[Watch] = ()) -> None:
        self._begin = begin
        self._watches = list(others)
        self._begun = False
        self._looking = threading.Lock()
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """What was found when a database was last looked at, in a sentence that names it; None when all is well."""
        return self._trouble

    def look(self) -> None:
        """Raises StoreReplaced, also for what the last closer look found."""
        if self._trouble is not None:
            raise StoreReplaced(self._trouble)
        seen: FolderStates = {}
        for watch in self._watches:
            watch.look(seen)

    def look_closely(self) -> None:
        """Sets `trouble`, or clears it: a file that was moved away and back is the same file."""
        with self._looking:
            found = None
            for watch in self._watches:
                try:
                    watch.look_closely()
                except StoreError as error:
                    found = found or str(error)
            if found is not None and found != self._trouble:
                logger.error(
                    "nothing is recorded and no call is answered: %s"
                    "; put the databases back as they were, or restart the gateway",
                    found,
                )
            if found is None and self._trouble is not None:
                logger.warning("the databases are again those that this process opened")
            self._trouble = found

    def guarding(self, open_store: OpenStore) -> OpenStore:
        """`open_store`, such that a store that was replaced is neither opened nor created again."""

        def opened(path: Path, node: str, boot: str) -> GuardedStore:
            if self._begun:
                self.look_closely()
                self.look()
            store = open_store(path, node, boot)
            try:
                if not self._begun:
                    self._watches += self._begin()
                    self._begun = True
            except BaseException:
                store.close()
                raise
            return GuardedStore(store, self)

        return opened

    def close(self) -> None:
        with self._looking:
            for watch in self._watches:
                watch.close()
            self._watches = []


class GuardedStore:
    """A store that acknowledges a commit only while every watched database is the one that was opened."""

    def __init__(self, store: Store, watches: Watches) -> None:
        self._store = store
        self._watches = watches

    def append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        self._watches.look()
        appended = self._store.append(entries, checkpoints)
        self._watches.look()
        return appended

    def newest(self) -> list[bytes]:
        return self._store.newest()

    def intents(self, node: str) -> list[OpenIntent]:
        return self._store.intents(node)

    def unsigned(self) -> dict[str, Frontier]:
        return self._store.unsigned()

    def consolidate(self) -> bool:
        return self._store.consolidate()

    def close(self) -> None:
        self._store.close()
