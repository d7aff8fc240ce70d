"""What layers of every family are made of, in plain torch: RMSNorm, rotary embedding, attention that is handed in."""

from typing import Protocol

import torch
from torch import Tensor


class Attention(Protocol):
    """Writes this step's keys and values to the cache of `layer`, then attends causally over each whole sequence.

    q: [tokens, num_heads, head_dim]; k, v: [tokens, num_kv_heads, head_dim]; returns q's shape. Of latent attention
    k is the latent and v the rotary key, q as wide as both, and what comes back as wide as the latent.
    sinks: [num_heads], of layers that have them.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor: ...


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang & Sennrich 2019. Accumulates in float32. x: [..., width], weight: [width]."""
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE by halves. x: [tokens, heads, head_dim]; cos, sin: [tokens, 1, head_dim // 2] in x's dtype."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
