"""Cases of latent attention, at the shapes of DeepSeek-V3 on eight ranks and on one, and of V2-Lite."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from backend.kernels.latent import attention, products, reference, rotary
from bench.kernels.case import BLOCK_SIZE, Case, label, sets_of

RANK, ROTARY, PLAIN, VALUE = 512, 64, 128, 128
HEADS = {"deepseek-v2-lite": 16, "deepseek-v3": 128}  # on eight ranks V3 has as many as V2-Lite


class LatentHistory:
    """Random latents and rotary keys of ``count`` sequences of ``length`` tokens, in blocks dealt at random."""

    def __init__(self, count: int, length: int, sets: int, dtype: torch.dtype, device: torch.device) -> None:
        per_sequence = -(-length // BLOCK_SIZE)
        total = count * per_sequence
        self.latents = torch.empty(sets, total, BLOCK_SIZE, 1, RANK, device=device, dtype=dtype).normal_()
        self.keys = torch.empty(sets, total, BLOCK_SIZE, 1, ROTARY, device=device, dtype=dtype).normal_()
        self.tables = torch.randperm(total, device=device).int().view(count, per_sequence)
        self.seq_lens = torch.full((count,), length, dtype=torch.int32, device=device)


def decode_case(name: str, sequences: int, context: int, dtype: torch.dtype, device: torch.device) -> Case:
    heads, size = HEADS[name], sequences * context * (RANK + ROTARY) * dtype.itemsize
    sets = sets_of(size)
    history = LatentHistory(sequences, context, sets, dtype, device)
    q = torch.randn(sequences, heads, RANK + ROTARY, device=device).to(dtype)
    room = reference.decode_workspace(device, sequences, heads, RANK)

    def run(ops: Any, i: int) -> tuple[Tensor, ...]:
        cache = history.latents[i], history.keys[i], history.tables, history.seq_lens
        return (ops.latent_decode(q, *cache, room, scale=0.1),)

    return Case(
        label("latent_decode", name, f"{sequences}x{context}", dtype),
        sets,
        size + sequences * heads * (2 * RANK + ROTARY) * dtype.itemsize,
        lambda i: run(attention, i),
        lambda i: run(reference, i),
        1e-2,
        flops=2 * sequences * context * heads * (2 * RANK + ROTARY),
    )


def prompt_case(name: str, queries: int, context: int, count: int, dtype: torch.dtype, device: torch.device) -> Case:
    heads, length = HEADS[name], queries + context
    history = LatentHistory(count, length, 1, dtype, device)
    q = torch.randn(count * queries, heads, RANK + ROTARY, device=device).to(dtype)
    starts = (torch.arange(count + 1, device=device) * queries).int()
    pairs = count * (queries * context + queries * (queries + 1) / 2)

    def run(ops: Any) -> tuple[Tensor, ...]:
        cache = history.latents[0], history.keys[0], history.tables
        return (ops.latent_attention(q, *cache, starts, history.seq_lens, scale=0.1),)

    return Case(
        label("latent_attention", name, f"{count}x{queries}+{context}", dtype),
        1,
        (count * length * (RANK + ROTARY) + 2 * q.numel()) * dtype.itemsize,
        lambda i: run(attention),
        lambda i: run(reference),
        1e-2,
        flops=2 * pairs * heads * (2 * RANK + ROTARY),
    )


def product_case(name: str, tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    heads = HEADS[name]
    size = heads * PLAIN * RANK * dtype.itemsize
    sets = sets_of(size)
    x = torch.randn(tokens, heads, PLAIN + ROTARY, device=device).to(dtype)[..., :PLAIN]
    weights = (torch.randn(sets, heads, PLAIN + VALUE, RANK, device=device) * 0.05).to(dtype)[:, :, :PLAIN]
    out = torch.zeros(tokens, heads, RANK + ROTARY, device=device, dtype=dtype)[..., :RANK]
    moved = size + tokens * heads * (PLAIN + RANK) * dtype.itemsize
    return Case(
        label("per_head_linear", name, f"m{tokens}", dtype),
        sets,
        moved,
        lambda i: (products.per_head_linear(x, weights[i], out),),
        lambda i: (reference.per_head_linear(x, weights[i], torch.empty_like(out)),),
        1e-2,
        flops=2 * tokens * heads * PLAIN * RANK,
        peer=lambda i: torch.bmm(x.transpose(0, 1), weights[i]),
        peer_name="torch bmm",
    )


def rotary_case(name: str, tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    heads = HEADS[name]
    blocks = -(-tokens // BLOCK_SIZE)
    qkv = torch.randn(tokens, 1536 + RANK + ROTARY, device=device).to(dtype)
    q = torch.randn(tokens, heads, PLAIN + ROTARY, device=device).to(dtype)
    places = torch.arange(tokens, device=device)
    angles = torch.rand(tokens, ROTARY // 2, device=device)
    table, norm = torch.cat((angles.cos(), angles.sin()), 1), torch.ones(RANK, device=device, dtype=dtype)

    def run(ops: Any) -> tuple[Tensor, ...]:
        latents = torch.zeros(blocks, BLOCK_SIZE, 1, RANK, device=device, dtype=dtype)
        keys = torch.zeros(blocks, BLOCK_SIZE, 1, ROTARY, device=device, dtype=dtype)
        out = torch.zeros(tokens, heads, RANK + ROTARY, device=device, dtype=dtype)
        ops.latent_rotary(qkv, q, places, table, places, norm, latents, keys, out)
        return latents, keys, out

    moved = tokens * (2 * (RANK + ROTARY) + 2 * heads * ROTARY) * dtype.itemsize
    twin = lambda _: run(reference)  # noqa: E731 -- as the others
    return Case(label("latent_rotary", name, f"m{tokens}", dtype), 1, moved, lambda _: run(rotary), twin, 1e-2)


def cases(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    for name in HEADS:
        for sequences, context in ((1, 1024), (32, 1024), (128, 1024), (1, 32768)):
            yield decode_case(name, sequences, context, dtype, device)
        for queries, context, count in ((2048, 0, 1), (512, 7680, 1)):
            yield prompt_case(name, queries, context, count, dtype, device)
        for tokens in (1, 32, 2048):
            yield product_case(name, tokens, dtype, device)
            yield rotary_case(name, tokens, dtype, device)
