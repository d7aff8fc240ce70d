"""Memory of a card that can be given back and taken again under the same addresses.

Captured graphs and tensors hold raw addresses. CUDA's virtual memory management (driver API, "Virtual Memory
Management") keeps addresses and memory apart: a range is reserved once, and memory is mapped into it, unmapped,
released and mapped again. So an engine can sleep with its graphs intact. PyTorch's own allocator does the same for its
expandable segments, but has no way to give back what tensors still refer to.
"""

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from backend.errors import CannotWake

PINNED, ON_DEVICE, READ_WRITE = 1, 1, 3  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, …_PROT_READWRITE
SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class GpuMemoryError(RuntimeError):
    """The driver refused; the message has its call and number."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} failed with CUDA driver error {status}")
        self.status = status


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    status = int(getattr(_driver(), name)(*arguments))
    if status:
        raise GpuMemoryError(name, status)


def supported(device: torch.device) -> bool:
    """Whether the card and its driver can do this. CUDA is up by now."""
    value = ctypes.c_int()
    _call("cuDeviceGetAttribute", ctypes.byref(value), SUPPORTED, device.index or 0)
    return bool(value.value)


class _Range:
    """`size` bytes of addresses, with memory behind them or without."""

    def __init__(self, device: int, size: int, properties: _Properties) -> None:
        self.size = size
        self._device, self._properties = device, properties
        address = ctypes.c_uint64()
        nowhere = ctypes.c_uint64(0)
        _call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), nowhere, _ZERO)
        self.address = address.value
        self._handle: int | None = None

    @property
    def mapped(self) -> bool:
        return self._handle is not None

    def map(self) -> None:
        """Raises GpuMemoryError, with nothing behind the addresses as before."""
        handle = ctypes.c_uint64()
        size, at = ctypes.c_size_t(self.size), ctypes.c_uint64(self.address)
        _call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._properties), _ZERO)
        try:
            _call("cuMemMap", at, size, ctypes.c_size_t(0), handle, _ZERO)
        except GpuMemoryError:
            _call("cuMemRelease", handle)
            raise
        self._handle = handle.value
        access = _Access(_Location(ON_DEVICE, self._device), READ_WRITE)
        _call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self) -> None:
        if self._handle is None:
            return
        torch.cuda.synchronize(self._device)  # unmapping does not wait for kernels
        _call("cuMemUnmap", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))
        _call("cuMemRelease", ctypes.c_uint64(self._handle))
        self._handle = None

    def free(self) -> None:
        self.unmap()
        _call("cuMemAddressFree", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))


_ZERO = ctypes.c_uint64(0)


class _Bytes:
    """What torch makes a tensor of without copying (the CUDA array interface, version 3)."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


class GpuMemory:
    """Tensors whose memory is mapped and released together, and freed with the last reference to each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        index = device.index or 0
        self._properties = _Properties(PINNED, 0, _Location(ON_DEVICE, index), None, (ctypes.c_ubyte * 8)())
        granularity = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._properties), 0)
        self._granularity = granularity.value
        self._ranges: list[_Range] = []

    @property
    def size(self) -> int:
        """Bytes that it has, or had before `release`."""
        return sum(r.size for r in self._ranges)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Of any content. Raises torch.OutOfMemoryError."""
        size = prod(shape) * dtype.itemsize
        whole = -(-size // self._granularity) * self._granularity
        found = _Range(self._device.index or 0, whole, self._properties)
        try:
            found.map()
        except GpuMemoryError as error:
            found.free()
            if error.status == OUT_OF_MEMORY:
                raise torch.OutOfMemoryError(
                    f"the card has no {whole} bytes left; lower --gpu-memory, or stop another program on this card"
                ) from None
            raise
        self._ranges.append(found)
        owner = _Bytes(found.address, whole)
        weakref.finalize(owner, self._forget, found).atexit = False  # the driver cleans up after a process
        flat = torch.as_tensor(owner, device=self._device)  # holds on to `owner`, and so do its views
        return flat[:size].view(dtype).view(tuple(shape))

    def release(self) -> int:
        """Give the memory back, its content lost; returns the bytes. Nobody may touch the tensors until `restore`."""
        for found in self._ranges:
            found.unmap()
        return self.size

    def restore(self) -> None:
        """Under the same addresses, of any content. Raises CannotWake, with nothing taken, if the card has no room."""
        try:
            for found in self._ranges:
                if not found.mapped:
                    found.map()
        except GpuMemoryError as error:
            self.release()
            raise CannotWake(
                f"the card does not have the {self.size} bytes to wake with: {error}; stop another program on this card"
            ) from None

    def _forget(self, gone: _Range) -> None:
        self._ranges.remove(gone)
        gone.free()
