"""The host tier of a card's KV cache: pinned memory, and copies on streams of their own, beside live steps.

A block's layers lie apart in the cache. So they are gathered on the card, piece by piece, and blocks whose slots follow
one another cross to the host, or back, in one copy. Events order the copies and the steps on the card, and the host
waits for neither: the next step waits for stores, whose blocks it may overwrite; the first step behind a `HostSettle`
waits for that load. Stores do not wait for loads, so that a step that needs one more block does not.

What a load overwrites leaves on a stream of its own, so that the bus works both ways at once: a piece of a load is
written to its blocks as soon as what they held has been gathered.

Without CUDA the same code runs in order on the host.
"""

import contextlib
import time
import weakref
from bisect import bisect_left
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
        self._on_card = self._device.type == "cuda"
        self._stores, self._loads, self._evictions = (self._stream() for _ in range(3))
        if self._on_card:
            _pin(self, self._slots)

    @torch.inference_mode()
    def do(self, operation: HostOperation) -> None:
        steps: Any = torch.cuda.current_stream(self._device) if self._on_card else _Order()
        match operation:
            case HostStore(pairs):
                with _behind(self._stores, steps):
                    self._out(pairs)
                steps.wait_stream(self._stores)
            case HostLoad(number, stores, pairs):
                begin, end = self._event(), self._event()
                with _behind(self._loads, steps, self._stores):
                    begin.record(self._loads)
                    self._exchange(stores, pairs)
                    self._loads.wait_stream(self._evictions)
                    end.record(self._loads)
                self._underway[number] = begin, end
            case HostSettle(number):
                steps.wait_event(self._underway.pop(number)[1])
            case HostClear(slots):
                with _behind(self._stores, self._loads):
                    for slot in slots:
                        self._slots[slot].copy_(self._zero, non_blocking=True)

    def arrived(self, number: int) -> float | None:
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
        self._stores.synchronize()
        self._loads.synchronize()  # behind evictions

    def _stream(self) -> Any:
        return torch.cuda.Stream(self._device) if self._on_card else _Order()  # type: ignore[no-untyped-call]

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True) if self._on_card else _Moment()  # type: ignore[no-untyped-call]

    def _out(self, pairs: Pairs) -> None:
        for some in _pieces(sorted(pairs, key=lambda pair: pair[1]), self._piece):
            self._leave(*self._gathered(some))

    def _exchange(self, stores: Pairs, pairs: Pairs) -> None:
        """On the stream of loads: `pairs` come in, each piece of them behind the gathering of what its blocks held."""
        pairs = sorted(pairs)
        order = {block: at for at, (_, block) in enumerate(pairs)}
        leaving = sorted(stores, key=lambda pair: order.get(pair[0], -1))
        places = [order.get(block, -1) for block, _ in leaving]
        self._evictions.wait_stream(self._loads)
        outs, gathered = _pieces(leaving, self._piece), 0
        for at, some in enumerate(_pieces(pairs, self._piece), 1):
            while gathered < bisect_left(places, at * self._piece):
                gathered += self._evict(next(outs))
            self._in(some)
        for out in outs:
            self._evict(out)

    def _evict(self, some: Pairs) -> int:
        """How many have been gathered, which the stream of loads waits for; it does not wait for their copies."""
        with _on(self._evictions):
            on_card, slots = self._gathered(sorted(some, key=lambda pair: pair[1]))
            self._loads.wait_event(self._evictions.record_event())
            self._leave(on_card, slots)
        return len(some)

    def _gathered(self, some: Pairs) -> tuple[Tensor, list[int]]:
        """[blocks, slot_bytes] of this stream, so that its memory is not reused before the copies are made."""
        blocks = self._ids([block for block, _ in some])
        parts = [page.index_select(1, blocks).transpose(0, 1).flatten(1) for page in self._pages()]
        return torch.cat(parts, 1), [slot for _, slot in some]

    def _leave(self, on_card: Tensor, slots: list[int]) -> None:
        for at, first, count in _runs(slots):
            self._slots[first : first + count].copy_(on_card[at : at + count], non_blocking=True)

    def _in(self, some: Pairs) -> None:
        on_card = torch.empty(len(some), self.slot_bytes, dtype=torch.uint8, device=self._device)
        for at, first, count in _runs([slot for slot, _ in some]):
            on_card[at : at + count].copy_(self._slots[first : first + count], non_blocking=True)
        blocks = self._ids([block for _, block in some])
        for page, part in zip(self._pages(), torch.split(on_card, self._widths, 1), strict=True):
            page.index_copy_(1, blocks, part.reshape(len(some), self._layers, -1).transpose(0, 1))

    def _ids(self, blocks: list[int]) -> Tensor:
        return sent(blocks, torch.int64, self._device)


class _Order:
    """In a stream's place where everything is done at once."""

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self) -> None: ...

    def synchronize(self) -> None: ...


class _Moment:
    """In an event's place, there."""

    def record(self, stream: object) -> None:
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "_Moment") -> float:
        """Milliseconds."""
        return (end.seconds - self.seconds) * 1e3


@contextlib.contextmanager
def _behind(stream: Any, *others: Any) -> Iterator[None]:
    """On that stream, behind what is launched on the others so far."""
    for other in others:
        stream.wait_stream(other)
    with _on(stream):
        yield


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if isinstance(stream, _Order) else torch.cuda.stream(stream)


def _runs(slots: list[int]) -> Iterator[tuple[int, int, int]]:
    """(where, first slot, how many) of slots that follow one another."""
    begin = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1:
            yield begin, slots[begin], at - begin
            begin = at


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
