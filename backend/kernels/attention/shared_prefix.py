# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Decode attention over a beginning that all sequences share: its keys are read once for many of them.

Rows of a tile are (sequence, head of the group) pairs, as many as a tile holds, so the tensor cores are busy and a key
is read once a tile rather than once a sequence (Hydragen, Juravsky et al. 2024; FlashInfer's cascade). The keys are cut
into a few parts, so that the card is full. What comes out of each is normalised, with the log of its weight;
`paged_decode` starts from there and goes on behind the prefix.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.attention.online_softmax import LOG2E, LOWEST, attend
from backend.kernels.attention.workspace import PREFIX_SPLITS, PREFIX_STEP, SharedPrefix
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, multiprocessors, require


@triton.jit(do_not_specialize=["sequences"])
def _shared_prefix(
    q_ptr, k_ptr, v_ptr, out_ptr, top_ptr, table_ptr, length_ptr, k_scale_ptr, sequences, split_stride,
    k_block_stride, k_token_stride, k_head_stride, v_block_stride, v_token_stride, v_head_stride, scale,
    Q_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    FP8_CACHE: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dim = tl.arange(0, D)
    head_row = row // GROUP * Q_HEADS + kv_head * GROUP + row % GROUP
    owned = row < sequences * GROUP
    inside = owned[:, None] & (dim < HEAD_DIM)[None, :]
    at = head_row[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr + at, inside, 0.0)
    score_scale = scale
    if FP8_CACHE:
        q = q.to(tl.float16)
        score_scale *= tl.load(k_scale_ptr + kv_head)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    length = tl.load(length_ptr)
    part = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    first = split * part
    last = tl.minimum(first + part, length)
    acc, top, total = attend(
        acc, top, total, q, row, 0, first, last, table_ptr,
        k_ptr + kv_head * k_head_stride, v_ptr + kv_head * v_head_stride,
        k_block_stride, k_token_stride, v_block_stride, v_token_stride, score_scale, 0,
        False, False, BLOCK_SIZE, HEAD_DIM, D, TILE, 0.0,
    )  # fmt: skip
    some = total > 0
    out_ptr += split.to(tl.int64) * split_stride * HEAD_DIM
    tl.store(out_ptr + at, acc / tl.where(some, total, 1.0)[:, None], inside)
    tl.store(
        top_ptr + split * split_stride + head_row,
        tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), LOWEST),
        owned,
    )


def attend_prefix(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, shared: SharedPrefix, *,
    scale: float, k_scale: Tensor | None, padded_dim: int,
    splits: int,
) -> None:  # fmt: skip
    """Fill the first ``splits`` parts of ``shared.out`` and ``shared.top`` for `paged_decode`, which checks the rest.

    q: [sequences, q_heads, head_dim]. block_table: [max_blocks] int32 of any of the sequences. Values of an FP8 cache
    stay unscaled.
    """
    sequences, q_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = key_cache.shape
    require(
        shared.out.shape[2:] == q.shape[1:] and shared.out.shape[1] >= sequences, "the shared prefix is of other rows"
    )
    rows = sequences * (q_heads // kv_heads)
    block_m = prefix_rows(rows, q.element_size())
    tile = PREFIX_STEP if padded_dim <= 128 and q.element_size() < 4 else 16
    _shared_prefix[(triton.cdiv(rows, block_m), kv_heads, splits)](
        q, key_cache, value_cache, shared.out, shared.top, block_table, shared.length, k_scale, sequences,
        shared.top.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3], scale * LOG2E,
        Q_HEADS=q_heads, GROUP=q_heads // kv_heads, HEAD_DIM=head_dim, D=padded_dim, BLOCK_SIZE=block_size,
        FP8_CACHE=key_cache.dtype == FP8, BLOCK_M=block_m, TILE=tile, SPLITS=splits,
        num_warps=4, num_stages=3, **chained(),
    )  # fmt: skip


def prefix_rows(rows: int, item_size: int) -> int:
    """Rows of a program's tile; float32 has no tensor cores to feed."""
    return min(64, max(16, triton.next_power_of_2(rows))) if item_size < 4 else 16


def prefix_splits(rows: int, kv_heads: int, item_size: int, device: torch.device) -> int:
    """A power of two that cuts the keys until there are two programs or so a multiprocessor."""
    programs = kv_heads * triton.cdiv(rows, prefix_rows(rows, item_size))
    splits = 1
    while splits < PREFIX_SPLITS and programs * splits < 3 * multiprocessors(device) // 2:
        splits *= 2
    return splits
