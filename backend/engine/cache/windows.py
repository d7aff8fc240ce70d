"""Windows: memory through which one backend of a tenant hands KV blocks to another on the same host.

A window is made by the backend that computes prompts, for one backend that asks, and has some slots. On a CPU it is a
file without a name (memfd_create(2)), which the other opens through ``/proc/PID/fd`` and maps for reading; on a card it
is memory of that card, which the other maps by CUDA's inter-process handle (CUDA C++ Programming Guide, "Interprocess
Communication") and reads over NVLink or PCIe. So nothing lies under a name that others could open, and nothing is left
behind by a process that is killed. Who may map one: a process of the same user, which could read the other's memory
anyway (ptrace(2)), and to which the handle was sent inside mutual TLS, for a token that the gateway signed.
"""

import contextlib
import mmap
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from backend.engine.cache.window_handle import CARD, HOST, WindowHandle
from backend.errors import BackendError

SLOTS = 8
SLOT_BYTES = 8 << 20
ID_BYTES = 16
HEAD_BYTES = 4096  # in front of the slots: the id
WORD = 8
_MASK = (1 << 64) - 1
_weights: dict[torch.device, Tensor] = {}


class WindowUnusable(BackendError):
    """It cannot be made or mapped; blocks then travel in frames."""

    fix = "nothing has to be done, or leave --transfer-memory out"


