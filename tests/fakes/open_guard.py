"""A Python audit hook that refuses to open by hand a database file that SQLite has open in the same process.

The close that follows would drop SQLite's locks (`audit.files.database_file`). SQLite's own opens raise no audit event,
so what this hook sees is `open`, `os.open`, `Path.read_bytes`, `shutil.copyfile` and their like, in product and tests.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ENDINGS = (".db", ".db-wal", ".db-shm")
FDS = Path("/proc/self/fd")


class OpenedByHand(RuntimeError):
    """The file is open in SQLite; read it through SQLite, or in another process."""


def install() -> None:
    """For the rest of the process: audit hooks cannot be removed. Without /proc nothing is checked."""
    if FDS.is_dir():
        sys.addaudithook(_check)


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(arguments[0])
    if not path.endswith(ENDINGS) or (isinstance(arguments[2], int) and arguments[2] & os.O_EXCL):
        return
    with suppress(OSError):
        wanted = os.stat(path)
        if (wanted.st_dev, wanted.st_ino) in _open_files():
            raise OpenedByHand(f"{path} is open in SQLite and was opened by hand")


def _open_files() -> set[tuple[int, int]]:
    found = set()
    for descriptor in os.listdir(FDS):
        with suppress(OSError):
            status = os.fstat(int(descriptor))
            found.add((status.st_dev, status.st_ino))
    return found
