"""The bytes of the host tier (`core.host_tier`): slots, each with the keys and values of one KV block of all layers.

Here copies are made at once, for a cache in the host's memory. It is also the twin of `gpu.pinned_pages`, whose copies
run beside steps.
"""

import time
from typing import Protocol

import torch
from torch import Tensor

from backend.engine.core.host_tier import HostClear, HostLoad, HostOperation, HostSettle, HostStore

Pairs = list[tuple[int, int]]


class Cached(Protocol):
    """[layers, num_blocks, block_size, kv_heads, width] each; other memory after a sleep."""

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...


class HostPages:
    """A `core.host_tier.HostPages`, of a cache with content from now on."""

    def __init__(self, cache: Cached, slots: int) -> None:
        self._cache = cache
        self._layers = cache.keys.shape[0]
        self._widths = [part.nbytes // max(1, part.shape[1]) for part in (cache.keys, cache.values)]
        self._slots = torch.zeros(slots, sum(self._widths), dtype=torch.uint8)  # committed as it is written
        self._taken: dict[int, float] = {}  # seconds, of loads

    @property
    def slot_bytes(self) -> int:
        return self._slots.shape[1]

    @torch.inference_mode()
    def do(self, operation: HostOperation) -> None:
        match operation:
            case HostStore(pairs):
                self._out(pairs)
            case HostLoad(number, stores, pairs):
                begin = time.perf_counter()
                self._out(stores)
                self._in(pairs)
                self._taken[number] = time.perf_counter() - begin
            case HostSettle(number):
                self._taken.pop(number, None)
            case HostClear(slots):
                for slot in slots:
                    self._slots[slot].zero_()

    def arrived(self, number: int) -> float | None:
        return self._taken.get(number)

    @torch.inference_mode()
    def residue(self, slots: list[int]) -> int:
        return sum(int(self._slots[slot].count_nonzero()) for slot in slots if self._slots[slot].any())

    def forget(self) -> None:
        self._slots = torch.zeros_like(self._slots)

    def _out(self, pairs: Pairs) -> None:
        for block, slot in pairs:
            for page, place in zip(self._pages(), self._places(slot), strict=True):
                place.copy_(page[:, block])

    def _in(self, pairs: Pairs) -> None:
        for slot, block in pairs:
            for page, place in zip(self._pages(), self._places(slot), strict=True):
                page[:, block].copy_(place)

    def _pages(self) -> list[Tensor]:
        """[layers, num_blocks, bytes] each."""
        return [part.view(torch.uint8).flatten(2) for part in (self._cache.keys, self._cache.values)]

    def _places(self, slot: int) -> list[Tensor]:
        """[layers, bytes] each."""
        return [part.view(self._layers, -1) for part in torch.split(self._slots[slot], self._widths)]
