"""Torch twins of `products`, `rotary` and `attention`, and the argument checks that kernels and twins share."""

from itertools import pairwise

import torch
from torch import Tensor

from backend.kernels.attention.workspace import MAX_SPLITS, DecodeWorkspace, power_of_two
from backend.kernels.launching.launch import multiprocessors, require

MOST_RANK, MOST_ROTARY = 512, 128


def require_heads(x: Tensor, weight: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    """Return (tokens, heads, width, outputs). Raises KernelArgumentError for arguments that do not fit."""
    require(x.dim() == 3 and x.stride(2) == 1, f"x must be [tokens, heads, width], got {tuple(x.shape)}")
    tokens, heads, width = x.shape
    fits = weight.dim() == 3 and weight.shape[:2] == (heads, width)
    require(fits, f"weight must be [{heads}, {width}, outputs], got {tuple(weight.shape)}")
    outputs = weight.shape[2]
    fits = out.shape == (tokens, heads, outputs) and out.stride(2) == 1
    require(fits, f"out must be [{tokens}, {heads}, {outputs}], got {tuple(out.shape)}")
    require(x.dtype == weight.dtype == out.dtype, f"x is {x.dtype}, weight {weight.dtype}, out {out.dtype}")
    return tokens, heads, width, outputs


def require_step(
    qkv: Tensor,
    q: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slots: Tensor,
    norm: Tensor,
    latents: Tensor,
    keys: Tensor,
    out: Tensor,
) -> tuple[int, int, int, int]:
    """Return (tokens, heads, rank, rotary). Raises KernelArgumentError for arguments that do not fit."""
    require(qkv.dim() == 2 and qkv.stride(1) == 1, f"qkv must be [tokens, columns], got {tuple(qkv.shape)}")
    tokens, rank, rotary = len(qkv), latents.shape[3], keys.shape[3]
    require(qkv.shape[1] >= rank + rotary, f"{qkv.shape[1]} columns do not hold a latent of {rank} and {rotary}")
    require(q.dim() == 3 and len(q) == tokens and q.stride(2) == 1, f"q must be [{tokens}, heads, width]")
    require(q.shape[2] >= rotary, f"queries {q.shape[2]} wide have no {rotary} to turn")
    require(out.shape == (tokens, q.shape[1], rank + rotary) and out.stride(2) == 1, f"out is {tuple(out.shape)}")
    require(positions.shape == (tokens,) and slots.shape == (tokens,), f"positions and slots must be [{tokens}]")
    require(cos_sin.dtype == torch.float32 and cos_sin.is_contiguous(), "cos_sin must be contiguous float32")
    require(cos_sin.shape[1] == rotary and rotary % 2 == 0, f"cos_sin is {cos_sin.shape[1]} wide, keys {rotary}")
    require(norm.shape == (rank,), f"the norm's weight must be [{rank}]")
    _require_parts(latents, keys, qkv)
    require(q.dtype == out.dtype == qkv.dtype, f"qkv is {qkv.dtype}, q {q.dtype}, out {out.dtype}")
    return tokens, q.shape[1], rank, rotary


def require_cache(q: Tensor, latents: Tensor, keys: Tensor, out: Tensor | None) -> tuple[int, int, int, int, Tensor]:
    """Return (tokens, heads, rank, rotary, output tensor). Raises KernelArgumentError for arguments that do not fit."""
    require(q.dim() == 3 and q.is_contiguous(), f"q must be contiguous [tokens, heads, width], got {tuple(q.shape)}")
    rank, rotary = latents.shape[3], keys.shape[3]
    require(q.shape[2] == rank + rotary, f"queries are {q.shape[2]} wide, latent and key {rank} and {rotary}")
    require(rank <= MOST_RANK and rotary <= MOST_ROTARY, f"a rank of {rank} and {rotary} is above 512 and 128")
    require(latents.shape[1] >= 16, f"a cache block holds at least 16 tokens, got {latents.shape[1]}")
    _require_parts(latents, keys, q)
    shape = (*q.shape[:2], rank)
    found = q.new_empty(shape) if out is None else out
    fits = found.shape == shape and found.dtype == q.dtype and found.is_contiguous()
    require(fits, f"out must be contiguous, {q.dtype}, {shape}")
    return *q.shape[:2], rank, rotary, found


def _require_parts(latents: Tensor, keys: Tensor, x: Tensor) -> None:
    require(latents.shape[:3] == keys.shape[:3] and latents.shape[2] == 1, "latents and keys are of the same tokens")
    require(latents.stride(3) == 1 and keys.stride(3) == 1, "a token must be contiguous in the cache")
    require(latents.dtype == keys.dtype == x.dtype, f"the cache is {latents.dtype} and {keys.dtype}, x {x.dtype}")


def decode_rows(heads: int, element_size: int) -> int:
    """Return the heads in a program's tile: at least 16, the least that tensor cores multiply; 16 for float32."""
    return 16 if element_size == 4 else max(16, min(64, power_of_two(heads)))


def default_splits(sequences: int, heads: int, device: torch.device) -> int:
    """Return the number of key parts, a power of two that gives about two programs per multiprocessor. One program uses
    nearly all of a multiprocessor's registers."""
    programs = sequences * -(-heads // 64)
    return min(MAX_SPLITS, power_of_two(max(1, 2 * multiprocessors(device) // programs)))


def decode_workspace(device: torch.device, sequences: int, heads: int, rank: int) -> DecodeWorkspace:
    """Return scratch memory for `latent_decode` for batches of up to `sequences`. rank: width of the latent."""
    splits = ((batch, default_splits(batch, heads, device)) for batch in range(1, sequences + 1))
    parts = max(batch * parts if parts > 1 else 0 for batch, parts in splits)
    partial = torch.empty(parts * heads * (power_of_two(rank) + 2), device=device)
    return DecodeWorkspace(partial, torch.zeros(0, dtype=torch.int32, device=device))


def per_head_linear(x: Tensor, weight: Tensor, out: Tensor, *, batch_invariant: bool = False) -> Tensor:
    """See `products.per_head_linear`."""
    require_heads(x, weight, out)
    if batch_invariant:  # row by row: a library product of many rows rounds differently
        for row in range(len(x)):
            out[row] = torch.bmm(x[row, :, None].float(), weight.float())[:, 0].to(x.dtype)
        return out
    return out.copy_(torch.bmm(x.transpose(0, 1).float(), weight.float()).transpose(0, 1))


def latent_rotary(
    qkv: Tensor,
    q: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slots: Tensor,
    norm: Tensor,
    latents: Tensor,
    keys: Tensor,
    out: Tensor,
    *,
    eps: float = 1e-6,
    interleaved: bool = True,
) -> Tensor:
    """See `rotary.latent_rotary`."""
    _, _, rank, rotary = require_step(qkv, q, positions, cos_sin, slots, norm, latents, keys, out)
    cos, sin = cos_sin[positions.long()].chunk(2, -1)
    row, written = qkv[:, -(rank + rotary) :].float(), slots >= 0
    latent = row[:, :rank]
    latent = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + eps) * norm.float()
    key = _turned(row[:, rank:], cos, sin, interleaved=interleaved)
    for cache, values in ((latents, latent), (keys, key)):
        cache.view(-1, cache.shape[3])[slots[written]] = values[written].to(cache.dtype)
    turned = q[..., q.shape[2] - rotary :].float()
    out[..., rank:] = _turned(turned, cos[:, None], sin[:, None], interleaved=interleaved).to(out.dtype)
    return out


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    lower, upper = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    return torch.cat((lower * cos - upper * sin, upper * cos + lower * sin), -1)


def latent_attention(
    q: Tensor,
    latents: Tensor,
    keys: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    batch_invariant: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """See `attention.latent_attention`."""
    *_, out = require_cache(q, latents, keys, out)
    bounds = query_start.tolist()
    out[bounds[-1] :] = 0
    for sequence, (begin, end) in enumerate(pairwise(bounds)):
        length = int(seq_lens[sequence])
        if begin == end:
            continue
        found = _gathered(latents, keys, block_tables[sequence], length)
        for step in range(begin, end) if batch_invariant else (slice(begin, end),):
            rows = slice(step, step + 1) if isinstance(step, int) else step
            seen = length - (end - rows.stop)  # the shape of a row's product does not depend on later rows
            mask = torch.ones(rows.stop - rows.start, seen, dtype=torch.bool, device=q.device)
            mask = mask.tril(seen - (rows.stop - rows.start))
            out[rows] = _attend(q[rows], found[:seen], latents.shape[3], scale, mask)
    return out


def latent_decode(
    q: Tensor,
    latents: Tensor,
    keys: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    workspace: DecodeWorkspace,
    *,
    scale: float,
    splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `attention.latent_decode`."""
    *_, out = require_cache(q, latents, keys, out)
    for sequence, length in enumerate(seq_lens.tolist()):
        row = slice(sequence, sequence + 1)
        if length:
            found = _gathered(latents, keys, block_tables[sequence], length)
            out[row] = _attend(q[row], found, latents.shape[3], scale, None)
        else:
            out[row] = 0
    return out


def _gathered(latents: Tensor, keys: Tensor, table: Tensor, length: int) -> Tensor:
    """[length, rank + rotary] float32."""
    blocks = table[: -(-length // latents.shape[1])].long()
    return torch.cat([part[blocks].flatten(0, 2)[:length].float() for part in (latents, keys)], -1)


def _attend(q: Tensor, found: Tensor, rank: int, scale: float, mask: Tensor | None) -> Tensor:
    """q: [tokens, heads, rank + rotary]. mask: [tokens, keys]. Returns [tokens, heads, rank] in q's dtype."""
    scores = torch.einsum("thd,kd->thk", q.float(), found) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
    return torch.einsum("thk,kr->thr", scores.softmax(-1), found[:, :rank]).to(q.dtype)
