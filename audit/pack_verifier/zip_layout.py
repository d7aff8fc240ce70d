"""Layout of the zip file of a pack: refused if another program could unpack it to something else.

A zip names each file twice: in its directory at the end, and before its data. This program reads by the directory,
others read from the beginning. Both see the same files only if the two agree and nothing else is in the zip.
"""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCAL = struct.Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, CRC-32, packed size, size, lengths of name and extra field."""
END_SIZE = 22
"""Bytes of the end of the directory, where it has no comment."""
IN_ZIP64 = 0xFFFFFFFF
LATER, MOST_LATER = 0x08, 24
"""The flag of a file whose sizes follow its data, and how long that is at most."""


def layout_faults(path: Path, archive: zipfile.ZipFile) -> Iterator[str]:
    """What is wrong with the zip at `path`, in sentences; nothing if all its readers unpack the same."""
    for one in archive.infolist():
        yield from _name_faults(one, archive)
    with open(path, "rb") as file:
        end, later = 0, False
        for one in sorted(archive.infolist(), key=lambda each: each.header_offset):
            if not _follows(one.header_offset, end, later):
                yield "there is something before the file " + one.filename + " that is no file of the pack"
            file.seek(one.header_offset)
            read = file.read(LOCAL.size)
            if len(read) < LOCAL.size:
                yield "the file " + one.filename + " cannot be unpacked"
                return
            head = LOCAL.unpack(read)
            rest = file.read(head[9] + head[10])
            if _differs(head, rest, one):
                yield "the file " + one.filename + " is described in two ways: programs unpack it differently"
            end = one.header_offset + LOCAL.size + head[9] + head[10] + one.compress_size
            later = bool(one.flag_bits & LATER)
        if not _follows(archive.start_dir, end, later):
            yield "there is something after the last file that is no file of the pack"
        file.seek(max(0, file.seek(0, 2) - END_SIZE))
        if file.read(4) != b"PK\x05\x06":
            yield "there is something after the end of the zip"


def _follows(place: int, end: int, later: bool) -> bool:
    """Whether there is nothing between `end` of a file and `place`, but for its sizes where they come `later`."""
    return place == end or (later and 0 < place - end <= MOST_LATER)


def _name_faults(one: zipfile.ZipInfo, archive: zipfile.ZipFile) -> Iterator[str]:
    name, kind = one.filename, stat.S_IFMT(one.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if name.endswith("/") else stat.S_IFREG):
        yield "the file " + name + " is a link or a device, which no pack holds"
    parts = name.split("/")
    if ".." in parts or parts[0] == "" or "\\" in name or ":" in name or one.orig_filename != name:
        yield "the name " + name + " leads out of the pack"
    if name.endswith("/") and name.rstrip("/") in archive.NameToInfo:
        yield "the name " + name.rstrip("/") + " is that of a file and of a folder"


def _differs(head: tuple[Any, ...], rest: bytes, one: zipfile.ZipInfo) -> bool:
    """Whether the header before the data says something else than the directory. Sizes may be in its zip64 field."""
    signature, _, flags, method, _, _, crc, packed, size, length, _ = head
    name = rest[:length].decode("utf-8" if one.flag_bits & 0x800 else "cp437", "replace")
    if (signature, flags, method, name) != (b"PK\x03\x04", one.flag_bits, one.compress_type, one.orig_filename):
        return True
    if one.flag_bits & LATER:
        return False
    sizes = [int(size), int(packed)]
    if IN_ZIP64 in sizes:
        sizes = _zip64(rest[length:], sizes)
    return (int(crc), sizes) != (one.CRC, [one.file_size, one.compress_size])


def _zip64(extra: bytes, sizes: list[int]) -> list[int]:
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1:
            large = [value for (value,) in struct.iter_unpack("<Q", extra[4 : 4 + length // 8 * 8])]
            return [large.pop(0) if one == IN_ZIP64 and large else one for one in sizes]
        extra = extra[4 + length :]
    return sizes
