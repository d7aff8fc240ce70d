"""Weights from safetensors files straight to where they belong.

Several threads read the files side by side, each a stretch at a time into pinned memory of its own, and hand it to the
card without waiting; from the page cache that is bound by the bus, not by one core's copying. On the CPU they read into
the weights themselves. Tensors of another type than the model's come by way of a buffer and are converted on the
device. Of a matrix that is divided among cards a rank reads its part alone. The file's table is checked before anything
is read (format: huggingface/safetensors, README).
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.tensor_table import table_entries
from backend.parallel.shard import Share

READERS = 8
STRETCH = 16 << 20  # bytes a thread reads at a time
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip

OnProgress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: `size` bytes from `offset` on.

    stride: bytes from the beginning of a row to that of the next, of a part of a matrix that has not all of its
    columns; 0: the rows follow one another.
    """

    name: str
    path: Path
    offset: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: int = 0

    @property
    def row_size(self) -> int:
        """Bytes that follow one another in the file."""
        return self.size // self.shape[0] if self.stride else self.size

    def parts(self, share: Share | None) -> "list[Stored]":
        """The parts that make a rank's share of it, one below another."""
        if share is None:
            return [self]
        width = self.size // self.shape[0]
        first, last = share.columns or (0, self.shape[1] if len(self.shape) == 2 else 1)
        item = self.dtype.itemsize
        skipped, kept = (first * item, (last - first) * item) if len(self.shape) == 2 else (0, width)
        return [
            replace(
                self,
                offset=self.offset + begin * width + skipped,
                size=(end - begin) * kept,
                shape=(end - begin, last - first) if len(self.shape) == 2 else (end - begin,),
                stride=width if kept < width else 0,
            )
            for begin, end in share.rows
            if begin < end
        ]


def stored_tensors(folder: Path) -> list[Stored]:
    """Tensors of all shards. Raises ModelNotFound or CorruptCheckpoint, naming the file or tensor."""
    return [
        Stored(entry.name, entry.path, entry.offset, entry.size, DTYPES[entry.kind], entry.shape)
        for entry in table_entries(folder)
    ]


def placed(stored: Stored, place: Tensor, share: Share | None) -> list[tuple[Stored, Tensor]]:
    """What is read into `place`, which has the shape of the share; None: of all."""
    if share is None:
        return [(stored, place)]
    parts = stored.parts(share)
    return list(zip(parts, torch.split(place, [part.shape[0] for part in parts]), strict=True)) if parts else []


def fill(wanted: list[tuple[Stored, Tensor]], on_progress: OnProgress | None = None) -> None:
    """Read each stored tensor into its contiguous place of the same shape and type. Waits for all of them.

    Raises CorruptCheckpoint if a file has become shorter than its table says.
    """
    total = sum(stored.size for stored, _ in wanted)
    device = wanted[0][1].device if wanted else torch.device("cpu")
    work = [piece for stored, place in wanted for piece in _work(stored, _bytes(place))]
    done = 0
    with ThreadPoolExecutor(READERS, initializer=partial(on_card, device)) as pool:
        for size in pool.map(_read, work):
            done += size
            if on_progress:
                on_progress(done, total)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_card(device: torch.device) -> None:
    """Set the card of a new thread: it begins with the first card, on which pinned memory would make a context."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a thread reads at a time: `target`, in rows of `row` bytes that are `stride` apart in the file."""

    path: Path
    offset: int
    target: Tensor
    row: int
    stride: int


def _work(stored: Stored, place: Tensor) -> Iterator[_Piece]:
    row, stride = stored.row_size, stored.stride
    step = max(row, STRETCH // row * row) if stride else STRETCH
    for at in range(0, stored.size, step):
        target = place[at : at + min(step, stored.size - at)]
        offset = at // row * stride if stride else at
        yield _Piece(stored.path, stored.offset + offset, target, row if stride else len(target), stride)


def _bytes(place: Tensor) -> Tensor:
    return place.view(-1).view(torch.uint8)


def _read(piece: _Piece) -> int:
    target = piece.target
    on_cpu = target.device.type == "cpu"
    landing = target if on_cpu else torch.empty(len(target), dtype=torch.uint8, pin_memory=True)
    view = memoryview(landing.numpy().data)
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        for number, begin in enumerate(range(0, len(view), piece.row)):
            _read_row(descriptor, view[begin : begin + piece.row], piece.offset + number * piece.stride, piece.path)
    finally:
        os.close(descriptor)
    if not on_cpu:
        target.copy_(landing, non_blocking=True)  # torch reuses pinned memory only once copies from it are done
    return len(target)


def _read_row(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    at = 0
    while at < len(view):
        count = os.preadv(descriptor, [view[at:]], offset + at)
        if count == 0:
            raise CorruptCheckpoint(f"{path.name} ends early")
        at += count
