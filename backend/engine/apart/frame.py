"""A piece of KV cache that travels: some blocks of one layer. Plain data; no torch here.

The engine that read the blocks computes the checksum, and the one that writes them verifies it, so that it covers the
whole way between two caches.
"""

import struct
import zlib
from enum import StrEnum

import msgspec

FRAME_BYTES = 1 << 20
"""Keys and values of one frame, at most, unless one block of a layer is larger."""

_HEAD = struct.Struct(">III")


class Further(StrEnum):
    """What follows the frames that were taken."""

    MORE = "more"
    NOTHING = "nothing"  # all of the prompt was taken, and was computed well
    FAILED = "failed"  # what was taken is invalid: the prompt's logits were no numbers, or it was forgotten


class BlockFrame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Keys and values of one layer for the blocks `first` to `first + count` of a prompt, counted in blocks from the
    prompt's beginning. ``keys`` and ``values`` are the bytes of the cache, block by block."""

    layer: int
    first: int
    count: int
    keys: bytes
    values: bytes
    checksum: int

    @property
    def is_whole(self) -> bool:
        """Whether it is what was read from the cache."""
        return self.checksum == checksum(self.layer, self.first, self.count, self.keys, self.values)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return len(self.keys) + len(self.values)


class PlacedFrame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The same, whose bytes lie in a window that both backends have mapped (`cache.windows`): all keys, then all
    values, from the beginning of ``slot``. ``window``: its id. ``size``: bytes of keys and values. ``checksum``: of
    `cache.windows.sum_of_words`."""

    layer: int
    first: int
    count: int
    window: bytes
    slot: int
    size: int
    checksum: int

    @property
    def sum(self) -> int:
        """Of the content alone."""
        return self.checksum ^ _of_place(self.layer, self.first, self.count)


Frame = BlockFrame | PlacedFrame


def checksum(layer: int, first: int, count: int, keys: bytes, values: bytes) -> int:
    """CRC-32 (ISO 3309) of place and content."""
    return zlib.crc32(values, zlib.crc32(keys, _of_place(layer, first, count)))


def _of_place(layer: int, first: int, count: int) -> int:
    return zlib.crc32(_HEAD.pack(layer, first, count))


def placed(layer: int, first: int, count: int, window: bytes, slot: int, size: int, sum: int) -> PlacedFrame:
    """sum: `cache.windows.sum_of_words` of the content."""
    return PlacedFrame(layer, first, count, window, slot, size, sum ^ _of_place(layer, first, count))


def framed(layer: int, first: int, count: int, keys: bytes, values: bytes) -> BlockFrame:
    return BlockFrame(layer, first, count, keys, values, checksum(layer, first, count, keys, values))


def blocks_of(num_prompt: int, block_size: int) -> int:
    """Blocks that hold all tokens of a prompt but the last, which the backend that answers computes."""
    return -(-(num_prompt - 1) // block_size)
