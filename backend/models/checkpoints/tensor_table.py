"""Names, types and offsets of the tensors in a safetensors file, from its header (huggingface/safetensors, README).

Does not import torch, so that a file can be checked before anything is loaded.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints import safetensors

MAX_HEADER = 100 << 20  # what the reference implementation allows
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A tensor in a file: `size` bytes from `offset` on, of the type that the format calls `kind`."""

    name: str
    path: Path
    offset: int
    size: int
    kind: str
    shape: tuple[int, ...]


def table_entries(folder: Path) -> list[TableEntry]:
    """Entries of all shards. Raises ModelNotFound or CorruptCheckpoint, naming the file or tensor."""
    return [entry for shard in safetensors.shards(folder) for entry in _table(shard)]


def _table(path: Path) -> Iterator[TableEntry]:
    with path.open("rb") as file:
        yield from entries_of(file, path, path.stat().st_size)


def entries_of(file: BinaryIO, path: Path, size: int) -> Iterator[TableEntry]:
    """Entries of one file of `size` bytes, named `path` in messages. Raises CorruptCheckpoint."""
    head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise CorruptCheckpoint(f"{path.name}: its header is said to be {length} bytes long; copy the file again")
    try:
        header = json.loads(file.read(length))
    except ValueError:
        raise CorruptCheckpoint(f"{path.name}: its header is not JSON") from None
    if not isinstance(header, dict):
        raise CorruptCheckpoint(f"{path.name}: its header is not an object")
    for name, entry in header.items():
        if name != "__metadata__" and not name.endswith(safetensors.DERIVED):
            yield _entry(path, name, entry, 8 + length, size)


def _entry(path: Path, name: str, entry: Any, data: int, file_size: int) -> TableEntry:
    try:
        kind, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise CorruptCheckpoint(f"{path.name}: tensor {name} is not described") from None
    if kind not in ITEM_BYTES:
        raise CorruptCheckpoint(f"tensor {name} is {kind}, which is not one of {', '.join(ITEM_BYTES)}")
    size = prod(shape) * ITEM_BYTES[kind]
    if begin < 0 or end - begin != size:
        raise CorruptCheckpoint(f"{path.name}: tensor {name} is not where its file says")
    if data + end > file_size:
        raise CorruptCheckpoint(
            f"{path.name}: tensor {name} is not where its file says: it reaches byte {data + end} of "
            f"{file_size}; copy the whole file again"
        )
    return TableEntry(name, path, data + begin, size, kind, shape)
