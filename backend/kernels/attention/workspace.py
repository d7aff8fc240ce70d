"""How far decode attention splits its keys, and the scratch memory that takes (see `paged_decode`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.launching.launch import multiprocessors

MAX_SPLITS = 32
PREFIX_STEP = 64  # a shared prefix is whole tiles of this many keys
PREFIX_SPLITS = 4  # parts at most that its keys are cut into


@dataclass(frozen=True)
class DecodeWorkspace:
    """Scratch of `paged_decode`, kept between launches; launches that share it must follow one another on a stream.

    partial: float32, flat. arrived: int32 [sequences * kv_heads], zero between launches.
    """

    partial: Tensor
    arrived: Tensor

    @classmethod
    def allocate(
        cls,
        device: torch.device,
        sequences: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        queries: int = 1,
        splits: int | None = None,
    ) -> "DecodeWorkspace":
        """Room for every batch of up to ``sequences``, at the default number of splits or at a fixed one."""
        programs = max(
            batch * kv_heads * chosen if chosen > 1 else 0
            for batch in range(1, sequences + 1)
            for chosen in (splits or default_splits(batch, kv_heads, device),)
        )
        return cls(
            torch.empty(programs * partial_size(queries * q_heads // kv_heads, head_dim), device=device),
            torch.zeros(sequences * kv_heads, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True)
class SharedPrefix:
    """Keys that all sequences of a decode step begin with (see `shared_prefix`).

    length: [1] int32, a multiple of 64, fewer than any sequence's tokens; on the device, so that a captured graph reads
    it anew. out: float32 [splits, sequences, q_heads, head_dim], what a part of the prefix alone gives. top: float32
    [splits, sequences, q_heads], log2 of its total weight.
    """

    length: Tensor
    out: Tensor
    top: Tensor

    @classmethod
    def allocate(cls, length: Tensor, sequences: int, q_heads: int, head_dim: int) -> "SharedPrefix":
        device = length.device
        return cls(
            length,
            torch.empty(PREFIX_SPLITS, sequences, q_heads, head_dim, device=device),
            torch.empty(PREFIX_SPLITS, sequences, q_heads, device=device),
        )


def default_splits(sequences: int, kv_heads: int, device: torch.device) -> int:
    """A power of two that cuts the work into eight programs or so a multiprocessor; where the batch nearly does that
    itself, into sixteen, for long sequences beside short ones (a short one is not cut, see `paged_decode`).

    A few run at once; the others even out sequences of unequal length and the last wave.
    """
    programs, pairs = 8 * multiprocessors(device), max(1, sequences * kv_heads)
    if crowded(sequences, kv_heads, device):
        return min(4, power_of_two(max(1, 2 * programs // pairs)))
    return min(MAX_SPLITS, power_of_two(max(1, programs // pairs)))


def crowded(sequences: int, kv_heads: int, device: torch.device) -> bool:
    """So many sequences that a short one had better be one program: more than two programs a multiprocessor."""
    return sequences * kv_heads > 2 * multiprocessors(device)


def block_rows(rows: int) -> int:
    """Rows of a program's tile: (queries × heads of a group), but at least the 16 that tensor cores multiply."""
    return max(16, power_of_two(rows))


def partial_size(rows: int, head_dim: int) -> int:
    """float32 values that one program leaves behind: a row's accumulator, its largest score and its total."""
    return block_rows(rows) * (power_of_two(head_dim) + 2)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()
