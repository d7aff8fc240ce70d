"""The paged KV cache, and attention over it in plain torch.

This is the CPU path, and the twin of the paged kernels: same layout, ``[layers, blocks, block_size, kv_heads,
head_dim]`` for keys and for values.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.models.config import ModelConfig
from backend.models.layer_groups import LayerGroups, one_table

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]  # shape and type -> memory of any content


@dataclass(frozen=True, slots=True)
class Softness:
    """What q · k is multiplied by, and the soft cap of the product, if there is one. sinks: [heads], scores that take
    their part of the softmax and have no value, if there are any."""

    scale: float
    cap: float | None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """The library's kernels compute it."""
        return self.cap is None and self.sinks is None


class KVCache:
    """Keys and values of all layers; zeroed at birth, so that unused slots are finite. allocate: by default torch's.
    groups: which layers share a block table; by default all. ``keys`` and ``values`` are [places, blocks, …]: a block
    is of one table, and has a place for each of its layers.

    With latent attention (`LatentAttention`) ``keys`` hold the latents, which are the values as well, and ``values``
    the rotary keys: each token has one of both, and all heads attend to them.
    """

    def __init__(
        self,
        model: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: str,
        allocate: Allocate | None = None,
        groups: LayerGroups | None = None,
    ) -> None:
        self.groups = groups or one_table(model.num_layers)
        rows = (self.groups.depth, num_blocks, block_size, model.num_kv_heads)
        self._shapes = [(*rows, width) for width in model.cached_widths]
        self.latent = model.latent is not None
        self.block_size = block_size
        self.windows = model.windows or (None,) * model.num_layers
        self.softness = Softness(model.attention_scale, model.attention_cap)
        allocate = allocate or (lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device))
        self.keys, self.values = (allocate(shape, dtype) for shape in self._shapes)
        for part in (self.keys, self.values):
            part.view(torch.uint8).zero_()

    def release(self) -> int:
        """Forget everything and give the memory back; returns its bytes. `restore` before the next use."""
        given = (self.keys.numel() + self.values.numel()) * self.keys.element_size()
        self.keys, self.values = (part.zero_().new_empty(0) for part in (self.keys, self.values))
        return given

    def restore(self) -> None:
        """As at birth."""
        self.keys, self.values = (self.keys.new_zeros(shape) for shape in self._shapes)

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [blocks, block_size, kv_heads, width] each."""
        place = self.groups.places[layer]
        return self.keys[place], self.values[place]

    def attended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that queries meet, of what the two parts of the cache hold. [..., width] each."""
        return (torch.cat((k, v), -1), k) if self.latent else (k, v)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Rows `start:end` of the batch are one sequence's next tokens; `context` of its tokens came before them."""

    start: int
    end: int
    context: int
    blocks: Tensor  # [blocks], int64

    def near(self, window: int | None, block_size: int) -> "Prefill":
        """The same with the blocks alone that a window reaches, and positions that count from the first of these: what
        a layer with a window takes does not grow with the prompt."""
        passed = 0 if window is None else max(0, self.context - window + 1) // block_size
        if not passed:
            return self
        return replace(self, context=self.context - passed * block_size, blocks=self.blocks[passed:])


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
        self._near: dict[int, Decodes] = {}

    def near(self, window: int | None, block_size: int) -> "Decodes":
        """As `Prefill.near`: as many blocks of each sequence, in whatever of them the window begins."""
        width = self._slots // block_size
        reached = width if window is None else (window + block_size - 2) // block_size + 1
        if window is None or reached >= width:
            return self
        if window not in self._near:
            first = (self._lengths - window).clamp_min(0) // block_size
            places = (first[:, None] + torch.arange(reached)).clamp_max(width - 1)
            blocks = self.blocks.view(self.count, width).gather(1, places).flatten()
            lengths = self._lengths - first * block_size
            self._near[window] = Decodes(blocks, lengths, reached * block_size, self._dtype)
        return self._near[window]

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


@dataclass(frozen=True, slots=True)
class TableStep:
    """What a step reads and writes by one block table. slots: [tokens], int64: block * block_size + offset of each
    row."""

    slots: Tensor
    decodes: Decodes | None
    prefills: list[Prefill]


