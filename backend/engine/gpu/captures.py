"""Captured steps, and in which sizes they are worth having."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PIECE_STEP, COARSE_FROM, COARSE_STEP = 256, 2048, 512  # sizes of steps in pieces


def piece_size(tokens: int) -> int:
    """Tokens of the captured pieces that a step of so many runs in."""
    step = PIECE_STEP if tokens <= COARSE_FROM else COARSE_STEP
    return -(-tokens // step) * step


def graph_sizes(most: int) -> list[int]:
    """Batch sizes worth a graph of their own: padding costs at most an eighth or so of the rows."""
    sizes = [n for n in (1, 2, 4, 8) if n < most]
    sizes += range(16, min(most, 128), 8)
    sizes += range(128, min(most, 256), 16)
    sizes += range(256, most, 32)
    return [*sizes, most]


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection: freeing other GPU memory would end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def capturing(graph: "torch.cuda.CUDAGraph", pool: Any) -> Iterator[None]:
    """What this thread launches goes into `graph`; what others do on the card meanwhile does not end it."""
    with uncollected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured step of `size` decodes, and where it leaves the drawn tokens ([size] int64)."""

    size: int
    graph: "torch.cuda.CUDAGraph"
    drawn: Tensor
