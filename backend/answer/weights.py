"""Digests of the checkpoint that a backend runs, measured while it loads, for ``GET /weights``.

The engine reads the files itself, so what was hashed is what was loaded only if no file changed in between. Each file's
identity (device, inode, size, modification and change time) is noted before the load begins and compared at each
report. A file that is another by then leaves no digest, until the backend is started anew: an engine process that is
replaced reads the files again.
"""

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backend.wire import SIGNATURE_FILE, SIGNER_KEY_FILE, WeightsReport, is_of_checkpoint

log = logging.getLogger(__name__)

THREADS = 4
CHUNK = 4 << 20
MAX_SIGNATURE = 512 << 10
"""Bytes of a signature or a key that is handed on; what is larger is left out."""

FileIdentity = tuple[int, int, int, int, int]


class Stopped(Exception):
    """The backend ends before its checkpoint was read."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`sha256`: of the checkpoint, 64 hexadecimal digits (`checkpoint_digest`). `files`: SHA-256 by name."""

    sha256: str
    files: dict[str, str]


def files_of(path: Path) -> list[Path]:
    """The files that make a checkpoint, in the order of their names; a GGUF file is all of its own."""
    if not path.is_dir():
        return [path]
    found = (file for pattern in ("*", "*/*") for file in path.glob(pattern))
    return sorted(file for file in found if is_of_checkpoint(file.relative_to(path).as_posix()) and file.is_file())


def identities(path: Path) -> dict[str, FileIdentity]:
    """By name. Raises OSError where one cannot be looked at."""
    return {_name(path, file): _identity(file.stat()) for file in files_of(path)}


def measure(path: Path, stop: Callable[[], bool] = lambda: False) -> Measured:
    """Read all of the checkpoint: seconds for gigabytes. Raises OSError, and Stopped when `stop` says so."""
    files = files_of(path)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as threads:
        digests = list(threads.map(lambda file: _file_digest(file, stop), files))
    by_name = {_name(path, file): digest for file, digest in zip(files, digests, strict=True)}
    return Measured(checkpoint_digest(path, by_name), by_name)


def checkpoint_digest(path: Path, files: dict[str, str]) -> str:
    """SHA-256 over name and SHA-256 of each file, in the order of their names; of a GGUF file its own, for its name
    says nothing."""
    if not path.is_dir():
        return files[path.name]
    lines = (f"{digest}  {name}\n" for name, digest in sorted(files.items(), key=lambda each: Path(each[0])))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Weights:
    """The measurement of one backend. `begin` before the engine starts; then `measure` beside it."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None for weights that are drawn and not read, which have no digest."""
        self._path = path
        self._before: dict[str, FileIdentity] | None = None
        self._measured: Measured | None = None
        self._stop = threading.Event()
        self._done = asyncio.Event()

    def begin(self) -> None:
        """Note what the files are before the engine reads them."""
        if self._path is not None:
            with suppress(OSError):  # said by `measure`
                self._before = identities(self._path)

    async def measure(self) -> Measured | None:
        """Hash the files; None where they cannot be read, are none, or are not what `begin` saw."""
        try:
            if self._path is None:
                return None
            self._measured = await asyncio.to_thread(measure, self._path, self._stop.is_set)
            return self._measured if await asyncio.to_thread(self._is_unchanged) else None
        except OSError as error:
            log.warning(
                "no digest of the weights, for the checkpoint cannot be read: %s"
                "; let this process read the folder of --model",
                error.strerror,
            )
        except Stopped:
            pass
        finally:
            self._done.set()
        return None

    def stop(self) -> None:
        """End a measurement that is under way."""
        self._stop.set()

    async def report(self) -> WeightsReport:
        """What the backend runs; waits for the measurement."""
        await self._done.wait()
        return await asyncio.to_thread(self._report)

    @property
    def is_known(self) -> bool:
        return self._done.is_set()

    def _report(self) -> WeightsReport:
        if self._path is None or self._measured is None:
            return WeightsReport(sha256=None, why="unreadable" if self._path is not None else "dummy")
        if not self._is_unchanged():
            return WeightsReport(sha256=None, why="changed")
        folder = self._path if self._path.is_dir() else self._path.parent
        return WeightsReport(
            sha256=self._measured.sha256,
            files=self._measured.files,
            signature=_text(folder / SIGNATURE_FILE),
            signer_key=_text(folder / SIGNER_KEY_FILE),
        )

    def _is_unchanged(self) -> bool:
        try:
            return self._path is not None and self._before is not None and identities(self._path) == self._before
        except OSError:
            return False


def _name(path: Path, file: Path) -> str:
    return file.relative_to(path).as_posix() if path.is_dir() else file.name


def _identity(found: os.stat_result) -> FileIdentity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _file_digest(path: Path, stop: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        if stop():
            raise Stopped
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(buffer):
            yield buffer[:read]


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SIGNATURE + 1)
        return content.decode() if len(content) <= MAX_SIGNATURE else None
    except (OSError, UnicodeDecodeError):
        return None
