"""Weights from safetensors files straight to where they belong.

Several threads read the files side by side, each a stretch at a time into pinned memory of its own, and hand it to the
card without waiting; from the page cache that is bound by the bus, not by one core's copying. On the CPU they read into
the weights themselves. Tensors of another type than the model's come by way of a buffer and are converted on the
device. The file's table is checked before anything is read (format: huggingface/safetensors, README).
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints import safetensors

READERS = 8
STRETCH = 16 << 20  # bytes a thread reads at a time
MAX_HEADER = 100 << 20  # what the reference implementation allows
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip

OnProgress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: `size` bytes from `offset` on."""

    name: str
    path: Path
    offset: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> list[Stored]:
    """Of all shards. Raises ModelNotFound or CorruptCheckpoint, naming the file or tensor."""
    return [tensor for shard in safetensors.shards(folder) for tensor in _table(shard)]


def _table(path: Path) -> Iterator[Stored]:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise CorruptCheckpoint(f"{path.name}: its header is said to be {length} bytes long")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise CorruptCheckpoint(f"{path.name}: its header is not JSON") from None
    if not isinstance(header, dict):
        raise CorruptCheckpoint(f"{path.name}: its header is not an object")
    for name, entry in header.items():
        if name != "__metadata__" and not name.endswith(safetensors.DERIVED):
            yield _stored(path, name, entry, 8 + length, size)


def _stored(path: Path, name: str, entry: Any, data: int, file_size: int) -> Stored:
    try:
        kind, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise CorruptCheckpoint(f"{path.name}: tensor {name} is not described") from None
    if kind not in DTYPES:
        raise CorruptCheckpoint(f"tensor {name} is {kind}, which is not one of {', '.join(DTYPES)}")
    size = prod(shape) * DTYPES[kind].itemsize
    if begin < 0 or end - begin != size or data + end > file_size:
        raise CorruptCheckpoint(f"{path.name}: tensor {name} does not lie where its file says")
    return Stored(name, path, data + begin, size, DTYPES[kind], shape)


def fill(wanted: list[tuple[Stored, Tensor]], on_progress: OnProgress | None = None) -> None:
    """Read each stored tensor into its contiguous place of the same shape and type. Waits for all of them.

    Raises CorruptCheckpoint if a file has become shorter than its table says.
    """
    total = sum(stored.size for stored, _ in wanted)
    device = wanted[0][1].device if wanted else torch.device("cpu")
    work = [
        (stored.path, stored.offset + at, _bytes(place)[at : at + min(STRETCH, stored.size - at)])
        for stored, place in wanted
        for at in range(0, stored.size, STRETCH)
    ]
    done = 0
    with ThreadPoolExecutor(READERS) as pool:
        for size in pool.map(_read, work):
            done += size
            if on_progress:
                on_progress(done, total)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bytes(place: Tensor) -> Tensor:
    return place.view(-1).view(torch.uint8)


def _read(item: tuple[Path, int, Tensor]) -> int:
    path, offset, target = item
    on_cpu = target.device.type == "cpu"
    landing = target if on_cpu else torch.empty(len(target), dtype=torch.uint8, pin_memory=True)
    view = memoryview(landing.numpy().data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < len(view):
            count = os.preadv(descriptor, [view[at:]], offset + at)
            if count == 0:
                raise CorruptCheckpoint(f"{path.name} ends early")
            at += count
    finally:
        os.close(descriptor)
    if not on_cpu:
        target.copy_(landing, non_blocking=True)  # torch reuses pinned memory only once copies from it are done
    return len(target)
