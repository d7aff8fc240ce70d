"""The rest of a large answer whose client reads slowly: on disk until it is read, encrypted, in a file without a name.

The key is in this process's memory alone and used for one answer, so what is left of the file after a crash says
nothing. Each piece is sealed by AES-256-GCM under its number.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE = 64 << 10
"""Bytes of the answer that are in memory at once."""
_TAG = 16


class Spool:
    """Blocking; use as a context, which ends the file."""

    def __init__(self, folder: Path, data: bytes | memoryview) -> None:
        """Raises OSError where the folder takes no file, or the disk is full."""
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
        """The data, at most PIECE bytes at a time. Raises OSError, and InvalidTag where the file was changed."""
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
