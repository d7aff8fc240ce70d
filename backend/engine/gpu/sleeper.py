"""Sleep on a GPU: weights move to pinned host memory, the KV cache is dropped, both return to their old addresses.

What stays on the card is CUDA itself, kernels, graphs with their activations, and tables, which are zeroed.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from backend.engine.gpu.memory import GpuMemory
from backend.errors import CannotSleep
from backend.models.checkpoints.direct import OnProgress, on_card

SMALL = 1 << 20  # tensors below stay where they are: a mapping is no smaller than 2 MiB
PIECE = 64 << 20  # bytes a copy; a power of two, which is what torch's pinned memory comes in
THREADS = 8
HOST_RESERVE = 2 << 30  # bytes of the host that a sleeping engine leaves to others
MEMINFO = Path("/proc/meminfo")


class Clearable(Protocol):
    """A runner that can clear all tokens from its buffers on the GPU and in pinned memory."""

    def forget(self) -> None: ...


@dataclass(frozen=True)
class GpuSleeper:
    """An `engine.Sleeper`.

    weights, pages: memory of `tensors` and of the cache; an encoder has none.
    """

    runner: Clearable
    weights: GpuMemory
    tensors: list[Tensor]
    pages: GpuMemory
    cache: tuple[Tensor, ...]
    _kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (place, its bytes in pinned memory), asleep

    @torch.no_grad()
    def sleep(self, on_progress: OnProgress) -> int:
        total = sum(t.numel() * t.element_size() for t in self.tensors)
        if (room := available_host_memory()) < total + HOST_RESERVE:
            raise CannotSleep(
                f"the weights take {total} bytes of the host, and {room} are available"
                "; free memory of the host, or stop the backend instead"
            )
        torch.cuda.synchronize()
        try:
            self._kept.extend(_moved(_pieces(self.tensors), _to_host, total, on_progress))
        except RuntimeError as error:  # CUDA could not pin that much
            self._kept.clear()
            raise CannotSleep(
                f"{total} bytes of the host cannot be pinned: {error}"
                "; raise the limit of locked memory (ulimit -l), or stop the backend instead"
            ) from None
        for part in self.cache:
            part.view(torch.uint8).zero_()
        self.runner.forget()
        released = self.weights.release() + self.pages.release()
        torch.cuda.empty_cache()
        return released

    @torch.no_grad()
    def wake(self, on_progress: OnProgress) -> None:
        self.weights.restore()
        try:
            self.pages.restore()
        except Exception:
            self.weights.release()
            raise
        total = sum(kept.numel() for _, kept in self._kept)
        _moved(self._kept, _to_card, total, on_progress)
        for part in self.cache:
            part.view(torch.uint8).zero_()
        torch.cuda.synchronize()
        self._kept.clear()
        torch._C._host_emptyCache()


def move_to_pool(tensors: Iterable[Tensor], memory: GpuMemory) -> list[Tensor]:
    """Move the large ones among them into `memory`, in place for all their holders; returns those.

    Each is copied and its old memory given back before the next, so that the card never holds two models.
    """
    settled = []
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() >= SMALL:
            place = memory.empty(tensor.shape, tensor.dtype)
            place.copy_(tensor.data)
            tensor.data = place
            settled.append(tensor)
            torch.cuda.empty_cache()
    return settled


def available_host_memory() -> int:
    """Bytes of host memory that are available without swapping (proc(5))."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _pieces(tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """(bytes, the same): contiguous stretches of at most PIECE bytes, paired with what `_to_host` makes of them."""
    flat = [tensor.data.view(-1).view(torch.uint8) for tensor in tensors]
    return [(part, part) for whole in flat for part in torch.split(whole, PIECE)]


def _to_host(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    place, _ = pair
    kept = torch.empty(len(place), dtype=torch.uint8, pin_memory=True)
    kept.copy_(place, non_blocking=True)
    return place, kept


def _to_card(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    place, kept = pair
    place.copy_(kept, non_blocking=True)
    return pair


def _moved(
    pairs: list[tuple[Tensor, Tensor]], move: "_Move", total: int, on_progress: OnProgress
) -> list[tuple[Tensor, Tensor]]:
    """Each pair as `move` leaves it. Waits for the card."""
    done, moved = 0, []
    device = pairs[0][0].device if pairs else torch.device("cpu")
    with ThreadPoolExecutor(
        THREADS, initializer=partial(on_card, device)
    ) as pool:  # pinning is the host's work, and takes longer than copying
        for pair in pool.map(move, pairs):
            moved.append(pair)
            done += len(pair[1])
            on_progress(done, total)
    torch.cuda.synchronize()
    return moved


class _Move(Protocol):
    def __call__(self, pair: tuple[Tensor, Tensor], /) -> tuple[Tensor, Tensor]: ...
