"""The paged KV cache, and attention over it in plain torch.

This is the CPU path, and the twin of the paged kernels: same layout, ``[layers, blocks, block_size, kv_heads,
head_dim]`` for keys and for values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.models.config import ModelConfig

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]  # shape and type -> memory of any content


class KVCache:
    """Keys and values of all layers; zeroed at birth, so that unused slots are finite. allocate: by default torch's."""

    def __init__(
        self, model: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: str,
        allocate: Allocate | None = None,
    ) -> None:  # fmt: skip
        self._shape = (model.num_layers, num_blocks, block_size, model.num_kv_heads, model.head_dim)
        self.block_size = block_size
        self.windows = model.windows or (None,) * model.num_layers
        allocate = allocate or (lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device))
        self.keys, self.values = allocate(self._shape, dtype), allocate(self._shape, dtype)
        for part in (self.keys, self.values):
            part.view(torch.uint8).zero_()

    def release(self) -> int:
        """Forget everything and give the memory back; returns its bytes. `restore` before the next use."""
        given = 2 * self.keys.numel() * self.keys.element_size()
        self.keys, self.values = (part.zero_().new_empty(0) for part in (self.keys, self.values))
        return given

    def restore(self) -> None:
        """As at birth."""
        self.keys, self.values = self.keys.new_zeros(self._shape), self.values.new_zeros(self._shape)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Rows `start:end` of the batch are one sequence's next tokens; `context` of its tokens came before them."""

    start: int
    end: int
    context: int
    blocks: Tensor  # [blocks], int64


class Decodes:
    """The first `count` rows are one token each, of `count` sequences.

    blocks: [count * width], int64, padded with any valid block; lengths: [count], int64, tokens of each, this step's
    included; slots: ``width * block_size``.
    """

    def __init__(self, blocks: Tensor, lengths: Tensor, slots: int, dtype: torch.dtype) -> None:
        self.count = len(lengths)
        self.blocks = blocks
        self._lengths = lengths
        self._slots = slots
        self._dtype = dtype
        self._biases: dict[int | None, Tensor | None] = {}

    def bias(self, window: int | None) -> Tensor | None:
        """[count, 1, 1, slots]: 0 where a token is that is attended to, -inf elsewhere; None if that is everywhere."""
        if window not in self._biases:
            slot, lengths = torch.arange(self._slots), self._lengths.unsqueeze(-1)
            hidden = slot >= lengths
            if window is not None:
                hidden |= slot < lengths - window
            bias = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
            self._biases[window] = bias[:, None, None, :] if hidden.any() else None
        return self._biases[window]


class PagedAttention:
    """`models.decoder.Attention` for one step. slots: [tokens], int64: block * block_size + offset of each row."""

    def __init__(self, cache: KVCache, slots: Tensor, decodes: Decodes | None, prefills: list[Prefill]) -> None:
        self.cache = cache
        self.slots = slots
        self.decodes = decodes
        self.prefills = prefills

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values, window = self.cache.keys[layer], self.cache.values[layer], self.cache.windows[layer]
        keys.view(-1, *k.shape[1:]).index_copy_(0, self.slots, k)
        values.view(-1, *v.shape[1:]).index_copy_(0, self.slots, v)
        if self.decodes is not None and not self.prefills:
            return _decode(q, keys, values, self.decodes, window)
        out = torch.empty_like(q)
        if self.decodes is not None:
            out[: self.decodes.count] = _decode(q[: self.decodes.count], keys, values, self.decodes, window)
        for p in self.prefills:
            rows = slice(p.start, p.end)
            out[rows] = _prefill(q[rows], k[rows], v[rows], keys, values, p, window)
        return out


def _decode(q: Tensor, keys: Tensor, values: Tensor, decodes: Decodes, window: int | None) -> Tensor:
    """All sequences at once. The query heads that share a KV head take the place of query positions, so that no key
    is repeated for them. q: [count, heads, head_dim]."""
    count, heads, head_dim = q.shape
    kv_heads = keys.shape[2]
    k = keys.index_select(0, decodes.blocks).view(count, -1, kv_heads, head_dim).transpose(1, 2)
    v = values.index_select(0, decodes.blocks).view(count, -1, kv_heads, head_dim).transpose(1, 2)
    grouped = q.reshape(count, kv_heads, heads // kv_heads, head_dim)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=decodes.bias(window))
    return out.reshape(count, heads, head_dim)


def _prefill(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, p: Prefill, window: int | None) -> Tensor:
    """One sequence: causal among its new tokens, and over its whole context or the window's part of it.

    q: [new, heads, head_dim].
    """
    mask = None
    total = p.context + p.end - p.start
    if p.context:
        k = keys.index_select(0, p.blocks).flatten(0, 1)[:total]
        v = values.index_select(0, p.blocks).flatten(0, 1)[:total]
    if p.context or (window is not None and window < total):
        mask = torch.ones(q.shape[0], total, dtype=torch.bool, device=q.device).tril(p.context)
        if window is not None:
            mask = mask.triu(p.context - window + 1)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
