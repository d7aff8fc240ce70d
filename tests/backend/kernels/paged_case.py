"""Random paged batches, and attention over them in float64, one sequence and head at a time."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
TANGENT = 4e-7  # of the cap: what a card's powers and quotients leave of float32


@dataclass
class PagedCase:
    """Sequences of given (query, total) lengths in a cache whose blocks are dealt in random order.

    Slots past each sequence's end hold NaN: whoever reads them shows it.
    """

    lengths: list[tuple[int, int]]
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    block_size: int = 16
    cache_dtype: torch.dtype | None = None
    padding: int = 0
    scales: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cache_dtype = self.cache_dtype or self.dtype
        tokens = sum(queries for queries, _ in self.lengths) + self.padding
        self.scale = self.head_dim**-0.5
        self.q = torch.randn(tokens, self.q_heads, self.head_dim, device=self.device).to(self.dtype)
        needed = [-(-total // self.block_size) for _, total in self.lengths]
        spare = 2
        order = torch.randperm(sum(needed) + spare)
        shape = (len(order), self.block_size, self.kv_heads, self.head_dim)
        nan = torch.full(shape, float("nan"), device=self.device)
        self.key_cache, self.value_cache = nan.to(cache_dtype), nan.to(cache_dtype)
        self.tables = torch.full((len(self.lengths), max([*needed, 1])), 2**30, dtype=torch.int32, device=self.device)
        for row, ((_, total), count) in enumerate(zip(self.lengths, needed, strict=True)):
            blocks, order = order[:count], order[count:]
            self.tables[row, :count] = blocks.int()
            for cache in (self.key_cache, self.value_cache):
                fresh = torch.randn(count * self.block_size, self.kv_heads, self.head_dim, device=self.device)
                fresh[total:] = float("nan")
                cache[blocks.to(self.device)] = fresh.view(count, *shape[1:]).to(cache_dtype)
        starts = torch.tensor([0] + [queries for queries, _ in self.lengths]).cumsum(0)
        self.query_start = starts.to(self.device, torch.int32)
        self.seq_lens = torch.tensor([total for _, total in self.lengths], dtype=torch.int32, device=self.device)
        if cache_dtype == torch.float8_e4m3fn:
            self.scales = {name: 0.5 + torch.rand(self.kv_heads, device=self.device) for name in ("k_scale", "v_scale")}

    def history(self, sequence: int) -> tuple[Tensor, Tensor]:
        """float64 keys and values of a sequence, [total, kv_heads, head_dim]."""
        total = self.lengths[sequence][1]
        blocks = self.tables[sequence, : -(-total // self.block_size)].long()
        k, v = (c[blocks].flatten(0, 1)[:total].double() for c in (self.key_cache, self.value_cache))
        if self.scales:
            k, v = k * self.scales["k_scale"][:, None].double(), v * self.scales["v_scale"][:, None].double()
        return k, v

    def exact(self, window: int | None = None, cap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        out = torch.zeros(self.q.shape, dtype=torch.float64, device=self.device)
        group = self.q_heads // self.kv_heads
        for sequence, (queries, total) in enumerate(self.lengths):
            k, v = self.history(sequence)
            first = int(self.query_start[sequence])
            for i in range(queries):
                position = total - queries + i
                seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
                for head in range(self.q_heads):
                    scores = k[seen, head // group] @ self.q[first + i, head].double() * self.scale
                    if cap is not None:
                        scores = cap * torch.tanh(scores / cap)
                    if sinks is not None:
                        scores = torch.cat((scores, sinks[head : head + 1].double()))
                    out[first + i, head] = scores.softmax(0)[: seen.stop - seen.start] @ v[seen, head // group]
        return out


def error(out: Tensor, expected: Tensor) -> float:
    """‖out - expected‖ / ‖expected‖, infinite if anything is not a number."""
    if not out.isfinite().all():
        return float("inf")
    return float((out.double() - expected).norm() / expected.norm())
