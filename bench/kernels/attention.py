"""Cases of attention: prompts, decode, a shared prefix."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels import fused, reference
from backend.kernels.attention.workspace import DecodeWorkspace, SharedPrefix
from backend.kernels.launching.launch import FP8
from bench.kernels.case import BLOCK_SIZE, Case, Shape, label, sets_of


class PagedHistory:
    """Random keys and values of ``count`` sequences of ``length`` tokens, in blocks dealt at random, ``sets`` times."""

    def __init__(
        self,
        shape: Shape,
        count: int,
        length: int,
        sets: int,
        cache_dtype: torch.dtype,
        device: torch.device,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        per_sequence = -(-length // block_size)
        total = count * per_sequence
        cache_shape = (sets, 2, total, block_size, shape.kv_heads, shape.head_dim)
        self.caches = torch.empty(cache_shape, device=device, dtype=torch.bfloat16).normal_().to(cache_dtype)
        self.tables = torch.randperm(total, device=device).int().view(count, per_sequence)
        self.seq_lens = torch.full((count,), length, dtype=torch.int32, device=device)
        self.scales: dict[str, Tensor] = {}
        if cache_dtype == FP8:
            self.scales = {name: 0.5 + torch.rand(shape.kv_heads, device=device) for name in ("k_scale", "v_scale")}

    def contiguous(self, i: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[count, kv_heads, length, head_dim] twice, as torch's own attention wants them."""
        length = int(self.seq_lens[0])
        k, v = (c[self.tables.long()].flatten(1, 2)[:, :length].to(dtype).transpose(1, 2) for c in self.caches[i])
        return k.contiguous(), v.contiguous()


def prefill_case(
    shape: Shape,
    queries: int,
    context: int,
    count: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
    block_size: int = BLOCK_SIZE,
    cap: float | None = None,
) -> Case:
    dim, length = shape.head_dim, queries + context
    history = PagedHistory(shape, count, length, 1, cache_dtype, device, block_size)
    q = torch.randn(count * queries, shape.q_heads, dim, device=device).to(dtype)
    query_start = (torch.arange(count + 1, device=device) * queries).int()
    kv_bytes = 2 * count * length * shape.kv_heads * dim * cache_dtype.itemsize
    pairs = count * (queries * context + queries * (queries + 1) / 2)
    notes = [f"{count}x{queries}+{context} p{block_size}", *(["capped"] if cap else [])]

    def run(kernels: Any, i: int) -> tuple[Tensor, ...]:
        keys, values = history.caches[i]
        return (
            kernels.paged_attention(
                q,
                keys,
                values,
                history.tables,
                query_start,
                history.seq_lens,
                scale=dim**-0.5,
                cap=cap,
                **history.scales,
            ),
        )

    peer = None
    if context == 0 and cap is None and cache_dtype == dtype and device.type == "cuda":
        k, v = history.contiguous(0, dtype)
        rows = q.view(count, queries, shape.q_heads, dim).transpose(1, 2).contiguous()

        def peer(i: int) -> Tensor:
            return F.scaled_dot_product_attention(rows, k, v, is_causal=True, enable_gqa=True)

    return Case(
        label("paged_attention", shape.name, *notes, dtype, "kv", cache_dtype),
        1,
        kv_bytes + 2 * q.numel() * dtype.itemsize,
        lambda i: run(fused, i),
        lambda i: run(reference, i),
        1e-2,
        flops=4 * pairs * shape.q_heads * dim,
        peer=peer,
        peer_name="torch SDPA, contiguous",
    )


def decode_case(
    shape: Shape,
    sequences: int,
    context: int,
    queries: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
    block_size: int = BLOCK_SIZE,
    splits: int | None = None,
    cap: float | None = None,
) -> Case:
    dim = shape.head_dim
    kv_bytes = 2 * sequences * context * shape.kv_heads * dim * cache_dtype.itemsize
    n = sets_of(kv_bytes, 32)
    history = PagedHistory(shape, sequences, context, n, cache_dtype, device, block_size)
    q = torch.randn(sequences * queries, shape.q_heads, dim, device=device).to(dtype)
    workspace = DecodeWorkspace.allocate(
        device, sequences, shape.q_heads, shape.kv_heads, dim, queries=queries, splits=splits
    )

    def run(kernels: Any, i: int) -> tuple[Tensor, ...]:
        keys, values = history.caches[i]
        return (
            kernels.paged_decode(
                q,
                keys,
                values,
                history.tables,
                history.seq_lens,
                workspace,
                scale=dim**-0.5,
                cap=cap,
                splits=splits,
                **history.scales,
            ),
        )

    notes = [f"{queries}q p{block_size}", *([f"s{splits}"] if splits else []), *(["capped"] if cap else [])]
    peer = None
    if queries == 1 and cap is None and cache_dtype == dtype and device.type == "cuda":
        pairs = [history.contiguous(i, dtype) for i in range(n)]
        rows = q[:, :, None]

        def peer(i: int) -> Tensor:
            return F.scaled_dot_product_attention(rows, *pairs[i], enable_gqa=True)

    return Case(
        label("paged_decode", shape.name, f"{sequences}x{context}", *notes, dtype, "kv", cache_dtype),
        n,
        kv_bytes + 2 * q.numel() * dtype.itemsize,
        lambda i: run(fused, i),
        lambda i: run(reference, i),
        1e-2,
        flops=4 * sequences * queries * context * shape.q_heads * dim,
        peer=peer,
        peer_name="torch SDPA, contiguous",
    )


