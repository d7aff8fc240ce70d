# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The inner loop that both attention kernels share: online softmax (Milakov & Gimelshein 2018; FlashAttention-2, Dao
2023) over keys and values that lie in the blocks of a paged cache (PagedAttention, Kwon et al. 2023).

Rows of the tile are (query token, head of the group) pairs, so one read of a key serves every query head that shares it
(grouped-query attention, Ainslie et al. 2023).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import FP8, require

LOG2E = 1.4426950408889634
A_NAT = tl.constexpr(LOG2E)  # in the units of scores, whose powers are of two
# Finite, so that a row which sees no key ends as 0 / 1: with -inf it would be exp(-inf + inf).
LOWEST = tl.constexpr(-1e30)


@triton.jit
def attend(
    acc, top, total, q, position, oldest, first, last, table_ptr, k_ptr, v_ptr,
    k_block_stride, k_token_stride, v_block_stride, v_token_stride, score_scale, window,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``first ≤ key < last`` into (acc [M, D], top [M], total [M]).

    q [M, D] and acc are in units of ``score_scale`` (softmax scale × log2 e × key scale); ``position`` [M] is the last
    key each row may see, -1 for none. ``first`` is a multiple of TILE; keys below ``oldest`` are not read. Without
    MASKED every row must see every key of the range, and ``last - first`` must be a multiple of TILE.
    The score is scaled after the mask in both forms, so that both round alike and a row's bits do not depend on which
    tiles its neighbours needed masked. With CAP > 0 the scaled score s becomes ``CAP * tanh(s / CAP)`` before the
    mask (Gemma Team 2024, Gemma 2, section 2), its factor CAP, too, behind it.
    """
    unit = score_scale
    if CAP > 0:
        unit = CAP * A_NAT
    lane = tl.arange(0, TILE)
    dim = tl.arange(0, D)
    for start in tl.range(first, last, TILE):
        key = start + lane
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
            offset = start % BLOCK_SIZE + lane
            k_row = k_ptr + block * k_block_stride + offset * k_token_stride
            v_row = v_ptr + block * v_block_stride + offset * v_token_stride
        elif TILE % BLOCK_SIZE == 0:  # an entry of the table for each block, not for each key
            BLOCKS: tl.constexpr = TILE // BLOCK_SIZE
            nth = tl.arange(0, BLOCKS)
            blocks = tl.load(table_ptr + start // BLOCK_SIZE + nth, start + nth * BLOCK_SIZE < last, 0)
            block = tl.reshape(tl.broadcast_to(blocks[:, None], [BLOCKS, BLOCK_SIZE]), [TILE]).to(tl.int64)
            k_row = k_ptr + block * k_block_stride + key % BLOCK_SIZE * k_token_stride
            v_row = v_ptr + block * v_block_stride + key % BLOCK_SIZE * v_token_stride
        else:
            block = tl.load(table_ptr + key // BLOCK_SIZE, key < last, 0).to(tl.int64)
            k_row = k_ptr + block * k_block_stride + key % BLOCK_SIZE * k_token_stride
            v_row = v_ptr + block * v_block_stride + key % BLOCK_SIZE * v_token_stride
        readable = key < last
        if WINDOWED:
            readable &= key >= oldest
        if MASKED:
            k = tl.load(k_row[None, :] + dim[:, None], readable[None, :] & (dim < HEAD_DIM)[:, None], 0.0)
        elif D == HEAD_DIM:
            k = tl.load(k_row[None, :] + dim[:, None])
        else:
            k = tl.load(k_row[None, :] + dim[:, None], (dim < HEAD_DIM)[:, None], 0.0)
        score = tl.dot(q, k.to(q.dtype), input_precision="ieee")
        if CAP > 0:  # the hyperbolic tangent as 1 - 2 / (exp(2 s / CAP) + 1), which is right at both ends, too
            score = 1.0 - 2.0 / (tl.exp2(score * (score_scale * (2.0 / CAP))) + 1.0)
        if MASKED:
            visible = key[None, :] <= position[:, None]
            if WINDOWED:
                visible &= key[None, :] > position[:, None] - window
            score = tl.where(visible, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * unit)
        p = tl.exp2(score * unit - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        top = new_top
        total = total * shrink + tl.sum(p, 1)
        if MASKED:
            v = tl.load(v_row[:, None] + dim[None, :], readable[:, None] & (dim < HEAD_DIM)[None, :], 0.0)
        elif D == HEAD_DIM:
            v = tl.load(v_row[:, None] + dim[None, :])
        else:
            v = tl.load(v_row[:, None] + dim[None, :], (dim < HEAD_DIM)[None, :], 0.0)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision="ieee")
    return acc, top, total


@triton.jit
def unseen(sink_ptr, head, owned, SINKS: tl.constexpr):
    """(top, total) of rows of these heads that have seen no key yet; with SINKS those that are `owned` have seen their
    head's sink, a key without a value."""
    top = tl.full(head.shape, LOWEST, tl.float32)
    total = tl.zeros(head.shape, tl.float32)
    if SINKS:
        top = tl.where(owned, tl.load(sink_ptr + head, owned, 0.0) * A_NAT, top)
        total = tl.where(owned, 1.0, total)
    return top, total


def check_sinks(sinks: Tensor | None, heads: int) -> None:
    """Raises KernelArgumentError."""
    fits = sinks is None or (sinks.shape == (heads,) and sinks.dtype == torch.float32 and sinks.is_contiguous())
    require(fits, f"sinks are contiguous float32 [{heads}]")


def check_cache(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> tuple[int, int]:
    """(query heads of a group, head_dim padded to a power of two). Raises KernelArgumentError if q does not fit."""
    _, block_size, kv_heads, head_dim = key_cache.shape
    fp8 = key_cache.dtype == FP8
    require(q.dim() == 3 and q.is_contiguous(), f"q must be contiguous [tokens, heads, head_dim], got {tuple(q.shape)}")
    require(q.shape[2] == head_dim, f"q has head_dim {q.shape[2]}, the cache {head_dim}")
    require(q.shape[1] % kv_heads == 0, f"{q.shape[1]} query heads do not share {kv_heads} KV heads evenly")
    require(16 <= head_dim <= 256, f"head_dim {head_dim} is outside 16..256")
    require(block_size >= 16, f"a cache block holds at least 16 tokens, got {block_size}")
    require(value_cache.shape == key_cache.shape and value_cache.dtype == key_cache.dtype, "k and v caches differ")
    require(key_cache.stride(3) == 1 and value_cache.stride(3) == 1, "a head must be contiguous in the cache")
    require(fp8 or key_cache.dtype == q.dtype, f"q is {q.dtype}, the cache {key_cache.dtype}")
    require(
        fp8 == (k_scale is not None) == (v_scale is not None), "an FP8 cache needs k_scale and v_scale, others none"
    )
    return q.shape[1] // kv_heads, int(triton.next_power_of_2(head_dim))


def output_like(q: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return torch.empty_like(q)
    fits = out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous()
    require(fits, f"out must be contiguous, {q.dtype}, of q's shape {tuple(q.shape)}")
    return out


def check_cap(cap: float | None) -> float:
    """As the kernels take it: 0 for none. Raises KernelArgumentError."""
    require(cap is None or 0 < cap < float("inf"), f"scores cannot be capped at {cap}")
    return cap or 0.0


def capped(cap: float | None) -> str:
    """Of a shape that is tuned: what was measured without a cap says nothing of one."""
    return "" if cap is None else " capped"


def check_tables(block_tables: Tensor, seq_lens: Tensor) -> None:
    require(block_tables.dim() == 2 and block_tables.stride(1) == 1, "block_tables must be [sequences, max_blocks]")
    require(block_tables.dtype == torch.int32 and seq_lens.dtype == torch.int32, "tables and lengths are int32")
    require(seq_lens.shape == (block_tables.shape[0],), "one length a block table")
