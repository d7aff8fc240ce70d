"""Folders on the path to a data folder, and in it, that other users than this one and root can rename.

A user who may write in a folder may put another file in place of one there, whatever the mode of the file.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def writable_by_others(data: Path) -> list[Path]:
    """Such folders among `data`, those in it that hold keys or databases, and those that it is in; sorted.

    A folder with the sticky bit (as /tmp) counts only if it is one of ours: in it a name can be changed by the owner of
    what it names alone, but new names can be added.
    """
    found = [one for one in _ours(data) if _is_loose(one, sticky_is_safe=False)]
    found += [one for one in data.resolve().parents if _is_loose(one, sticky_is_safe=True)]
    return sorted(found)


def _ours(data: Path) -> Iterator[Path]:
    yield data
    for name in ("audit", "secrets", "ca", "gateway"):
        top = data / name
        if top.is_dir():
            yield top
            yield from (one for one in top.iterdir() if one.is_dir() and not one.is_symlink())


def _is_loose(folder: Path, *, sticky_is_safe: bool) -> bool:
    try:
        seen = folder.stat()
    except OSError:
        return False
    if seen.st_uid not in (0, os.geteuid()):
        return True
    safe = sticky_is_safe and bool(seen.st_mode & stat.S_ISVTX)
    return bool(seen.st_mode & _OTHERS_WRITE) and not safe
