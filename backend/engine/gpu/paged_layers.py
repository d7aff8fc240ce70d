"""Attention of one step over the paged cache, by kernels (the twin of `attention`).

A step's decodes stand first in the batch and take the kernel that splits keys over the card; the rest are prefills.
A long prompt without history needs no cache to attend to: its keys and values are at hand, and a dense kernel of the
library is faster. So it is for a long part of a prompt behind a long history: the history's blocks are gathered, a
limited number at a time, and what the parts give is joined.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.engine.core.scheduler import PART_STEP
from backend.kernels.attention.workspace import DecodeWorkspace, SharedPrefix
from backend.kernels.interface import Kernels
from backend.models.config import ModelConfig
from backend.models.decoders.paged_decoder import PagedCache

DENSE_FROM = 1024  # tokens of a prompt from which the dense kernel is faster
DENSE_STEP = 256  # it plans again for every length, so lengths are rounded up to this
HISTORY_STEP = PART_STEP  # a history is whole steps of so many tokens
HISTORY_PART = 32768  # tokens of it that are gathered at once: memory, and lengths that the library plans for
RESUMED_PAIRS = 4 << 20  # of rows and tokens of history, from which gathering and joining are worth it
DENSE_TOGETHER = 2048  # rows of equally long prompts that one call of it is worth, however short each is


@dataclass(frozen=True, slots=True)
class DensePrompts:
    """`count` whole prompts of `length` rows each, from row `start` of the batch on, for one call of the dense kernel.

    It runs on ``padded`` rows a prompt. The other rows yield values that are not read; only a
    single prompt may have such a rest.
    """

    start: int
    length: int
    padded: int
    count: int = 1

    @property
    def end(self) -> int:
        return self.start + self.count * self.length

    def covers(self, rows: int) -> bool:
        return self.start == 0 and self.end == rows


@dataclass(frozen=True, slots=True)
class ResumedPrompt:
    """`length` rows of one prompt, from row `start` of the batch on, behind `history` tokens that the cache has. As in
    `DensePrompts`, the dense kernel runs on `padded` rows."""

    start: int
    length: int
    padded: int
    history: int

    @property
    def end(self) -> int:
        return self.start + self.length


def is_resumed(rows: int, history: int) -> bool:
    """Whether the dense kernel had better compute so many rows of a prompt behind so many tokens."""
    return history % HISTORY_STEP == 0 and rows >= DENSE_FROM and rows * history >= RESUMED_PAIRS


def resumed_prompts(start: int, parts: list[tuple[int, int]]) -> tuple[ResumedPrompt, ...]:
    """parts: of each, rows and tokens of history; they follow one another from row `start` on."""
    prompts: list[ResumedPrompt] = []
    for rows, history in parts:
        prompts.append(ResumedPrompt(start, rows, -(-rows // DENSE_STEP) * DENSE_STEP, history))
        start += rows
    return tuple(prompts)


def dense_lengths(lengths: list[int]) -> set[int]:
    """Which of these lengths of whole prompts had better take the dense kernel."""
    count = Counter(lengths)
    together = {n for n in count if n % DENSE_STEP == 0 and n * count[n] >= DENSE_TOGETHER}
    return together | {n for n in count if n >= DENSE_FROM}


def dense_prompts(start: int, lengths: list[int]) -> tuple[DensePrompts, ...]:
    """Whole prompts that follow one another from row `start` on; neighbours that need no padding and are equally long
    go together, since each call of the library costs the host a fifth of a millisecond."""
    groups: list[DensePrompts] = []
    for length in lengths:
        padded = -(-length // DENSE_STEP) * DENSE_STEP
        last = groups[-1] if groups else None
        if last and last.length == last.padded == length:
            groups[-1] = DensePrompts(last.start, length, padded, last.count + 1)
        else:
            groups.append(DensePrompts(start, length, padded))
        start += length
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class StepShape:
    """The flat batch of a step: decodes, one row each; then `chunks` sequences with `chunk_rows` rows together, which
    attend through the cache; then parts of prompts behind their history, and whole prompts, for the dense kernel."""

    decodes: int
    shared: bool = False  # the decodes share a prefix, of the length in the tables
    chunks: int = 0
    chunk_rows: int = 0
    resumed: tuple[ResumedPrompt, ...] = ()
    dense: tuple[DensePrompts, ...] = ()

    @property
    def tokens(self) -> int:
        """Rows that belong to someone; behind them there may be padding."""
        last = self.dense[-1:] or self.resumed[-1:]
        return last[0].end if last else self.decodes + self.chunk_rows

    @property
    def rows(self) -> int:
        """That the step computes: those that the dense kernel's padding reaches are among them."""
        ends = [each.start + each.padded for each in self.resumed]
        ends += [each.start + each.padded for each in self.dense if each.count == 1]
        return max([self.tokens, *ends])


