"""One file from elsewhere into a part on disk: continued where it was cut, and whole only with the right digest."""

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO, Self

import httpx2

from backend.errors import FetchError
from backend.fetch.patience import Patience
from backend.fetch.progress import Told
from backend.fetch.source import RemoteFile
from backend.fetch.transport import Access, Interrupted, Transport, host_of, refuse_status

CHUNK = 1 << 20


class Stopped(Exception):
    """Another file failed, or the process is to end."""


class Download:
    """Files of one place, several at a time. `stop` ends all of them at the next chunk."""

    def __init__(self, transport: Transport, access: Access, patience: Patience) -> None:
        self._transport, self._access, self._patience = transport, access, patience
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def file(self, wanted: RemoteFile, part: Path, told: Told) -> str:
        """Its SHA-256, once all of it is in `part`, which keeps what has arrived if this fails.

        Raises FetchError and Stopped; OSError where the disk refuses.
        """
        with _Part(part, wanted, told) as kept:
            was_begun = kept.size > 0
            self._complete(wanted, kept)
            if was_begun and not kept.is_right():  # what an earlier attempt left may be of another content
                kept.restart()
                self._complete(wanted, kept)
            if not kept.is_right():
                kept.restart()
                raise FetchError(
                    f"{wanted.name} from {host_of(wanted.url)} is not what its digest says; fetch it again, and"
                    " if that does not help report it to the operator of that host"
                )
            return kept.finished()

    def _complete(self, wanted: RemoteFile, kept: "_Part") -> None:
        failures = 0
        while kept.size < wanted.size:
            before = kept.size
            try:
                self._continue(wanted, kept)
            except Interrupted as error:
                failures = 0 if kept.size - before >= self._patience.least else failures + 1
                if failures >= self._patience.attempts:
                    raise FetchError(f"{wanted.name}: {error}; run it again to continue from there") from None
                if failures:
                    self._stop.wait(self._patience.pause(failures))
            if self._stop.is_set():
                raise Stopped

    def _continue(self, wanted: RemoteFile, kept: "_Part") -> None:
        headers = {"range": f"bytes={kept.size}-"} if kept.size else {}
        if wanted.etag is not None:
            headers["if-match"] = wanted.etag
        with self._transport.stream(wanted.url, headers, self._access) as response:
            if response.status_code == 412:
                raise FetchError(f"{wanted.name} was replaced at {host_of(wanted.url)} meanwhile; run it again")
            if response.status_code == 416:
                kept.restart()
                raise Interrupted(f"{host_of(wanted.url)} has no such part of it")
            refuse_status(response, host_of(wanted.url))
            _begin(response, wanted, kept)
            self._receive(response, wanted, kept)

    def _receive(self, response: httpx2.Response, wanted: RemoteFile, kept: "_Part") -> None:
        window, before = time.monotonic(), kept.size
        try:
            for chunk in response.iter_raw(CHUNK):
                if self._stop.is_set():
                    raise Stopped
                kept.append(chunk)
                if time.monotonic() - window > self._patience.stall_s:
                    if kept.size - before < self._patience.least:
                        raise Interrupted(f"{host_of(wanted.url)} sends next to nothing")
                    window, before = time.monotonic(), kept.size
        except httpx2.HTTPError as error:
            raise Interrupted(f"{host_of(wanted.url)} broke off ({type(error).__name__})") from None
        if kept.size < wanted.size:
            raise Interrupted(f"{host_of(wanted.url)} broke off")


def _begin(response: httpx2.Response, wanted: RemoteFile, kept: "_Part") -> None:
    """Go on only from where the part ends. Raises FetchError for an answer that would not be the file."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchError(f"{host_of(wanted.url)} sends {wanted.name} packed; have it serve files as they are")
    if response.status_code == 200:
        if kept.size:
            kept.restart()
        return
    if response.headers.get("content-range", "") != f"bytes {kept.size}-{wanted.size - 1}/{wanted.size}":
        kept.restart()
        raise Interrupted(f"{host_of(wanted.url)} sent another part than was asked for")


class _Part:
    """What has arrived of a file, hashed as it comes."""

    def __init__(self, path: Path, wanted: RemoteFile, told: Told) -> None:
        self._wanted, self._told = wanted, told
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._file: BinaryIO = os.fdopen(descriptor, "r+b", buffering=0)
        self.size = 0
        self._begin()

    def __enter__(self) -> Self:
        while chunk := self._file.read(CHUNK):
            self._count(chunk)
        if self.size > self._wanted.size:
            self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, chunk: bytes) -> None:
        """Raises FetchError where it would be more than the file has."""
        if self.size + len(chunk) > self._wanted.size:
            self.restart()
            raise FetchError(
                f"{self._wanted.name} is longer at {host_of(self._wanted.url)} than it is listed; fetch it again"
            )
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]
        self._count(chunk)

    def restart(self) -> None:
        """Forget what has arrived."""
        self._file.truncate(0)
        self._file.seek(0)
        self._told(-self.size)
        self.size = 0
        self._begin()

    def is_right(self) -> bool:
        """Whether each digest that the place gave is that of what arrived."""
        of_git = self._wanted.git_sha1 in (None, self._git.hexdigest())
        return of_git and self._wanted.sha256 in (None, self._sha256.hexdigest())

    def finished(self) -> str:
        os.fsync(self._file.fileno())
        return self._sha256.hexdigest()

    def _begin(self) -> None:
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % self._wanted.size, usedforsecurity=False)  # as git names a blob

    def _count(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        if self._wanted.git_sha1 is not None:
            self._git.update(chunk)
        self.size += len(chunk)
        self._told(len(chunk))
