"""The host tier of a card's KV cache: pinned memory, and copies on streams of their own, beside live steps.

A block's layers lie apart in the cache. So they are gathered on the card, piece by piece, and each block crosses to the
host, or back, in one copy. Events order the copies and the steps on the card, and the host waits for neither: the next
step waits for stores, whose blocks it may overwrite; the first step behind a `HostSettle` waits for that load. Stores
do not wait for loads, so that a step that needs one more block does not.

Without CUDA the same code runs in order on the host, which is how it is tested.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from backend.engine.cache.host_pages import Cached, HostPages, Pairs
from backend.engine.cache.pages import PIECE_BYTES
from backend.engine.core.h2d import sent
from backend.engine.core.host_tier import HostClear, HostLoad, HostOperation, HostSettle, HostStore
from backend.errors import ConfigError


class PinnedPages(HostPages):
    """Raises ConfigError if the host's memory cannot be pinned."""

    def __init__(self, cache: Cached, slots: int) -> None:
        super().__init__(cache, slots)
        self._device = cache.keys.device
        self._zero = torch.zeros(self.slot_bytes, dtype=torch.uint8, device=self._device)
        self._piece = max(1, PIECE_BYTES // self.slot_bytes)
        self._underway: dict[int, tuple[Any, Any]] = {}  # events, of loads
        self._stores: Any = None
        if self._device.type == "cuda":
            self._stores, self._loads = (torch.cuda.Stream(self._device) for _ in range(2))  # type: ignore[no-untyped-call]
            _pin(self, self._slots)

    @torch.inference_mode()
    def do(self, operation: HostOperation) -> None:
        if self._stores is None:
            super().do(operation)
            return
        steps = torch.cuda.current_stream(self._device)
        match operation:
            case HostStore(pairs):
                with _behind(self._stores, steps):
                    self._out(pairs)
                steps.wait_stream(self._stores)
            case HostLoad(number, stores, pairs):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                with _behind(self._loads, steps, self._stores):
                    begin.record()
                    self._out(stores)
                    self._in(pairs)
                    end.record()
                self._underway[number] = begin, end
            case HostSettle(number):
                steps.wait_event(self._underway.pop(number)[1])
            case HostClear(slots):
                with _behind(self._stores, self._loads):
                    for slot in slots:
                        self._slots[slot].copy_(self._zero, non_blocking=True)

    def arrived(self, number: int) -> float | None:
        if self._stores is None:
            return super().arrived(number)
        begin, end = self._underway[number]
        return float(begin.elapsed_time(end)) / 1e3 if end.query() else None

    def residue(self, slots: list[int]) -> int:
        self._wait()
        return super().residue(slots)

    def forget(self) -> None:
        """All slots are zeroed, and stay pinned: to pin them again could fail, and takes long."""
        self._wait()
        self._slots.zero_()

    def _wait(self) -> None:
        if self._stores is not None:
            self._stores.synchronize()
            self._loads.synchronize()

    def _out(self, pairs: Pairs) -> None:
        for some in _pieces(pairs, self._piece):
            blocks, gathered = self._ids([block for block, _ in some]), []
            for page in self._pages():
                gathered.append(page.index_select(1, blocks).transpose(0, 1).flatten(1))
            on_card = torch.cat(gathered, 1)  # of this stream, so its memory is not reused before the copies are made
            for at, (_, slot) in enumerate(some):
                self._slots[slot].copy_(on_card[at], non_blocking=True)

    def _in(self, pairs: Pairs) -> None:
        for some in _pieces(pairs, self._piece):
            on_card = torch.empty(len(some), self.slot_bytes, dtype=torch.uint8, device=self._device)
            for at, (slot, _) in enumerate(some):
                on_card[at].copy_(self._slots[slot], non_blocking=True)
            blocks = self._ids([block for _, block in some])
            for page, part in zip(self._pages(), torch.split(on_card, self._widths, 1), strict=True):
                page.index_copy_(1, blocks, part.reshape(len(some), self._layers, -1).transpose(0, 1))

    def _ids(self, blocks: list[int]) -> Tensor:
        return sent(blocks, torch.int64, self._device)


@contextlib.contextmanager
def _behind(stream: Any, *others: Any) -> Iterator[None]:
    """On that stream, behind what is launched on the others so far."""
    for other in others:
        stream.wait_stream(other)
    with torch.cuda.stream(stream):
        yield


def _pieces(pairs: Pairs, size: int) -> Iterator[Pairs]:
    return (pairs[at : at + size] for at in range(0, len(pairs), size))


def _pin(owner: object, memory: Tensor) -> None:
    """Until `owner` is gone. In place, for torch's own pinned memory comes in powers of two. Raises ConfigError."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if status:
        raise ConfigError(
            f"{memory.nbytes} bytes of the host cannot be pinned (CUDA error {status})"
            "; lower --host-cache-bytes, or raise the limit of locked memory (ulimit -l)"
        )
    weakref.finalize(owner, runtime.cudaHostUnregister, memory.data_ptr()).atexit = False
