"""Digests of the checkpoint that a backend runs, measured while it loads, for ``GET /weights``.

The engine reads the files separately, so the digest is that of the loaded weights only if no file changed in between.
The identity of each file (device, inode, size, modification and change time) is recorded before the load and compared
at each report. After a change no digest is reported until the backend is restarted, because a replaced engine process
reads the files again.
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
"""Largest size in bytes of a signature or key file in the report; a larger file is left out."""

FileIdentity = tuple[int, int, int, int, int]


class Stopped(Exception):
    """The backend stopped before the whole checkpoint was read."""


@dataclass(frozen=True, slots=True)
class Measured:
    """sha256: digest of the checkpoint, 64 hexadecimal digits (`checkpoint_digest`). files: SHA-256 by file name."""

    sha256: str
    files: dict[str, str]


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint in the order of their names. A GGUF checkpoint is a single file."""
    if not path.is_dir():
        return [path]
    found = (file for pattern in ("*", "*/*") for file in path.glob(pattern))
    return sorted(file for file in found if is_of_checkpoint(file.relative_to(path).as_posix()) and file.is_file())


def identities(path: Path) -> dict[str, FileIdentity]:
    """Return the identity of each file by name. Raises OSError if a file cannot be examined."""
    return {_name(path, file): _identity(file.stat()) for file in files_of(path)}


def measure(path: Path, stop: Callable[[], bool] = lambda: False) -> Measured:
    """Hash the whole checkpoint, which takes seconds for gigabytes. Raises OSError, and Stopped once `stop` is true."""
    files = files_of(path)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as threads:
        digests = list(threads.map(lambda file: _file_digest(file, stop), files))
    by_name = {_name(path, file): digest for file, digest in zip(files, digests, strict=True)}
    return Measured(checkpoint_digest(path, by_name), by_name)


def checkpoint_digest(path: Path, files: dict[str, str]) -> str:
    """Return the SHA-256 over the name and the SHA-256 of each file, in the order of the names. The digest of a GGUF
    checkpoint is that of its file, without the name."""
    if not path.is_dir():
        return files[path.name]
    lines = (f"{digest}  {name}\n" for name, digest in sorted(files.items(), key=lambda each: Path(each[0])))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Weights:
    """Measurement of one backend's checkpoint. Call `begin` before the engine starts, then run `measure` beside it."""

    def __init__(self, path: Path | None) -> None:
        """path: None for random weights, which have no digest."""
        self._path = path
        self._before: dict[str, FileIdentity] | None = None
        self._measured: Measured | None = None
        self._stop = threading.Event()
        self._done = asyncio.Event()

    def begin(self) -> None:
        """Record the identity of the files before the engine reads them."""
        if self._path is not None:
            with suppress(OSError):  # reported by `measure`
                self._before = identities(self._path)

    async def measure(self) -> Measured | None:
        """Hash the files. Returns None if there are none, one cannot be read, or one changed since `begin`."""
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
        """Stop a running measurement."""
        self._stop.set()

    async def report(self) -> WeightsReport:
        """Return the report on the running checkpoint, after waiting for the measurement."""
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
