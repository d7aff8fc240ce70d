"""SQLite database files: creation with mode 0600, and connections that never create one.

A process that closes any descriptor of a file loses all its POSIX locks on it, SQLite's included ("How To Corrupt
An SQLite Database File", 2.2, sqlite.org/howtocorrupt.html). Another process then believes that it is the last user of
the database, checkpoints it and deletes its write-ahead log, and what is written into that log afterwards is lost. So
an existing database is opened by SQLite only, and this module is the only place that creates one.
"""

import os
import sqlite3
import stat
import threading
from pathlib import Path
from urllib.parse import quote

from audit.files.new_file import make_private_folder, sync_folder

MODE = 0o600
SIDECARS = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside a database; they get the database's mode."""

_CREATING = threading.Lock()  # no other thread connects between the creation of a file and the close of its descriptor


def create_database_file(path: Path) -> None:
    """Create an empty file at `path`, mode 0600 whatever the umask, and its folder, mode 0700; both durably.

    A file that exists is looked at and not opened. Raises OSError: also for a symbolic or hard link, under which SQLite
    would keep a second write-ahead log of the same database, for anything that is not a regular file, and where there
    is no file but its log: of a database that was moved away in use. SQLite deletes that log as soon as it opens
    an empty database beside it.
    """
    make_private_folder(path.parent)
    with _CREATING:
        _require_no_log_alone(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        except FileExistsError:
            _require_regular(path)
            return
        try:
            os.fchmod(descriptor, MODE)
        finally:
            os.close(descriptor)
    sync_folder(path.parent)


def connect_existing(path: Path, *, timeout: float, check_same_thread: bool = True) -> sqlite3.Connection:
    """A connection in autocommit mode to a database that exists. Raises sqlite3.OperationalError if there is none."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=check_same_thread,
    )


def _require_no_log_alone(path: Path) -> None:
    if path.exists():
        return
    for log in (path.with_name(path.name + ending) for ending in ("-wal", "-journal")):
        if log.exists() and not path.exists():  # a process that makes them now makes the file first
            raise OSError(f"{path} is missing, but {log} is there and holds what was last written; put the file back")


def _require_regular(path: Path) -> None:
    for name in (path, *(path.with_name(path.name + sidecar) for sidecar in SIDECARS)):
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            raise OSError(f"{name} is a symbolic link; move the file itself there, or link its folder instead")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{name} is not a regular file; remove it")
        if found.st_nlink > 1:
            raise OSError(f"{name} has {found.st_nlink} names (hard links); remove the other names, or copy the file")