def padded(size: int) -> int:
    """Bytes that the checksum of so many covers."""
    return -(-size // WORD) * WORD


@torch.inference_mode()
def sum_of_words(content: Tensor) -> Tensor:
    """A sum of all words, each times an odd number of its own, modulo 2**64: any one word that differs changes it. No
    defence against intent. content: uint8, [a multiple of `WORD`]. Returns int64, [], on the same device."""
    words = content.view(torch.int64)
    return (words * _weights_of(len(words), content.device)).sum()


def _weights_of(count: int, device: torch.device) -> Tensor:
    known = _weights.get(device)
    if known is None or len(known) < count:
        numbers = torch.arange(1, 1 + max(count, 1 << 12), dtype=torch.int64, device=device)
        mixed = numbers * -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number
        known = _weights[device] = (mixed ^ (mixed >> 29)) | 1
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # other streams use them, too
    return known[:count]


def unsigned(sum: Tensor) -> int:
    return int(sum) & _MASK


class HostWindow:
    """Of the host's memory. Made here, or another process's (`opened`), which is mapped for reading only."""

    def __init__(self, id: bytes, slots: int, slot_bytes: int, descriptor: int, memory: mmap.mmap) -> None:
        self.id, self.slots, self.slot_bytes = id, slots, slot_bytes
        self._descriptor, self._memory = descriptor, memory

    @classmethod
    def made(cls, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> "HostWindow":
        """Raises WindowUnusable."""
        id, size = secrets.token_bytes(ID_BYTES), HEAD_BYTES + slots * slot_bytes
        try:
            descriptor = os.memfd_create("domicile-window", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        except (OSError, AttributeError) as error:
            raise WindowUnusable(f"no memory can be shared ({error})") from None
        memory[:ID_BYTES] = id
        return cls(id, slots, slot_bytes, descriptor, memory)

    @classmethod
    def opened(cls, handle: WindowHandle) -> "HostWindow":
        """Raises WindowUnusable."""
        size = HEAD_BYTES + handle.slots * handle.slot_bytes
        descriptor = -1
        try:
            process, number = msgspec.msgpack.decode(handle.place, type=tuple[int, int])
            descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size != size:
                raise WindowUnusable("what the other backend named is no window of its own")
            memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise WindowUnusable(f"the other backend's window cannot be mapped ({type(error).__name__})") from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if memory[:ID_BYTES] != handle.id:
            raise WindowUnusable("what the other backend named is another window")
        return cls(handle.id, handle.slots, handle.slot_bytes, -1, memory)

    @property
    def handle(self) -> WindowHandle:
        place = msgspec.msgpack.encode((os.getpid(), self._descriptor))
        return WindowHandle(self.id, HOST, self.slots, self.slot_bytes, place)

    def part(self, slot: int, size: int) -> Tensor:
        """The first bytes of a slot, to write to. [size], uint8."""
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=self._at(slot))

    def copied(self, slot: int, size: int) -> Tensor:
        """The same in memory of this process alone."""
        at = self._at(slot)
        return torch.frombuffer(bytearray(memoryview(self._memory)[at : at + size]), dtype=torch.uint8)

    def _at(self, slot: int) -> int:
        return HEAD_BYTES + slot * self.slot_bytes

    def close(self) -> None:
        """Slots that were freed are zero already."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with contextlib.suppress(BufferError):  # tensors still refer to it: then it goes with the last of them
            self._memory.close()


class _CardPlace(msgspec.Struct, frozen=True, array_like=True):
    """What torch's storage says of itself to another process (`torch.multiprocessing.reductions`)."""

    handle: bytes
    size: int
    offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    event_needed: bool


class CardWindow:
    """Of a card's memory. Made here, or another process's (`opened`)."""

    def __init__(self, handle: WindowHandle, memory: Tensor, owner: Any = None) -> None:
        """owner: of the memory, kept as long as the window."""
        self.handle = handle
        self.id, self.slots, self.slot_bytes = handle.id, handle.slots, handle.slot_bytes
        self._memory, self._owner = memory, owner

    @classmethod
    def made(cls, device: torch.device, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> "CardWindow":
        """Allocate from a separate pool, since a mapping covers the whole allocation. Raises WindowUnusable."""
        try:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool, device):
                memory = torch.empty(slots * slot_bytes, dtype=torch.uint8, device=device)
            memory.zero_()
            torch.cuda.synchronize(device)
            shared: Any = memory.untyped_storage()
            _, handle, size, offset, counter, counter_offset, event, event_needed = shared._share_cuda_()
        except (RuntimeError, torch.OutOfMemoryError) as error:
            raise WindowUnusable(f"the card shares no memory ({str(error).splitlines()[0]})") from None
        place = _CardPlace(handle, size, offset, counter, counter_offset, event, event_needed)
        id = secrets.token_bytes(ID_BYTES)
        return cls(WindowHandle(id, CARD, slots, slot_bytes, msgspec.msgpack.encode(place)), memory, pool)

    @classmethod
    def opened(cls, handle: WindowHandle, device: torch.device) -> "CardWindow":
        """Raises WindowUnusable: the card, for one, cannot read the other's memory."""
        try:
            place = msgspec.msgpack.decode(handle.place, type=_CardPlace)
            opening: Any = torch.UntypedStorage._new_shared_cuda
            storage = opening(
                torch.cuda.current_device() if device.index is None else device.index,
                place.handle,
                place.size,
                place.offset,
                place.counter,
                place.counter_offset,
                place.event,
                place.event_needed,
            )
            memory = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
        except (RuntimeError, msgspec.MsgspecError) as error:
            raise WindowUnusable(f"the other card's window cannot be mapped ({str(error).splitlines()[0]})") from None
        if len(memory) != handle.slots * handle.slot_bytes:
            raise WindowUnusable("what the other backend named is no window of its own")
        return cls(handle, memory)

    def part(self, slot: int, size: int) -> Tensor:
        return self._memory[slot * self.slot_bytes :][:size]

    def copied(self, slot: int, size: int) -> Tensor:
        return self.part(slot, size).clone()

    def close(self) -> None:
        if self._owner is not None:
            self._memory.zero_()
            torch.cuda.synchronize(self._memory.device)
        self._memory = self._memory.new_empty(0)


Window = HostWindow | CardWindow


@dataclass(slots=True)
class PlacedRead:
    """A `runner.PlacedBlocks`. event: None where they have arrived."""

    sum: Tensor
    event: Any

    @property
    def arrived(self) -> bool:
        return self.event is None or bool(self.event.query())

    def take(self) -> int:
        if self.event is not None:
            self.event.synchronize()
        return unsigned(self.sum)


def made(device: torch.device) -> Window:
    """A window of the kind that caches on this device can be read into. Raises WindowUnusable."""
    return CardWindow.made(device) if device.type == "cuda" else HostWindow.made()


def opened(handle: WindowHandle, device: torch.device) -> Window:
    """Raises WindowUnusable."""
    wanted = CARD if device.type == "cuda" else HOST
    if handle.kind != wanted or not 0 < handle.slots <= 1 << 10 or not 0 < handle.slot_bytes <= 1 << 30:
        raise WindowUnusable(f"a window of kind {handle.kind[:16]!r} of such a size is not of use here")
    if handle.slot_bytes % WORD or len(handle.id) != ID_BYTES:
        raise WindowUnusable("the other backend's window has another form; run the same release on both backends")
    return CardWindow.opened(handle, device) if wanted == CARD else HostWindow.opened(handle)
