"""One step of an embedding model that is a decoder, on a GPU: the layers by the kernels that serve text, and no head.

Steps come one by one and nothing is captured: texts are prompts, whose work is long beside its launches.
"""

import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.cache.pages import Pages
from backend.engine.core.runner import Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.speculation import Drafted
from backend.engine.embedding.pooling_runner import Pooled, as_bytes, pooled
from backend.engine.gpu.paged_layers import PagedLayers, StepShape
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.models.checkpoints.pooling import Pooling
from backend.models.decoders.paged_decoder import PagedCache, PagedDecoder, StepTokens


class GpuPoolingRunner:
    """A `runner.Runner`, as `pooling_runner.PoolingRunner` is one on the CPU. batch_invariant: see `PagedLayers`; the
    model has to be so, too."""

    ahead = 0
    windows: tuple[int | None, ...] = (None,)
    plain_only = False
    missed = 0

    def __init__(self, model: PagedDecoder, cache: KVCache, pooling: Pooling, *, batch_invariant: bool = False) -> None:
        self.model = model
        self.device, self.block_size = cache.keys.device, cache.block_size
        self.cache = PagedCache(cache.keys, cache.values)
        self.pages = Pages(cache.keys, cache.values)
        self._pooling = pooling
        self._batch_invariant = batch_invariant
        config = model.config
        self._workspace = DecodeWorkspace.allocate(  # of a kernel that no step takes
            self.device, 1, config.num_heads, config.num_kv_heads, config.head_dim, splits=1
        )

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Pooled:
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for scheduled in batch:
            sequence, size = scheduled.sequence, self.block_size
            span = range(sequence.num_computed, sequence.num_computed + scheduled.num_tokens)
            ids += sequence.tokens[span.start : span.stop]
            positions += span
            slots += [sequence.block_table[p // size] * size + p % size for p in span]
        ends = [s.sequence.num_computed + s.num_tokens for s in batch]
        used = [s.sequence.block_table[: -(-end // self.block_size)] for s, end in zip(batch, ends, strict=True)]
        most = max(map(len, used))
        counts = [s.num_tokens for s in batch]
        states = self._states(
            torch.tensor([ids, positions, slots]),
            torch.tensor([table + [0] * (most - len(table)) for table in used]),
            counts,
            ends,
        )
        vectors = [
            pooled(self._pooling, s.sequence, s.num_tokens, own)
            for s, own in zip(batch, states.split_with_sizes(counts), strict=True)
        ]
        return Pooled(as_bytes([v for v, scheduled in zip(vectors, batch, strict=True) if scheduled.samples]))

    def _states(self, tokens: Tensor, tables: Tensor, counts: list[int], ends: list[int]) -> Tensor:
        """float32 [tokens, width]. tokens: [ids, positions, slots]; counts, ends: of each sequence, how many of them
        are its own, and how long it is with these."""
        ids, positions, slots = tokens.to(self.device)
        starts = torch.tensor([0, *counts]).cumsum(0)
        blocks, lengths, starts = (x.to(self.device, torch.int32) for x in (tables, torch.tensor(ends), starts))
        attention = PagedLayers(
            self.model.config,
            self.model.kernels,
            self.cache,
            self._workspace,
            StepShape(0, chunks=len(counts), chunk_rows=len(ids)),
            blocks,
            lengths,
            starts,
            batch_invariant=self._batch_invariant,
        )
        hidden = self.model.body(StepTokens(ids, positions, slots, None), self.cache, attention)
        return self.model.states(hidden).float()

    @torch.inference_mode()
    def profile_run(self, tokens: int) -> None:
        """Dummy forward pass over so many tokens: it writes no cache, and takes as much memory as such a step does."""
        dummy = torch.zeros(3, tokens, dtype=torch.int64)
        dummy[2] = -1
        self._states(dummy, torch.zeros(1, 1), [0], [0])

    def forget(self) -> None:
        """Nothing is kept between steps but the cache."""

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        raise AssertionError("nothing is drawn, so nothing can have been guessed")

    def checked_activations(self) -> list[list[bytes]]:
        raise AssertionError("nothing is drawn, so nothing can have been guessed")

    def prepare(self) -> bool:
        """Every step runs as it is from the first on."""
        return False

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.pages.copy(pairs)

    def scrub(self, blocks: list[int]) -> None:
        self.pages.zero(blocks)

    def residue(self, blocks: list[int]) -> int:
        return self.pages.residue(blocks)
