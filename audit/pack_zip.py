"""The zip of an evidence pack, written in one go: whole, or not there."""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from audit.errors import AuditError, StoreError


class Writer:
    """A zip that keeps the SHA-256 of what goes into it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.digests: dict[str, str] = {}

    @classmethod
    @contextmanager
    def create(cls, target: Path) -> Iterator["Writer"]:
        """In place once it is whole; nothing is left of one that is not."""
        if target.exists():
            raise AuditError(f"{target.name} exists already")
        if not target.absolute().parent.is_dir():
            raise AuditError(f"there is no folder {target.absolute().parent} to write the pack into")
        draft = target.with_name(f".{target.name}.part")
        try:
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
                yield cls(archive)
            draft.rename(target)
        except OSError as error:
            raise StoreError(f"the pack cannot be written: {error}") from error
        finally:
            draft.unlink(missing_ok=True)

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
