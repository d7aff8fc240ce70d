# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Between the QKV projection and attention, in one launch: optional q/k RMSNorm (as in Qwen3), rotary position
embedding (Su et al. 2021, rotate-half form) of q and k, and the write of k and v into the paged cache.

k and v leave the kernel through the cache, where attention reads them; k, when asked, also through qkv itself, for an
attention over a prompt that has no history. A projection whose columns were split is summed here, so that no kernel of
its own has to.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, multiprocessors, require, require_rows, require_scales


@triton.jit
def _inverse_rms(square_sum, HEAD_DIM: tl.constexpr, eps):
    return tl.rsqrt(square_sum / HEAD_DIM + eps)


@triton.jit
def _summed(at, inside, stride, PARTS: tl.constexpr):
    """The parts of a product, `stride` numbers from each other."""
    total = tl.load(at, inside, 0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(at + part * stride, inside, 0.0).to(tl.float32)
    return total


@triton.jit
def _head_weight(q_norm_ptr, k_norm_ptr, is_q, is_k, col, inside):
    """The norm weight of each head's kind; v heads have none."""
    q_weight = tl.load(q_norm_ptr + col, inside, 0.0).to(tl.float32)
    k_weight = tl.load(k_norm_ptr + col, inside, 0.0).to(tl.float32)
    return tl.where(is_q[:, None], q_weight[None, :], tl.where(is_k[:, None], k_weight[None, :], 1.0))


@triton.jit
def _store_head_part(
    x, q_ptr, q_at, k_ptr, k_at, k_inverse, v_ptr, v_at, v_inverse, is_q, is_k, is_v, inside, FP8_MAX: tl.constexpr
):
    tl.store(q_ptr + q_at, x, is_q[:, None] & inside)
    k, v = x * k_inverse[:, None], x * v_inverse[:, None]
    if FP8_MAX > 0:
        k, v = tl.clamp(k, -FP8_MAX, FP8_MAX), tl.clamp(v, -FP8_MAX, FP8_MAX)
    tl.store(k_ptr + k_at, k, is_k[:, None] & inside)
    tl.store(v_ptr + v_at, v, is_v[:, None] & inside)


@triton.jit
def _rotary_kv(
    qkv_ptr, positions_ptr, cos_sin_ptr, slots_ptr, q_norm_ptr, k_norm_ptr, k_scale_ptr, v_scale_ptr,
    row_scale_ptr, column_scale_ptr, q_ptr, k_ptr, v_ptr, eps,
    k_block_stride, k_token_stride, k_head_stride, v_block_stride, v_token_stride, v_head_stride, block_size,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
    NORM: tl.constexpr, FP8_MAX: tl.constexpr, KEYS_IN_PLACE: tl.constexpr, SCALED: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_TAIL: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    HALF: tl.constexpr = ROTARY_DIM // 2
    TAIL: tl.constexpr = HEAD_DIM - ROTARY_DIM
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_q = head < Q_HEADS
    is_k = (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    is_v = (head >= Q_HEADS + KV_HEADS) & (head < Q_HEADS + 2 * KV_HEADS)
    exists = head < Q_HEADS + 2 * KV_HEADS

    col = tl.arange(0, BLOCK_HALF)
    in_half = col < HALF
    inside = exists[:, None] & in_half[None, :]
    head_at = qkv_ptr + (token * (Q_HEADS + 2 * KV_HEADS) + head[:, None]) * HEAD_DIM
    stride = tl.num_programs(0) * (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
    x_at = head_at + col[None, :]
    lo, hi = _summed(x_at, inside, stride, PARTS), _summed(x_at + HALF, inside, stride, PARTS)
    if SCALED:
        by_row = tl.load(row_scale_ptr + token)
        by_column = column_scale_ptr + head[:, None] * HEAD_DIM + col[None, :]
        lo *= by_row * tl.load(by_column, inside, 0.0)
        hi *= by_row * tl.load(by_column + HALF, inside, 0.0)
    if TAIL > 0:
        tail_col = tl.arange(0, BLOCK_TAIL)
        in_tail = tail_col < TAIL
        tail_inside = exists[:, None] & in_tail[None, :]
        tail_at = head_at + ROTARY_DIM + tail_col[None, :]
        tail = _summed(tail_at, tail_inside, stride, PARTS)
        if SCALED:
            by_column = column_scale_ptr + head[:, None] * HEAD_DIM + ROTARY_DIM + tail_col[None, :]
            tail *= by_row * tl.load(by_column, tail_inside, 0.0)

    if NORM:
        squares = tl.sum(lo * lo + hi * hi, 1)
        if TAIL > 0:
            squares += tl.sum(tail * tail, 1)
        factor = tl.where(is_v, 1.0, _inverse_rms(squares, HEAD_DIM, eps))[:, None]
        lo *= factor * _head_weight(q_norm_ptr, k_norm_ptr, is_q, is_k, col, in_half)
        hi *= factor * _head_weight(q_norm_ptr, k_norm_ptr, is_q, is_k, HALF + col, in_half)
        if TAIL > 0:
            tail *= factor * _head_weight(q_norm_ptr, k_norm_ptr, is_q, is_k, ROTARY_DIM + tail_col, in_tail)

    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * ROTARY_DIM + col, in_half, 0.0)[None, :]
    sin = tl.load(cos_sin_ptr + position * ROTARY_DIM + HALF + col, in_half, 0.0)[None, :]
    turns = (is_q | is_k)[:, None]
    new_lo = tl.where(turns, lo * cos - hi * sin, lo)
    new_hi = tl.where(turns, hi * cos + lo * sin, hi)

    if KEYS_IN_PLACE:
        tl.store(x_at, new_lo, inside & is_k[:, None])
        tl.store(x_at + HALF, new_hi, inside & is_k[:, None])
        if TAIL > 0:
            tl.store(tail_at, tail, tail_inside & is_k[:, None])

    slot = tl.load(slots_ptr + token).to(tl.int64)
    is_k &= slot >= 0  # a padding token writes no cache
    is_v &= slot >= 0
    block, offset = slot // block_size, slot % block_size
    k_head, v_head = head - Q_HEADS, head - Q_HEADS - KV_HEADS
    q_row = (token * Q_HEADS + head[:, None]) * HEAD_DIM
    k_row = block * k_block_stride + offset * k_token_stride + k_head[:, None] * k_head_stride
    v_row = block * v_block_stride + offset * v_token_stride + v_head[:, None] * v_head_stride
    k_inverse = tl.full([BLOCK_H], 1.0, tl.float32)
    v_inverse = tl.full([BLOCK_H], 1.0, tl.float32)
    if FP8_MAX > 0:
        k_inverse = 1.0 / tl.load(k_scale_ptr + k_head, is_k, 1.0)
        v_inverse = 1.0 / tl.load(v_scale_ptr + v_head, is_v, 1.0)
    for part in tl.static_range(2):
        at = part * HALF + col[None, :]
        _store_head_part(
            new_lo if part == 0 else new_hi, q_ptr, q_row + at, k_ptr, k_row + at, k_inverse, v_ptr, v_row + at,
            v_inverse, is_q, is_k, is_v, inside, FP8_MAX,
        )  # fmt: skip
    if TAIL > 0:
        at = ROTARY_DIM + tail_col[None, :]
        _store_head_part(
            tail, q_ptr, q_row + at, k_ptr, k_row + at, k_inverse, v_ptr, v_row + at, v_inverse,
            is_q, is_k, is_v, tail_inside, FP8_MAX,
        )  # fmt: skip


def rotary_kv(
    qkv: Tensor, positions: Tensor, cos_sin: Tensor, slots: Tensor, key_cache: Tensor, value_cache: Tensor, *,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, keys_in_place: bool = False,
    scales: tuple[Tensor, Tensor] | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Rotate q and k, write k and v to their slots, return q.

    Args:
        qkv: [tokens, (q_heads + 2 * kv_heads) * head_dim], contiguous: all q heads, then k, then v. Or in parts to be
            summed, float32 [parts, tokens, columns]; then with neither ``keys_in_place`` nor ``scales``.
        positions: [tokens], int32 or int64, each below cos_sin's length; any valid value for a padding token.
        cos_sin: [max_positions, rotary_dim] float32, cosines then sines; dimensions past rotary_dim are not turned.
        slots: [tokens] int64, ``block * block_size + offset`` in the cache; -1 writes nothing.
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], last dimension contiguous; qkv's dtype, or
            float8_e4m3fn with both scales.
        q_norm, k_norm: [head_dim] RMSNorm weights, both or neither; applied before the rotation.
        k_scale, v_scale: [kv_heads] float32; the cache holds value / scale.
        keys_in_place: write the k that attention sees back into qkv as well, unscaled. Not with ``scales``.
        scales: of qkv by row and by column, float32 [tokens, 1] and [columns, 1], if it is yet to be multiplied.
    Returns:
        q: [tokens, q_heads, head_dim] in `dtype`, or qkv's if that is None; also for padding tokens.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    parts, tokens, width = _require_qkv(qkv, whole=keys_in_place or scales is not None)
    _, block_size, kv_heads, head_dim = key_cache.shape
    q_heads = width // head_dim - 2 * kv_heads
    rotary_dim = cos_sin.shape[1]
    fp8 = key_cache.dtype == FP8
    require(
        width % head_dim == 0 and q_heads > 0, f"qkv width {width} does not hold 2 * {kv_heads} heads of {head_dim}"
    )
    require(value_cache.shape == key_cache.shape and value_cache.dtype == key_cache.dtype, "k and v caches differ")
    require(key_cache.stride(3) == 1 and value_cache.stride(3) == 1, "a head must be contiguous in the cache")
    require(positions.shape == (tokens,) and slots.shape == (tokens,), f"positions and slots must be [{tokens}]")
    require(cos_sin.dtype == torch.float32 and cos_sin.is_contiguous(), "cos_sin must be contiguous float32")
    require(rotary_dim % 2 == 0 and rotary_dim <= head_dim, f"rotary_dim {rotary_dim} must be even, ≤ {head_dim}")
    require((q_norm is None) == (k_norm is None), "q_norm and k_norm go together")
    require(
        fp8 == (k_scale is not None) == (v_scale is not None), "an FP8 cache needs k_scale and v_scale, others none"
    )
    require(not (keys_in_place and scales), "the values in qkv would stay without their scales")
    by_row, by_column = require_scales(qkv, scales)
    q = qkv.new_empty(tokens, q_heads, head_dim, dtype=dtype or qkv.dtype)
    if tokens == 0:
        return q
    heads = q_heads + 2 * kv_heads
    # Few tokens: spread a token's heads over the card. Many: fewer, fatter programs.
    block_h = 8 if tokens * heads >= 16 * multiprocessors(qkv.device) else 2
    _rotary_kv[(tokens, triton.cdiv(heads, block_h))](
        qkv, positions, cos_sin, slots, q_norm, k_norm, k_scale, v_scale, by_row, by_column, q, key_cache, value_cache,
        eps, *key_cache.stride()[:3], *value_cache.stride()[:3], block_size,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, ROTARY_DIM=rotary_dim,
        NORM=q_norm is not None, FP8_MAX=FP8_MAX if fp8 else 0.0, KEYS_IN_PLACE=keys_in_place,
        SCALED=scales is not None, PARTS=parts, BLOCK_H=block_h, BLOCK_HALF=triton.next_power_of_2(rotary_dim // 2),
        BLOCK_TAIL=triton.next_power_of_2(max(1, head_dim - rotary_dim)), num_warps=4 if block_h == 8 else 1,
        **chained(),
    )  # fmt: skip
    return q


def _require_qkv(qkv: Tensor, *, whole: bool) -> tuple[int, int, int]:
    """(parts, tokens, columns). whole: not in parts. Raises KernelArgumentError."""
    if qkv.dim() != 3:
        return 1, *require_rows("qkv", qkv)
    parts = len(qkv)
    require(qkv.dtype == torch.float32 and qkv.is_contiguous() and parts > 0, "parts are contiguous, in float32")
    require(not whole, "parts go with neither keys_in_place nor scales")
    return parts, *require_rows("qkv", qkv[0])
