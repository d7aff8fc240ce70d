"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph. There are three roads through the layers: a single row, which is all about
reading weights; many; and many with FP8 weights, where activations are quantised token by token on the way in. The
embedding and the head stay as they are.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.kernels.interface import Kernels
from backend.models.decoder import Decoder, DecoderLayer

FEW_ROWS = 1  # from two on, the library's products are faster than `skinny_linear`


class CachedAttention(Protocol):
    """Attention over what the cache of `layer` holds, this step's keys and values included.

    q: [tokens, heads, head_dim]. qkv: [tokens, (heads + 2 * kv_heads) * head_dim], in which k is turned if
    ``keys_in_place``. Returns [tokens, heads * head_dim].
    """

    keys_in_place: bool

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PagedCache:
    """keys, values: [layers, blocks, block_size, kv_heads, head_dim]. FP8 ones hold value / scale, scale [layers,
    kv_heads] float32."""

    keys: Tensor
    values: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def scales(self, layer: int) -> dict[str, Tensor | None]:
        """Of one layer, as the kernels take them."""
        if self.k_scale is None or self.v_scale is None:
            return {"k_scale": None, "v_scale": None}
        return {"k_scale": self.k_scale[layer], "v_scale": self.v_scale[layer]}


@dataclass(frozen=True, slots=True)
class StepTokens:
    """ids, positions, slots: [tokens] int64; slot -1 writes no cache. last: [rows] int64, the tokens whose next-token
    logits are wanted; None: all of them."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor | None


@dataclass(frozen=True, slots=True)
class Weight:
    """[out, in] in the model's dtype; or float8_e4m3fn, times scale [out, 1] float32."""

    data: Tensor
    scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class FusedLayer:
    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Weight
    post_norm: Tensor
    gate_up: Weight
    down: Weight


