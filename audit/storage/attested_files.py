"""Cosignatures and timestamps of other parties: files beside the log, also in a database that hosts share.

Witnesses and time-stamping authorities answer one host; each host has a folder of its own. So that verification gives
the same result on every host, and each holds a copy outside of the database, the files are exchanged through it.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

WITNESSED = "witnessed"
TIMESTAMPS = "timestamps"
MAX_FILE = 1 << 20  # bytes; a token with its certificates takes a few thousand

_NAMES = {
    WITNESSED: re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\.note", re.ASCII),
    TIMESTAMPS: re.compile(r"[0-9]{12}-[0-9a-f]{16}\.(?:tsr|note)", re.ASCII),
}


class AttestedFile(NamedTuple):
    """`folder` is WITNESSED or TIMESTAMPS."""

    folder: str
    name: str
    content: bytes

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


def files_beside(folder: Path) -> list[AttestedFile]:
    """Those beside the log in `folder`; unchecked. Raises OSError."""
    return [
        AttestedFile(kind, file.name, file.read_bytes())
        for kind, patterns in ((WITNESSED, ["*.note"]), (TIMESTAMPS, ["*.tsr", "*.note"]))
        for pattern in patterns
        for file in sorted((folder / kind).glob(pattern))
        if not file.name.startswith(".")
    ]


def union(here: Sequence[AttestedFile], there: Sequence[AttestedFile]) -> list[AttestedFile]:
    """All of both, each once: of two notes of one witness and tree each is checked."""
    return list(dict.fromkeys([*here, *there]))


def missing(wanted: Iterable[AttestedFile], held: Iterable[AttestedFile]) -> list[AttestedFile]:
    """Those of `wanted` that are not in `held`, or only in an older state: a witness's note of a smaller checkpoint."""
    sizes = {(one.folder, one.name): _size(one) for one in held}
    return [
        one
        for one in wanted
        if (pattern := _NAMES.get(one.folder)) is not None
        and pattern.fullmatch(one.name)
        and len(one.content) <= MAX_FILE
        and _size(one) > sizes.get((one.folder, one.name), -1)
    ]


def _size(file: AttestedFile) -> int:
    """Tree size of the checkpoint in a witness's note; tokens never change."""
    lines = file.text.split("\n", 2) if file.folder == WITNESSED else []
    return int(lines[1]) if len(lines) > 1 and re.fullmatch(r"[0-9]{1,18}", lines[1], re.ASCII) else 0
