"""The largest activations of one token, as a device leaves them, and those of up to CHUNK tokens together.

A row holds, of the state that the head reads, the MOST values of largest magnitude in bfloat16: 16 bits of the value
above 16 bits of its place. Of equal magnitudes the lower place comes first, so that a row is a function of the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 32
"""Tokens that one polynomial is of."""
MOST = 128
"""Values that it goes through (Ong et al. 2025, section 4)."""
WIDEST = 1 << 16
"""Most places of a state: two bytes hold one."""

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Largest:
    """Largest activations of a chunk: places (row * width + place in the row) and bfloat16 values as integers, [k]
    int64 each, largest magnitude first."""

    places: NDArray[np.int64]
    values: NDArray[np.int64]


def row_of(packed: bytes) -> Words:
    """Return a row as it crosses the process border: 32-bit words, little-endian."""
    return np.frombuffer(packed, dtype="<u4")


def largest(rows: Sequence[Words], width: int) -> Largest:
    """Return the MOST values of largest magnitude in up to CHUNK rows of states of this width."""
    words = np.concatenate(rows).astype(np.int64)
    token = np.repeat(np.arange(len(rows), dtype=np.int64), [len(row) for row in rows])
    values, places = words >> 16, token * width + (words & 0xFFFF)
    order = np.sort((0x7FFF - (values & 0x7FFF)) << 48 | places << 16 | values)[:MOST]
    return Largest(order >> 16 & 0xFFFFFFFF, order & 0xFFFF)
