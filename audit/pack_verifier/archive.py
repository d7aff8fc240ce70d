"""The files of a pack, in its zip or in the folder that it was unpacked to. What they may unpack to is bounded."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import BinaryIO

from audit.pack_verifier.fault import Broken

BUFFER = 1 << 16  # bytes; reading a line of a zip directly is slow
MAX_WHOLE = 64 << 20  # bytes of a file that is read as a whole; longer ones are read piece by piece


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
            return io.BufferedReader(self.zip.open(name), BUFFER)  # type: ignore[type-var]
        except (KeyError, OSError):
            raise Broken("the file " + name + " is missing") from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
            raise Broken("the file " + name + " cannot be unpacked") from None

    def read(self, name: str) -> bytes:
        """The whole file. Raises Broken for one that is longer than MAX_WHOLE, before it fills memory."""
        with self.open(name) as file:
            data = file.read(MAX_WHOLE + 1)
        if len(data) > MAX_WHOLE:
            raise Broken(
                "the file " + name + " is longer than " + str(MAX_WHOLE >> 20) + " MiB, which none of a pack is"
            )
        return data
