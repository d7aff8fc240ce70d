# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The steps between the projections and latent attention in one launch: RMSNorm of the latent, rotary position
embedding (Su et al. 2021) of the shared key and of the queries, and the write of latent and key into the paged cache.

Rotated values are stored in the order of halves, for interleaved rotation too: query and key use the same order.
"""

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.latent.reference import require_step
from backend.kernels.launching.chaining import after_predecessors, chained

HEADS_AT_ONCE = 16


@triton.jit
def _latent_rotary(
    qkv_ptr, q_ptr, positions_ptr, cos_sin_ptr, slots_ptr, norm_ptr, latent_ptr, rotary_ptr, out_ptr, eps,
    qkv_stride, q_token_stride, q_head_stride, out_token_stride, out_head_stride, begin, plain, heads, block_size,
    l_block_stride, l_token_stride, r_block_stride, r_token_stride,
    RANK: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, R)
    turns = pair < HALF
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * 2 * HALF + pair, turns, 0.0)
    sin = tl.load(cos_sin_ptr + position * 2 * HALF + HALF + pair, turns, 0.0)
    lower, upper = pair, HALF + pair
    if INTERLEAVED:
        lower, upper = 2 * pair, 2 * pair + 1
    if tl.program_id(1) == 0:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        if slot >= 0:  # a padding token writes no cache
            row = qkv_ptr + token * qkv_stride + begin
            dim = tl.arange(0, D)
            latent = tl.load(row + dim, dim < RANK, 0.0).to(tl.float32)
            latent *= tl.rsqrt(tl.sum(latent * latent, 0) / RANK + eps)
            latent *= tl.load(norm_ptr + dim, dim < RANK, 0.0).to(tl.float32)
            block, offset = slot // block_size, slot % block_size
            tl.store(latent_ptr + block * l_block_stride + offset * l_token_stride + dim, latent, dim < RANK)
            low = tl.load(row + RANK + lower, turns, 0.0).to(tl.float32)
            high = tl.load(row + RANK + upper, turns, 0.0).to(tl.float32)
            key = rotary_ptr + block * r_block_stride + offset * r_token_stride
            tl.store(key + pair, low * cos - high * sin, turns)
            tl.store(key + HALF + pair, high * cos + low * sin, turns)
    else:
        head = (tl.program_id(1) - 1) * BLOCK_H + tl.arange(0, BLOCK_H)
        inside = (head < heads)[:, None] & turns[None, :]
        q = q_ptr + token * q_token_stride + head[:, None] * q_head_stride + plain
        low = tl.load(q + lower[None, :], inside, 0.0).to(tl.float32)
        high = tl.load(q + upper[None, :], inside, 0.0).to(tl.float32)
        out = out_ptr + token * out_token_stride + head[:, None] * out_head_stride + RANK + pair[None, :]
        tl.store(out, low * cos[None, :] - high * sin[None, :], inside)
        tl.store(out + HALF, high * cos[None, :] + low * sin[None, :], inside)


def latent_rotary(
    qkv: Tensor, q: Tensor, positions: Tensor, cos_sin: Tensor, slots: Tensor, norm: Tensor, latents: Tensor,
    keys: Tensor, out: Tensor, *, eps: float = 1e-6, interleaved: bool = True,
) -> Tensor:  # fmt: skip
    """Write normalised latents and rotated keys to their slots, and the rotated part of the queries into `out`.

    Args:
        qkv: [tokens, columns], rows contiguous; the last columns are latent and key before norm and rotation.
        q: [tokens, heads, plain + rotary], the last dimension contiguous; the last `rotary` columns are rotated.
        positions: [tokens], int32 or int64, each below cos_sin's length; any valid value for a padding token.
        cos_sin: [max_positions, rotary] float32, cosines then sines.
        slots: [tokens] int64, ``block * block_size + offset`` in the cache; -1 writes nothing.
        norm: [rank], the latent's RMSNorm weight.
        latents, keys: [blocks, block_size, 1, rank] and [blocks, block_size, 1, rotary] of qkv's dtype.
        out: [tokens, heads, rank + rotary] of qkv's dtype; the last `rotary` columns are written.
        eps: added to the mean square in the norm.
        interleaved: rotate pairs of neighbours instead of pairs across the halves.
    Returns:
        out.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    tokens, heads, rank, rotary = require_step(qkv, q, positions, cos_sin, slots, norm, latents, keys, out)
    if tokens == 0:
        return out
    _latent_rotary[(tokens, 1 + triton.cdiv(heads, HEADS_AT_ONCE))](
        qkv, q, positions, cos_sin, slots, norm, latents, keys, out, eps, qkv.stride(0), *q.stride()[:2],
        *out.stride()[:2], qkv.shape[1] - rank - rotary, q.shape[2] - rotary, heads, latents.shape[1],
        *latents.stride()[:2], *keys.stride()[:2],
        RANK=rank, D=triton.next_power_of_2(rank), HALF=rotary // 2, R=triton.next_power_of_2(rotary // 2),
        INTERLEAVED=interleaved, BLOCK_H=HEADS_AT_ONCE, num_warps=1, **chained(),
    )  # fmt: skip
    return out
