"""Weights from safetensors files straight to where they belong.

Several threads read the files side by side, each a stretch at a time into pinned memory of its own, and hand it to the
card without waiting; from the page cache that is bound by the bus, not by one core's copying. On the CPU they read into
the weights themselves. Tensors of another type than the model's come by way of a buffer and are converted on the
device. The file's table is checked before anything is read (format: huggingface/safetensors, README).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.tensor_table import table_entries

READERS = 8
STRETCH = 16 << 20  # bytes a thread reads at a time
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
    return [
        Stored(entry.name, entry.path, entry.offset, entry.size, DTYPES[entry.kind], entry.shape)
        for entry in table_entries(folder)
    ]


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