class FusedDecoder:
    """Takes over the weights of `model`. fp8: quantises those of the layers, one by one, and leaves `model` without."""

    def __init__(self, model: Decoder, kernels: Kernels, *, fp8: bool = False) -> None:
        self.config = model.config
        self.kernels = kernels
        self.fp8 = fp8
        self.kv_scales = model.kv_scales
        self.embedding, self.head, self.norm = model.embedding, model.head, model.norm
        device = self.embedding.device
        self._one = torch.ones((), device=device)
        self.layers = [self._layer(layer) for layer in model.layers if isinstance(layer, DecoderLayer)]
        frequencies = torch.tensor(self.config.inverse_frequencies(), dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(self.config.max_position, dtype=torch.float32, device=device), frequencies)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)

    def _layer(self, layer: DecoderLayer) -> FusedLayer:
        return FusedLayer(
            layer.input_norm, self._weight(layer.qkv), layer.qkv_bias, layer.q_norm, layer.k_norm,
            self._weight(layer.out), layer.post_norm, self._weight(layer.gate_up), self._weight(layer.down),
        )  # fmt: skip

    def _weight(self, parameter: nn.Parameter) -> Weight:
        if not self.fp8:
            return Weight(parameter)
        quantised = Weight(*self.kernels.quantize_rows(parameter))
        parameter.data = parameter.data.new_empty(0)
        return quantised

    def __call__(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        """[rows, vocab_size] in the model's dtype."""
        if len(tokens.ids) <= FEW_ROWS:
            return self._few(tokens, cache, attention)
        return self._many_fp8(tokens, cache, attention) if self.fp8 else self._many(tokens, cache, attention)

    def _few(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        linear, eps = self.kernels.skinny_linear, self.config.rms_norm_eps
        hidden = F.embedding(tokens.ids, self.embedding)
        for i, layer in enumerate(self.layers):
            qkv = linear(
                hidden, layer.qkv.data, scale=layer.qkv.scale, bias=layer.qkv_bias, norm=layer.input_norm, eps=eps
            )
            attended = self._attend(i, layer, qkv, tokens, cache, attention)
            hidden = linear(attended, layer.out.data, scale=layer.out.scale, residual=hidden)
            gated = linear(
                hidden, layer.gate_up.data, scale=layer.gate_up.scale, norm=layer.post_norm, eps=eps, gated=True
            )
            hidden = linear(gated, layer.down.data, scale=layer.down.scale, residual=hidden)
        if tokens.last is not None:
            hidden = hidden[tokens.last]
        if len(hidden) > FEW_ROWS:  # a step of few tokens, padded to many rows
            return F.linear(self.kernels.rms_norm(hidden, self.norm, eps), self.head)
        return linear(hidden, self.head, norm=self.norm, eps=eps)

    def _many(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(tokens.ids, self.embedding)
        x = k.rms_norm(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            qkv = F.linear(x, layer.qkv.data, layer.qkv_bias)
            x = F.linear(self._attend(i, layer, qkv, tokens, cache, attention), layer.out.data)
            x, residual = k.add_rms_norm(x, residual, layer.post_norm, eps)
            x = F.linear(k.silu_mul(F.linear(x, layer.gate_up.data)), layer.down.data)
            if layer is self.layers[-1] and tokens.last is not None:  # only the logits read on, and few rows have any
                x, residual = x[tokens.last], residual[tokens.last]
            x, residual = k.add_rms_norm(x, residual, self._next_norm(i), eps)
        return F.linear(x, self.head)

    def _many_fp8(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(tokens.ids, self.embedding)
        x, x_scale = k.rms_norm_fp8(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            qkv = self._linear(x, x_scale, layer.qkv)
            if layer.qkv_bias is not None:
                qkv = qkv + layer.qkv_bias
            x, x_scale = k.quantize_rows(self._attend(i, layer, qkv, tokens, cache, attention))
            x, scales = self._product(x, x_scale, layer.out)
            x, x_scale, residual = k.add_rms_norm_fp8(x, residual, layer.post_norm, eps, scales=scales)
            x, x_scale = k.silu_mul_fp8(self._linear(x, x_scale, layer.gate_up))
            x, scales = self._product(x, x_scale, layer.down)
            if i + 1 < len(self.layers):
                x, x_scale, residual = k.add_rms_norm_fp8(x, residual, self._next_norm(i), eps, scales=scales)
        if tokens.last is not None:
            x, residual, scales = x[tokens.last], residual[tokens.last], (scales[0][tokens.last], scales[1])
        x, _ = k.add_rms_norm(x, residual, self.norm, eps, scales=scales)
        return F.linear(x, self.head)

    def _attend(
        self, index: int, layer: FusedLayer, qkv: Tensor, tokens: StepTokens, cache: PagedCache,
        attention: CachedAttention,
    ) -> Tensor:  # fmt: skip
        q = self.kernels.rotary_kv(
            qkv, tokens.positions, self.cos_sin, tokens.slots, cache.keys[index], cache.values[index],
            q_norm=layer.q_norm, k_norm=layer.k_norm, eps=self.config.rms_norm_eps,
            keys_in_place=attention.keys_in_place, **cache.scales(index),
        )  # fmt: skip
        return attention(index, q, qkv)

    def _linear(self, x: Tensor, x_scale: Tensor, weight: Weight) -> Tensor:
        assert weight.scale is not None  # noqa: S101  (FP8 weights have one)
        return self.kernels.fp8_linear(x, x_scale, weight.data, weight.scale)

    def _product(self, x: Tensor, x_scale: Tensor, weight: Weight) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(product, the scales that it lacks)."""
        assert weight.scale is not None  # noqa: S101
        return self.kernels.fp8_product(x, weight.data, self._one), (x_scale, weight.scale)

    def _next_norm(self, layer: int) -> Tensor:
        """Of what comes behind `layer`."""
        return self.layers[layer + 1].input_norm if layer + 1 < len(self.layers) else self.norm