class PagedAttention:
    """`models.decoder.Attention` for one step. others: by the tables behind the first."""

    def __init__(
        self,
        cache: KVCache,
        slots: Tensor,
        decodes: Decodes | None,
        prefills: list[Prefill],
        others: Items[TableStep] = (),
    ) -> None:
        self.cache = cache
        self.steps = (TableStep(slots, decodes, prefills), *others)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        (keys, values), window = self.cache.of(layer), self.cache.windows[layer]
        step = self.steps[self.cache.groups.tables[layer]]
        softness = replace(self.cache.softness, sinks=sinks)
        keys.view(-1, *k.shape[1:]).index_copy_(0, step.slots, k)
        values.view(-1, *v.shape[1:]).index_copy_(0, step.slots, v)
        decodes = None if step.decodes is None else step.decodes.near(window, self.cache.block_size)
        if decodes is not None and not step.prefills:
            return _decode(q, *self._gathered(keys, values, decodes.blocks), decodes, window, softness)
        k, v = self.cache.attended(k, v)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        if decodes is not None:
            found = self._gathered(keys, values, decodes.blocks)
            out[: decodes.count] = _decode(q[: decodes.count], *found, decodes, window, softness)
        for prefill in step.prefills:
            p = prefill.near(window, self.cache.block_size)
            rows = slice(p.start, p.end)
            context = self._gathered(keys, values, p.blocks) if p.context else None
            out[rows] = _prefill(q[rows], k[rows], v[rows], context, p, window, softness)
        return out

    def _gathered(self, keys: Tensor, values: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Of one layer: keys and values of the tokens in these blocks, [tokens, kv_heads, width] each."""
        return self.cache.attended(*(part.index_select(0, blocks).flatten(0, 1) for part in (keys, values)))


class HeadwiseAttention(PagedAttention):
    """The same for one token of one sequence, `together` query heads at a time that attend to one KV head: the bits do
    not depend on how many heads there are. Of a window exactly its keys are taken, so that the bits do not depend on
    where blocks begin either."""

    def __init__(self, cache: KVCache, steps: list[TableStep], together: int) -> None:
        super().__init__(cache, steps[0].slots, None, steps[0].prefills, steps[1:])
        self._together = together

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        (keys, values), window = self.cache.of(layer), self.cache.windows[layer]
        step = self.steps[self.cache.groups.tables[layer]]
        keys.view(-1, *k.shape[1:]).index_copy_(0, step.slots, k)
        values.view(-1, *v.shape[1:]).index_copy_(0, step.slots, v)
        shared, softness, (whole,) = q.shape[1] // k.shape[1], self.cache.softness, step.prefills
        token, hidden = whole.near(window, self.cache.block_size), 0
        if window is not None and token.context >= window:
            hidden = token.context - window + 1
            token = replace(token, context=window - 1)
        k, v = self.cache.attended(k, v)
        found = []
        for first in range(0, q.shape[1], self._together):
            kv = slice(first // shared, first // shared + 1)
            own, key, value = q[:, first : first + self._together].clone(), k[:, kv].clone(), v[:, kv].clone()
            part = None if sinks is None else sinks[first : first + self._together]
            soft = replace(softness, sinks=part)
            context = None
            if token.context:
                gathered = self._gathered(keys[:, :, kv], values[:, :, kv], token.blocks)
                context = gathered[0][hidden:], gathered[1][hidden:]
            found.append(_prefill(own, key, value, context, token, window, soft))
        return torch.cat(found, 1)


def _decode(
    q: Tensor, keys: Tensor, values: Tensor, decodes: Decodes, window: int | None, softness: Softness
) -> Tensor:
    """All sequences at once. The query heads that share a KV head take the place of query positions, so that no key
    is repeated for them. q: [count, heads, head_dim]. keys, values: of the sequences one after another, as many tokens
    of each."""
    count, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    k, v = (part.view(count, -1, kv_heads, part.shape[2]).transpose(1, 2) for part in (keys, values))
    grouped = q.reshape(count, kv_heads, heads // kv_heads, head_dim)
    bias = decodes.bias(window)
    if softness.plain:
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=bias, scale=softness.scale)
    else:
        sinks = None if softness.sinks is None else softness.sinks.view(1, kv_heads, -1, 1)
        out = _capped(grouped, k, v, bias, softness, sinks)
    return out.reshape(count, heads, v.shape[3])


def _prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: tuple[Tensor, Tensor] | None,
    p: Prefill,
    window: int | None,
    softness: Softness,
) -> Tensor:
    """One sequence: causal among its new tokens, and over its whole context or the window's part of it.

    q: [new, heads, head_dim]. whole: keys and values of all its blocks, if there is a context.
    """
    mask = None
    total = p.context + p.end - p.start
    if whole is not None:
        k, v = (part[:total] for part in whole)
    if p.context or not softness.plain or (window is not None and window < total):
        mask = torch.ones(q.shape[0], total, dtype=torch.bool, device=q.device).tril(p.context)
        if window is not None:
            mask = mask.triu(p.context - window + 1)
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    if softness.plain:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=softness.scale, enable_gqa=True
        )
    else:
        assert mask is not None  # noqa: S101 -- made above
        hidden = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        out = _capped(q, k, v, hidden, softness, None if softness.sinks is None else softness.sinks.view(1, -1, 1, 1))
    return out[0].transpose(0, 1)


def _capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, softness: Softness, sinks: Tensor | None) -> Tensor:
    """Attention whose scores are softly capped before the mask (Gemma Team 2024, Gemma 2, section 2), or that has
    sinks. No library kernel does that. q: [batch, heads, queries, head_dim]; k, v: [batch, heads, keys, head_dim];
    sinks: to be expanded to [batch, heads, queries, 1]."""
    scores = q @ k.transpose(-1, -2) * softness.scale
    if softness.cap is not None:
        scores = torch.tanh(scores / softness.cap) * softness.cap
    if bias is not None:
        scores = scores + bias
    if sinks is None:
        return scores.float().softmax(-1).to(q.dtype) @ v
    wide = sinks.to(scores.dtype).expand(*scores.shape[:3], 1)
    return torch.cat((scores, wide), -1).float().softmax(-1)[..., :-1].to(q.dtype) @ v
