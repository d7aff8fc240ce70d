"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoder import Decoder, DecoderLayer


class CachedAttention(Protocol):
    """Attention over what the cache of `layer` holds, this step's keys and values included.

    q: [tokens, heads, head_dim]. qkv: [tokens, (heads + 2 * kv_heads) * head_dim], in which k is turned if
    ``keys_in_place``. Returns [tokens, heads * head_dim].
    """

    keys_in_place: bool

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor: ...


class FusedDecoder:
    """Borrows the weights of `model`."""

    def __init__(self, model: Decoder, kernels: Kernels) -> None:
        self.config = model.config
        self.kernels = kernels
        self.embedding, self.head, self.norm = model.embedding, model.head, model.norm
        self.layers = [layer for layer in model.layers if isinstance(layer, DecoderLayer)]
        device = self.embedding.device
        frequencies = torch.tensor(self.config.inverse_frequencies(), dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(self.config.max_position, dtype=torch.float32, device=device), frequencies)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)

    def __call__(
        self, ids: Tensor, positions: Tensor, slots: Tensor, last: Tensor, keys: Tensor, values: Tensor,
        attention: CachedAttention,
    ) -> Tensor:  # fmt: skip
        """
        Args:
            ids, positions: [tokens] int64; slots: [tokens] int64, -1 writes no cache.
            last: [rows] int64, the tokens whose next-token logits are wanted.
            keys, values: [layers, blocks, block_size, kv_heads, head_dim].
        Returns:
            [rows, vocab_size] in the model's dtype.
        """
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(ids, self.embedding)
        x = k.rms_norm(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            qkv = F.linear(x, layer.qkv, layer.qkv_bias)
            q = k.rotary_kv(
                qkv, positions, self.cos_sin, slots, keys[i], values[i],
                q_norm=layer.q_norm, k_norm=layer.k_norm, eps=eps, keys_in_place=attention.keys_in_place,
            )  # fmt: skip
            x = F.linear(attention(i, q, qkv), layer.out)
            x, residual = k.add_rms_norm(x, residual, layer.post_norm, eps)
            x = F.linear(k.silu_mul(F.linear(x, layer.gate_up)), layer.down)
            if layer is self.layers[-1]:  # nothing but the logits reads on, and few rows have any
                x, residual = x[last], residual[last]
            x, residual = k.add_rms_norm(x, residual, self._next_norm(i), eps)
        return F.linear(x, self.head)

    def _next_norm(self, layer: int) -> Tensor:
        """Of what comes behind `layer`."""
        return self.layers[layer + 1].input_norm if layer + 1 < len(self.layers) else self.norm
