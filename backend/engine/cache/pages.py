"""KV blocks as bytes: copied, zeroed and read back, whatever their data type.

A cache takes nearly all of a card, so every operation works in pieces and allocates little.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engine.cache.window_handle import WindowHandle
from backend.engine.cache.windows import PlacedRead, made, opened, padded, sum_of_words, unsigned
from backend.engine.core.h2d import pinned, sent
from backend.engine.core.runner import Moment, Window
from backend.models.layer_groups import LayerGroups, one_table

PIECE_BYTES = 16 << 20
"""What one piece copies; `count_nonzero` takes up to eight times as much on a GPU."""


class Pages:
    """Keys and values, [places, num_blocks, block_size, kv_heads, head_dim] each; a block has a place for each layer of
    its table (`LayerGroups`, by default one table of all). Also a `runner.BlockBytes`."""

    def __init__(self, keys: Tensor, values: Tensor, groups: LayerGroups | None = None) -> None:
        self.groups = groups or one_table(len(keys))
        self._parts = keys.view(torch.uint8), values.view(torch.uint8)
        self._device = keys.device
        self.dtype = str(keys.dtype).removeprefix("torch.")
        self._reads: Any = None  # the stream of reads, on a GPU, once there was one
        self._visits: Any = None  # the same of what is read from other cards
        self._writes: list[tuple[Any, Tensor]] = []  # pinned buffers whose copies may be in flight

    @property
    def layers(self) -> int:
        return len(self.groups.places)

    @property
    def block_bytes(self) -> tuple[int, int]:
        keys, values = (part[0, 0].numel() if part.numel() else 0 for part in self._parts)
        return keys, values

    def now(self) -> Moment:
        """On a GPU an event behind all that its stream was given; on a CPU all is done already."""
        if self._device.type != "cuda":
            return _DONE
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    @torch.inference_mode()
    def read(self, layer: int, blocks: list[int], moment: Moment) -> "ReadBlocks":
        """On a GPU by a stream of its own, so that what computes meanwhile does not wait for it."""
        place = self.groups.places[layer]
        if self._device.type != "cuda":
            keys, values = (part[place].index_select(0, torch.tensor(blocks)) for part in self._parts)
            return ReadBlocks(keys, values, None)
        with torch.cuda.stream(self._reading()):
            self._reads.wait_event(moment)
            chosen = self._ids(blocks)
            there = [part[place].index_select(0, chosen) for part in self._parts]
            here = [torch.empty(each.shape, dtype=torch.uint8, pin_memory=True) for each in there]
            for host, device in zip(here, there, strict=True):
                host.copy_(device, non_blocking=True)
                device.zero_()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return ReadBlocks(here[0], here[1], event)

    def _reading(self) -> Any:
        if self._reads is None:
            self._reads = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._reads

    def make_window(self) -> Window:
        return made(self._device)

    def open_window(self, handle: WindowHandle) -> Window:
        return opened(handle, self._device)

    @torch.inference_mode()
    def read_into(self, layer: int, blocks: list[int], moment: Moment, window: Window, slot: int) -> PlacedRead:
        size = len(blocks) * sum(self.block_bytes)
        place = window.part(slot, padded(size))
        if self._device.type != "cuda":
            self._gather(layer, blocks, place)
            return PlacedRead(sum_of_words(place), None)
        with torch.cuda.stream(self._reading()):
            self._reads.wait_event(moment)
            self._gather(layer, blocks, place)
            found = torch.empty((), dtype=torch.int64, pin_memory=True)
            found.copy_(sum_of_words(place), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return PlacedRead(found, event)

    def _gather(self, layer: int, blocks: list[int], place: Tensor) -> None:
        chosen = self._ids(blocks)
        for rows, own in zip(self._rows(layer), self._split(place, len(blocks)), strict=True):
            torch.index_select(rows, 0, chosen, out=own)

    def _rows(self, layer: int) -> list[Tensor]:
        """Keys and values of a layer, [blocks, words]: eight bytes at a time where blocks of both have whole words."""
        parts = [part[self.groups.places[layer]].flatten(1) for part in self._parts]
        in_words = all(part.shape[1] % 8 == 0 for part in parts)
        return [part.view(torch.int64) for part in parts] if in_words else parts

    def _split(self, place: Tensor, count: int) -> list[Tensor]:
        """Keys and values of so many blocks that lie one behind the other, each as `_rows` has them."""
        found, at = [], 0
        for rows in self._rows(0):
            size = count * rows.shape[1] * rows.element_size()
            found.append(place[at : at + size].view(rows.dtype).view(count, -1))
            at += size
        return found

    @torch.inference_mode()
    def write_from(self, layer: int, blocks: list[int], window: Window, slot: int, checksum: int) -> bool:
        """On a GPU the copy from the other card has a stream of its own: it is waited for, and not for the steps."""
        size = len(blocks) * sum(self.block_bytes)
        if self._device.type != "cuda":
            here = window.copied(slot, padded(size))
            same = unsigned(sum_of_words(here)) == checksum
        else:
            if self._visits is None:
                self._visits = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self._visits):
                here = window.copied(slot, padded(size))
                same = unsigned(sum_of_words(here)) == checksum  # waits for this stream alone
            here.record_stream(torch.cuda.current_stream())
        if same:
            chosen = self._ids(blocks)
            for rows, content in zip(self._rows(layer), self._split(here, len(blocks)), strict=True):
                rows.index_copy_(0, chosen, content)
        here.zero_()
        return same

    @torch.inference_mode()
    def clear(self, window: Window, slot: int, size: int) -> None:
        """Behind what was read into it, and before what will be."""
        with self._among_reads():
            window.part(slot, padded(size)).zero_()

    @torch.inference_mode()
    def left_in(self, window: Window, slot: int, size: int) -> int:
        with self._among_reads():
            return int(window.part(slot, padded(size)).count_nonzero())

    def _among_reads(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self._reading()) if self._device.type == "cuda" else contextlib.nullcontext()

    @torch.inference_mode()
    def write(self, layer: int, blocks: list[int], keys: bytes, values: bytes) -> None:
        chosen, place = self._ids(blocks), self.groups.places[layer]
        for part, content in zip(self._parts, (keys, values), strict=True):
            shape = (len(blocks), *part.shape[2:])
            if self._device.type == "cuda":
                part[place].index_copy_(0, chosen, self._through_pinned(content, shape))
            else:
                host = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)
                part[place].index_copy_(0, chosen, host)
                host.zero_()

    def _through_pinned(self, content: bytes, shape: tuple[int, ...]) -> Tensor:
        """On the device. The buffer is zeroed by the first `write` or `zero` that finds the copy done."""
        self._zero_buffers()
        buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        buffer.numpy().reshape(-1)[:] = np.frombuffer(content, np.uint8)
        found = pinned(buffer, self._device)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._writes.append((event, buffer))
        return found

    @torch.inference_mode()
    def _zero_buffers(self) -> None:
        while self._writes and self._writes[0][0].query():
            _zero_here(self._writes.pop(0)[1])

    @torch.inference_mode()
    def forget_buffers(self) -> None:
        """Zero the buffers that blocks were written through. Waits for copies in flight."""
        for event, buffer in self._writes:
            event.synchronize()
            _zero_here(buffer)
        self._writes.clear()

    @torch.inference_mode()
    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """(from, to) each; on a GPU behind the steps that are under way. No block is both."""
        for part in self._parts:
            for some in _pieces(pairs, part[:, 0].numel()):
                source, target = (self._ids(side) for side in zip(*some, strict=True))
                part.index_copy_(1, target, part.index_select(1, source))

    @torch.inference_mode()
    def zero(self, blocks: list[int]) -> None:
        self._zero_buffers()
        chosen = self._ids(blocks)
        for part in self._parts:
            part.index_fill_(1, chosen, 0)

    @torch.inference_mode()
    def residue(self, blocks: list[int]) -> int:
        """Bytes of them that are not zero. Waits for the device."""
        if not self._any_left(blocks):
            return 0
        found = torch.zeros((), dtype=torch.int64, device=self._device)
        for part in self._parts:
            for ids in self._some(blocks, part):
                for layer in part:
                    found += layer.index_select(0, ids).count_nonzero()
        return int(found)

    def _any_left(self, blocks: list[int]) -> bool:
        """Whether any byte of them is not zero: the usual answer is no, and eight bytes at a time tell it sooner."""
        if not blocks:
            return False
        flags = [
            words.index_select(0, ids).any()
            for part in self._parts
            for ids in self._some(blocks, part)
            for words in _in_words(part)
        ]
        return bool(torch.stack(flags).any())

    def _some(self, blocks: list[int], part: Tensor) -> list[Tensor]:
        """Their ids, as many at a time as make a piece of a layer."""
        chosen, size = self._ids(blocks), _blocks_of_a_piece(part[0, 0].numel())
        return [chosen[at : at + size] for at in range(0, len(blocks), size)]

    def _ids(self, blocks: Iterable[int]) -> Tensor:
        return sent(list(blocks), torch.int64, self._device)


class _Done:
    """The moment of a device that does everything at once."""


_DONE = _Done()


@dataclass(slots=True)
class ReadBlocks:
    """A `runner.PendingBlocks`. event: None where they have arrived."""

    keys: Tensor
    values: Tensor
    event: Any

    @property
    def arrived(self) -> bool:
        return self.event is None or bool(self.event.query())

    @torch.inference_mode()
    def take(self) -> tuple[bytes, bytes]:
        if self.event is not None:
            self.event.synchronize()
        keys, values = self.keys.numpy().tobytes(), self.values.numpy().tobytes()
        for buffer in (self.keys, self.values):
            _zero_here(buffer)
        return keys, values


def _zero_here(buffer: Tensor) -> None:
    """In this thread alone: torch divides half a megabyte among all cores of the host and waits for the slowest, 10 to
    50 ms where other processes have them."""
    buffer.numpy().fill(0)


def _in_words(part: Tensor) -> Tensor:
    """[layers, blocks, words], in the widest words that a block has a whole number of."""
    flat = part.flatten(2)
    return flat.view(torch.int64) if flat.shape[-1] % 8 == 0 else flat


def _blocks_of_a_piece(block_bytes: int) -> int:
    return max(1, PIECE_BYTES // block_bytes)


def _pieces(pairs: list[tuple[int, int]], block_bytes: int) -> Iterator[list[tuple[int, int]]]:
    size = _blocks_of_a_piece(block_bytes)
    return (pairs[at : at + size] for at in range(0, len(pairs), size))
