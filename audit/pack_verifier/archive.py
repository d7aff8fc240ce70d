"""The files of a pack, in its zip or in the folder that it was unpacked to."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import BinaryIO

from audit.pack_verifier.fault import Broken


class Pack:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip = None if path.is_dir() else zipfile.ZipFile(path)

    def names(self) -> list[str]:
        if self.zip is None:
            files = (file for file in self.path.rglob("*") if file.is_file())
            return [file.relative_to(self.path).as_posix() for file in files]
        return [name for name in self.zip.namelist() if not name.endswith("/")]

    def open(self, name: str) -> BinaryIO:
        try:
            if self.zip is None:
                return (self.path / name).open("rb")
            return self.zip.open(name)  # type: ignore[return-value]
        except (KeyError, OSError):
            raise Broken("the file " + name + " is missing") from None

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()
