"""KV blocks as bytes: copied, zeroed and read back, whatever their data type."""

from collections.abc import Iterable

import torch
from torch import Tensor

from backend.engine.sending import sent


class Pages:
    """Keys and values, [layers, num_blocks, block_size, kv_heads, head_dim] each."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._parts = keys.view(torch.uint8), values.view(torch.uint8)
        self._device = keys.device

    @torch.inference_mode()
    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """(from, to) each; on a GPU behind the steps that are on their way."""
        source, target = (self._ids(side) for side in zip(*pairs, strict=True))
        for part in self._parts:
            part.index_copy_(1, target, part.index_select(1, source))

    @torch.inference_mode()
    def zero(self, blocks: list[int]) -> None:
        chosen = self._ids(blocks)
        for part in self._parts:
            part.index_fill_(1, chosen, 0)

    @torch.inference_mode()
    def residue(self, blocks: list[int]) -> int:
        """Bytes of them that are not zero. Waits for the device."""
        chosen = self._ids(blocks)
        return sum(int(layer.index_select(0, chosen).count_nonzero()) for part in self._parts for layer in part)

    def _ids(self, blocks: Iterable[int]) -> Tensor:
        return sent(list(blocks), torch.int64, self._device)
