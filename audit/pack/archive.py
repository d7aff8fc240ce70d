"""The zip of an evidence pack, written in one go: whole, or not there."""

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from audit.errors import AuditError, StoreError
from audit.files.new_file import PRIVATE, draft_of, new_file


class Writer:
    """A zip that keeps the SHA-256 of what goes into it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.digests: dict[str, str] = {}

    @classmethod
    @contextmanager
    def create(cls, target: Path) -> Iterator["Writer"]:
        """In place once it is whole; nothing is left of one that is not. Raises AuditError, StoreError."""
        require_place(target)
        try:
            with new_file(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                yield cls(archive)
        except OSError as error:
            raise StoreError(
                f"the pack cannot be written: {error}; name a new file in a writable folder by --output"
            ) from error

    @contextmanager
    def stream(self, name: str) -> Iterator[Callable[[bytes], None]]:
        digest = sha256()

        def write(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        file: IO[bytes]
        with self._archive.open(name, "w", force_zip64=True) as file:
            yield write
        self.digests[name] = digest.hexdigest()

    def add(self, name: str, content: str | bytes) -> None:
        with self.stream(name) as write:
            write(content.encode() if isinstance(content, str) else content)


def require_place(target: Path) -> None:
    """Raises AuditError or StoreError if no file can be made at `target`: to be asked before an export is recorded."""
    if os.path.lexists(target):
        raise AuditError(f"{target.name} exists already; choose another name or remove it")
    if not target.absolute().parent.is_dir():
        raise AuditError(f"there is no folder {target.absolute().parent} to write the pack into; make it first")
    try:
        with draft_of(target, PRIVATE):
            pass
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}; choose another folder or name") from error
