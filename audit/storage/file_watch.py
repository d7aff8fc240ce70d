"""A watch on one SQLite file (`audit.storage.watched`): its inode and its sidecars', and marks that only ever grow.

Inodes show a file that was removed, moved or replaced. They are read again only where the folder that holds them has
changed: an entry cannot be made, removed or renamed without a new change time of its folder (POSIX, unlink and rename).
That time has the granularity of the kernel's clock, so one that is younger than SETTLED_NS says nothing, and a round
(`look_closely`) reads the inodes whatever it is. An older copy written over the same inode, or restored by SQL,
shows in a table of marks. Each mark fills a page of its own, and mark n goes into slot "number of trailing zeros of n"
(the ruler sequence), so that some slot was last written about 1, 2, 4, 8 ... marks ago: whatever part of the file is
older than it was, some mark in it is.
"""

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from audit.errors import StoreError
from audit.files.database_file import connect_existing
from audit.files.wal import switch_to_wal
from audit.storage.watched import FolderState, FolderStates, StoreReplaced

BUSY_SECONDS = 2.0
SETTLED_NS = 2_000_000_000
"""Age of a folder's last change from which a further one cannot have the same time: file systems count in
milliseconds, FAT in two seconds."""
SLOTS = 16
PADDING = 3000  # bytes; with it no two marks share a page of 4096

_TABLE = (
    "CREATE TABLE IF NOT EXISTS watch_mark (slot INTEGER PRIMARY KEY NOT NULL, mark BIGINT NOT NULL,"
    " padding BLOB NOT NULL)"
)
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""Primary result codes that say nothing of the content: another process is at work, or the disk is full."""

Inode = tuple[int, int]


class FileWatch:
    """Keeps a connection of its own, so that the write-ahead log stays the same file while the watch is open."""

    def __init__(self, path: Path, name: str) -> None:
        """Begin with the database at `path` as it is now, called `name` in sentences. Raises StoreError."""
        self._path = path
        self._name = name
        self._files = tuple(f"{path}{ending}" for ending in ("", "-wal", "-shm"))
        self._folder = str(path.parent)
        self._unchanged: FolderState | None = None  # while the folder is like this, its entries are known to be ours
        self._marks: dict[int, int] = {}
        self._version: int | None = None
        self._lock = threading.Lock()
        try:
            self._db = connect_existing(path, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                switch_to_wal(self._db, BUSY_SECONDS)
                self._db.execute(_TABLE)
                self._marks = dict(self._db.execute("SELECT slot, mark FROM watch_mark").fetchall())
                self._inodes = tuple(_inode(file) for file in self._files)
                self._linked = any(map(os.path.islink, self._files))  # to another folder, which may change
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{name} cannot be watched: {error}; let this process read the data folder") from error

    def look(self, seen: FolderStates | None = None) -> None:
        folder: FolderState | None
        if seen is None or self._folder not in seen:
            try:
                found = os.stat(self._folder)
                folder = found.st_dev, found.st_ino, found.st_ctime_ns
            except FileNotFoundError:
                folder = None
            if seen is not None:
                seen[self._folder] = folder
        else:
            folder = seen[self._folder]
        if folder is not None and folder == self._unchanged:
            return
        self._look_at_files()
        settled = folder is not None and time.time_ns() - folder[2] > SETTLED_NS
        self._unchanged = folder if settled and not self._linked else None

    def _look_at_files(self) -> None:
        for file, known in zip(self._files, self._inodes, strict=True):
            found = _inode(file)
            if found == known:
                continue
            name = f"{self._name}{file.removeprefix(str(self._path))}"
            if found is None:
                raise StoreReplaced(
                    f"{name} was removed while this gateway has it open; stop the gateway, then put the file back or"
                    " restore a backup, and start it again"
                )
            raise StoreReplaced(
                f"{name} was replaced by another file while this gateway has it open; stop the gateway before"
                " a database is restored, then start it again"
            )

    def look_closely(self) -> None:
        with self._lock:
            self._look_at_files()
            try:
                with closing(connect_existing(self._path, timeout=BUSY_SECONDS)) as db:  # with nothing cached
                    self._compare(dict(db.execute("SELECT slot, mark FROM watch_mark").fetchall()))
                    if self._data_version() != self._version:
                        self._advance(db)
                        self._version = self._data_version()
            except sqlite3.Error as error:
                self._look_at_files()
                if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _PASSING:
                    raise StoreError(
                        f"{self._name} is damaged or was overwritten while this gateway has it open ({error});"
                        " stop the gateway, restore a backup, and start it again"
                    ) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _data_version(self) -> int:
        """Changes with each commit of any other connection (sqlite.org/pragma.html#pragma_data_version)."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _compare(self, marks: dict[int, int]) -> None:
        if any(marks.get(slot, 0) < mark for slot, mark in self._marks.items()):
            raise StoreReplaced(
                f"{self._name} was put back to an older state while this gateway has it open; stop the gateway before"
                " a database is restored, then start it again"
            )
        self._marks = marks

    def _advance(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        try:
            (top,) = db.execute("SELECT coalesce(max(mark), 0) FROM watch_mark").fetchone()
            mark = top + 1
            slot = min((mark & -mark).bit_length() - 1, SLOTS - 1)
            db.execute("INSERT OR REPLACE INTO watch_mark VALUES (?, ?, zeroblob(?))", (slot, mark, PADDING))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._marks[slot] = mark


def _inode(file: str) -> Inode | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