class PagedLayers:
    """`models.paged_decoder.CachedAttention` of one step.

    block_tables, seq_lens: of the decodes', the chunks' and the resumed sequences; the former as in `StepInputs`.
    chunk_start: [chunks + 1] int32, where each chunk begins among their rows. batch_invariant: decodes and chunks alike
    take one kernel with fixed tiles, so that the bits of a row depend on its own sequence alone; the shape has no
    resumed and no whole prompts then, and chunk_start all sequences. sinks: float32 [heads] of each layer, where it has
    them.
    """

    def __init__(
        self,
        config: ModelConfig,
        kernels: Kernels,
        cache: PagedCache,
        workspace: DecodeWorkspace,
        shape: StepShape,
        block_tables: Tensor,
        seq_lens: Tensor,
        chunk_start: Tensor,
        shared: SharedPrefix | None = None,
        *,
        batch_invariant: bool = False,
        sinks: Sequence[Tensor | None] = (),
    ) -> None:
        self.sinks = sinks
        self.batch_invariant = batch_invariant
        self.config = config
        self.kernels = kernels
        self.cache = cache
        self.workspace = workspace
        self.shape = shape
        self.block_tables, self.seq_lens, self.chunk_start = block_tables, seq_lens, chunk_start
        self.shared = shared if shape.shared else None
        self.keys_in_place = bool(shape.dense or shape.resumed)
        self.scale = config.attention_scale

    def __call__(self, layer: int, q: Tensor, qkv: Tensor, out: Tensor | None = None) -> Tensor:
        """out: [tokens, heads, head_dim], where to leave the result; None: in new memory. Rows of padding tokens get
        zeros in new memory, and are left alone in what was given."""
        cache, shape = self.cache, self.shape
        (keys, values), tables_of_layer = cache.of(layer), cache.by_table(layer, self.block_tables)
        decodes, chunks = shape.decodes, shape.chunks
        windows = self.config.windows
        scales: dict[str, Any] = {
            "scale": self.scale, "window": windows[layer] if windows else None, "cap": self.config.attention_cap,
            "sinks": self.sinks[layer] if self.sinks else None, **cache.scales(layer),
        }  # fmt: skip
        if self.batch_invariant:
            tables, lengths = tables_of_layer, self.seq_lens
            return self.kernels.paged_attention(
                q, keys, values, tables, self.chunk_start, lengths, batch_invariant=True, out=out, **scales
            ).view(len(q), -1)
        if out is None and len(shape.dense) == 1 and shape.dense[0].covers(len(q)):
            return self._dense(q, qkv, shape.dense[0]).reshape(len(q), -1)
        if out is None:
            out = torch.empty_like(q)
            out[self.shape.tokens :] = 0
        if decodes:
            tables, lengths = tables_of_layer[:decodes], self.seq_lens[:decodes]
            self.kernels.paged_decode(
                q[:decodes],
                keys,
                values,
                tables,
                lengths,
                self.workspace,
                shared=self.shared,
                out=out[:decodes],
                **scales,
            )
        if chunks:
            rows = slice(decodes, decodes + shape.chunk_rows)
            tables, lengths = tables_of_layer[decodes:][:chunks], self.seq_lens[decodes:][:chunks]
            self.kernels.paged_attention(
                q[rows], keys, values, tables, self.chunk_start, lengths, out=out[rows], **scales
            )
        for place, prompt in enumerate(shape.resumed, decodes + chunks):
            batched = self._batched(q, qkv, prompt.start, prompt.padded)
            self._resumed(layer, batched, prompt, tables_of_layer[place], out)
        for prompts in shape.dense:
            out[prompts.start : prompts.end] = self._dense(q, qkv, prompts)
        return out.view(len(q), -1)

    def _batched(self, q: Tensor, qkv: Tensor, start: int, rows: int, count: int = 1) -> list[Tensor]:
        """q, k, v of `count` prompts of so many rows each, from row `start` on: [count, heads, rows, head_dim]."""
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        whole = slice(start, start + count * rows)
        k, v = qkv[whole].view(-1, heads + 2 * kv_heads, dim)[:, heads:].tensor_split(2, 1)
        return [x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q[whole], k, v)]

    def _resumed(self, layer: int, batched: list[Tensor], prompt: ResumedPrompt, table: Tensor, out: Tensor) -> None:
        """Of its own rows, then of its history, part by part. Sums between parts stay in float32."""
        q, k, v = batched
        found, sums = self.kernels.dense_attention(q, k, v, scale=self.scale, causal=True)
        so_far = found[0].transpose(0, 1)[: prompt.length]
        block_size = self.cache.keys.shape[2]
        for begin in range(0, prompt.history, HISTORY_PART):
            end = min(begin + HISTORY_PART, prompt.history)
            blocks = table[begin // block_size : end // block_size]
            k, v = (self._read(layer, which, blocks, q.dtype) for which in ("k", "v"))
            part, part_sums = self.kernels.dense_attention(q, k, v, scale=self.scale, causal=False)
            if end == prompt.history:
                target = out[prompt.start : prompt.end]
            else:
                target = so_far if begin else torch.empty_like(so_far, dtype=torch.float32)
            self.kernels.join_parts(so_far, sums, part[0].transpose(0, 1)[: prompt.length], part_sums, target)
            so_far = target

    def _read(self, layer: int, which: str, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """[1, kv_heads, tokens, head_dim] in `dtype`: what these blocks of the cache hold."""
        keys, values = self.cache.of(layer)
        pages, scale = (keys, self.cache.k_scale) if which == "k" else (values, self.cache.v_scale)
        if scale is None:
            read = pages.index_select(0, blocks)
        else:  # the library gathers bytes, but not this type
            read = pages.view(torch.uint8).index_select(0, blocks).view(pages.dtype).to(dtype)
            torch.mul(read, scale[layer][:, None], out=read)
        return read.flatten(0, 1).transpose(0, 1)[None]

    def _dense(self, q: Tensor, qkv: Tensor, prompts: DensePrompts) -> Tensor:
        batched = self._batched(q, qkv, prompts.start, prompts.padded, prompts.count)
        out = F.scaled_dot_product_attention(
            batched[0], batched[1], batched[2], is_causal=True, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)[: prompts.count * prompts.length]
