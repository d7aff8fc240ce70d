"""The files of a pack, in its zip or in the folder that it was unpacked to. What they may unpack to is bounded."""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from audit.pack_verifier.fault import Broken
from audit.pack_verifier.zip_layout import layout_faults

BUFFER = 1 << 16  # bytes; reading a line of a zip directly is slow
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a member of a damaged or foreign zip raises."""
MAX_WHOLE = 64 << 20  # bytes of a file that is read as a whole; longer ones are read piece by piece


class Pack:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip = None if path.is_dir() else zipfile.ZipFile(path)
        self.opened: list[BinaryIO] = []

    def names(self) -> list[str]:
        if self.zip is None:
            entries = [one for one in self.path.rglob("*") if one.is_symlink() or not one.is_dir()]
            return [one.relative_to(self.path).as_posix() for one in entries]
        return [name for name in self.zip.namelist() if not name.endswith("/")]

    def layout_faults(self) -> list[str]:
        """What a program that unpacks the zip could take for something else; nothing for a folder."""
        return [] if self.zip is None else list(layout_faults(self.path, self.zip))

    def open(self, name: str) -> BinaryIO:
        try:
            if self.zip is None:
                file = open_regular(self.path / name)
            else:
                file = io.BufferedReader(self.zip.open(name), BUFFER)  # type: ignore[type-var]
            self.opened.append(file)
            return file
        except (KeyError, OSError):
            raise Broken("the file " + name + " is missing") from None
        except DAMAGED:
            raise Broken("the file " + name + " cannot be unpacked") from None

    def close(self) -> None:
        """Close every file that was opened, those too that a fault left half read."""
        for file in self.opened:
            file.close()
        self.opened = []

    def read(self, name: str) -> bytes:
        """The whole file. Raises Broken for one that is longer than MAX_WHOLE, before it fills memory."""
        with self.open(name) as file:
            try:
                data = file.read(MAX_WHOLE + 1)
            except DAMAGED:
                raise Broken("the file " + name + " cannot be unpacked") from None
        if len(data) > MAX_WHOLE:
            raise Broken(
                "the file " + name + " is longer than " + str(MAX_WHOLE >> 20) + " MiB, which none of a pack is"
            )
        return data


def open_regular(path: Path) -> BinaryIO:
    """Raises OSError if there is none, Broken for what is not a regular file: a link leads out of the pack, a pipe
    never ends."""
    if path.is_symlink():
        raise Broken("the file " + path.name + " is a link, which no pack holds")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Broken("the file " + path.name + " is not a regular file, which no pack holds")
    return os.fdopen(descriptor, "rb")
