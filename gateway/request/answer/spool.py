"""Disk buffer for the rest of a large answer whose client reads slowly: encrypted, in an unnamed file.

The key exists only in this process's memory and is used for one answer, so a file left after a crash cannot be read.
Each piece is encrypted with AES-256-GCM, with its number as the nonce.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE = 64 << 10
"""Bytes of the answer that are in memory at a time."""
_TAG = 16


class Spool:
    """Encrypted temporary file. Blocking; use as a context manager, which closes the file."""

    def __init__(self, folder: Path, data: bytes | memoryview) -> None:
        """Write `data`. Raises OSError if the folder is not writable or the disk is full."""
        self._seal = AESGCM(AESGCM.generate_key(256))
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by `__exit__`
        try:
            for number, at in enumerate(range(0, len(data), PIECE)):
                self._write(self._seal.encrypt(_nonce(number), data[at : at + PIECE], None))
            self._file.seek(0)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the data, at most PIECE bytes at a time. Raises OSError, and InvalidTag if the file was changed."""
        number = 0
        while sealed := self._file.read(PIECE + _TAG):
            yield self._seal.decrypt(_nonce(number), sealed, None)
            number += 1

    def _write(self, sealed: bytes) -> None:
        rest = memoryview(sealed)
        while rest:
            rest = rest[self._file.write(rest) :]


def _nonce(number: int) -> bytes:
    return number.to_bytes(12)