def uneven_case(
    shape: Shape, sequences: int, dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device, *, sort: bool
) -> Case:
    """Decode over contexts as a server has them: each somewhere within its answer, prompt and answer of 100 to 1024
    tokens; as they came, or with the longest first, as the runner has them."""
    rng, dim = random.Random(0), shape.head_dim
    lengths = [rng.randint(100, 1024) + rng.randint(0, rng.randint(100, 1024)) for _ in range(sequences)]
    if sort:
        lengths.sort(reverse=True)
    history = PagedHistory(shape, sequences, max(lengths), 1, cache_dtype, device)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    q = torch.randn(sequences, shape.q_heads, dim, device=device).to(dtype)
    workspace = DecodeWorkspace.allocate(device, sequences, shape.q_heads, shape.kv_heads, dim)
    keys, values = history.caches[0]
    arguments = (q, keys, values, history.tables, seq_lens, workspace)
    kv_bytes = 2 * sum(lengths) * shape.kv_heads * dim * cache_dtype.itemsize
    order = "longest first" if sort else "as they came"
    return Case(
        label("paged_decode uneven", shape.name, sequences, order, dtype, "kv", cache_dtype),
        1,
        kv_bytes + 2 * q.numel() * dtype.itemsize,
        lambda _: (fused.paged_decode(*arguments, scale=dim**-0.5, **history.scales),),
        lambda _: (reference.paged_decode(*arguments, scale=dim**-0.5, **history.scales),),
        1e-2,
        flops=4 * sum(lengths) * shape.q_heads * dim,
    )


def shared_case(shape: Shape, sequences: int, prefix: int, own: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Decode over keys most of which all sequences share; its bytes count them once."""
    dim = shape.head_dim
    history = PagedHistory(shape, sequences, prefix + own, 1, dtype, device)
    history.tables[:, : prefix // BLOCK_SIZE] = history.tables[:1, : prefix // BLOCK_SIZE]
    q = torch.randn(sequences, shape.q_heads, dim, device=device).to(dtype)
    workspace = DecodeWorkspace.allocate(device, sequences, shape.q_heads, shape.kv_heads, dim)
    length = torch.tensor([prefix], dtype=torch.int32, device=device)
    shared = SharedPrefix.allocate(length, sequences, shape.q_heads, dim)
    keys, values = history.caches[0]
    arguments = (q, keys, values, history.tables, history.seq_lens, workspace)
    return Case(
        label("paged_decode shared", shape.name, f"{sequences}x({prefix}+{own})", dtype),
        1,
        2 * (prefix + sequences * own) * shape.kv_heads * dim * dtype.itemsize + 2 * q.numel() * dtype.itemsize,
        lambda _: (fused.paged_decode(*arguments, scale=dim**-0.5, shared=shared),),
        lambda _: (reference.paged_decode(*arguments, scale=dim**-0.5),),
        1e-2,
        flops=4 * sequences * (prefix + own) * shape.q_heads * dim,
        peer=lambda _: fused.paged_decode(*arguments, scale=dim**-0.5),
        peer_name="each sequence by itself",
    )


def resumed_case(shape: Shape, rows: int, history: int, dtype: torch.dtype, device: torch.device) -> Case:
    """A part of a prompt behind its history: dense attention of both, joined; beside the kernel that reads pages."""
    dim, length = shape.head_dim, rows + history
    cache = PagedHistory(shape, 1, length, 1, dtype, device)
    q = torch.randn(1, rows, shape.q_heads, dim, device=device).to(dtype).transpose(1, 2)
    own = [torch.randn(1, rows, shape.kv_heads, dim, device=device).to(dtype).transpose(1, 2) for _ in range(2)]
    starts = torch.tensor([0, rows], dtype=torch.int32, device=device)

    def run(kernels: Any) -> tuple[Tensor, ...]:
        found, sums = kernels.dense_attention(q, *own, scale=dim**-0.5, causal=True)
        k, v = (
            c[cache.tables[0, : history // BLOCK_SIZE].long()].flatten(0, 1).transpose(0, 1)[None]
            for c in cache.caches[0]
        )
        part, part_sums = kernels.dense_attention(q, k, v, scale=dim**-0.5, causal=False)
        out = torch.empty(rows, shape.q_heads, dim, device=device, dtype=dtype)
        kernels.join_parts(found[0].transpose(0, 1), sums, part[0].transpose(0, 1), part_sums, out)
        return (out,)

    def paged(_: int) -> Tensor:
        keys, values = cache.caches[0]
        flat = q[0].transpose(0, 1).contiguous()
        return fused.paged_attention(flat, keys, values, cache.tables, starts, cache.seq_lens, scale=dim**-0.5)

    pairs = rows * history + rows * (rows + 1) / 2
    size = (2 * length * shape.kv_heads + 2 * rows * shape.q_heads) * dim * dtype.itemsize
    return Case(
        label("resumed", shape.name, f"{rows}+{history}", dtype),
        1,
        size,
        lambda _: run(fused),
        lambda _: run(reference),
        1e-2,
        flops=4 * pairs * shape.q_heads * dim,
        peer=paged,
        peer_name="paged attention",
    )


def joined_case(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device) -> Case:
    parts = [torch.randn(rows, shape.q_heads, shape.head_dim, device=device).to(dtype) for _ in range(2)]
    sums = [torch.randn(shape.q_heads, rows, device=device) for _ in range(2)]

    def run(kernels: Any) -> tuple[Tensor, ...]:
        out, total = torch.empty_like(parts[0]), sums[0].clone()
        kernels.join_parts(parts[0], total, parts[1], sums[1], out)
        return out, total

    return Case(
        label("join_parts", shape.name, f"m{rows}", dtype),
        1,
        3 * parts[0].numel() * dtype.itemsize,
        lambda _: run(fused),
        lambda _: run(reference),
        1e-2,
    )
