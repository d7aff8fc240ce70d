"""KV blocks as bytes: copied, zeroed and read back, whatever their data type.

A cache takes nearly all of a card, so every operation works in pieces and allocates little.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from backend.engine.core.h2d import sent

PIECE_BYTES = 16 << 20
"""What one piece copies; `count_nonzero` takes up to eight times as much on a GPU."""


class Pages:
    """Keys and values, [layers, num_blocks, block_size, kv_heads, head_dim] each."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._parts = keys.view(torch.uint8), values.view(torch.uint8)
        self._device = keys.device

    @torch.inference_mode()
    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """(from, to) each; on a GPU behind the steps that are under way. No block is both."""
        for part in self._parts:
            for some in _pieces(pairs, part[:, 0].numel()):
                source, target = (self._ids(side) for side in zip(*some, strict=True))
                part.index_copy_(1, target, part.index_select(1, source))

    @torch.inference_mode()
    def zero(self, blocks: list[int]) -> None:
        chosen = self._ids(blocks)
        for part in self._parts:
            part.index_fill_(1, chosen, 0)

    @torch.inference_mode()
    def residue(self, blocks: list[int]) -> int:
        """Bytes of them that are not zero. Waits for the device."""
        if not self._any_left(blocks):
            return 0
        found = torch.zeros((), dtype=torch.int64, device=self._device)
        for part in self._parts:
            for ids in self._some(blocks, part):
                for layer in part:
                    found += layer.index_select(0, ids).count_nonzero()
        return int(found)

    def _any_left(self, blocks: list[int]) -> bool:
        """Whether any byte of them is not zero: the usual answer is no, and eight bytes at a time tell it sooner."""
        if not blocks:
            return False
        flags = [
            words.index_select(0, ids).any()
            for part in self._parts
            for ids in self._some(blocks, part)
            for words in _in_words(part)
        ]
        return bool(torch.stack(flags).any())

    def _some(self, blocks: list[int], part: Tensor) -> list[Tensor]:
        """Their ids, as many at a time as make a piece of a layer."""
        chosen, size = self._ids(blocks), _blocks_of_a_piece(part[0, 0].numel())
        return [chosen[at : at + size] for at in range(0, len(blocks), size)]

    def _ids(self, blocks: Iterable[int]) -> Tensor:
        return sent(list(blocks), torch.int64, self._device)


def _in_words(part: Tensor) -> Tensor:
    """[layers, blocks, words], in the widest words that a block has a whole number of."""
    flat = part.flatten(2)
    return flat.view(torch.int64) if flat.shape[-1] % 8 == 0 else flat


def _blocks_of_a_piece(block_bytes: int) -> int:
    return max(1, PIECE_BYTES // block_bytes)


def _pieces(pairs: list[tuple[int, int]], block_bytes: int) -> Iterator[list[tuple[int, int]]]:
    size = _blocks_of_a_piece(block_bytes)
    return (pairs[at : at + size] for at in range(0, len(pairs), size))
