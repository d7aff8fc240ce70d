"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph. There are four roads through the layers: a single row, which is all about
reading weights, and a few, which is little else; many; and many with FP8 weights, where activations are quantised token
by token on the way in. The embedding and the head stay as they are.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoder import Decoder, DecoderLayer
from backend.models.paged_decoder import (
    FEW_ROWS,
    NARROW_ROWS,
    CachedAttention,
    Hidden,
    PagedCache,
    PagedDecoder,
    Products,
    StepTokens,
    Weight,
    library_for,
    scales_of,
    table_of,
)
from backend.models.rope import Rope


@dataclass(frozen=True, slots=True)
class FusedLayer(Products):
    input_norm: Tensor
    post_norm: Tensor


class FusedDecoder(PagedDecoder):
    """Takes over the weights of `model`, as `PagedDecoder` does."""

    def __init__(self, model: Decoder, kernels: Kernels, *, fp8: bool = False) -> None:
        super().__init__(model, kernels, fp8=fp8)
        config, device = self.config, self.embedding.device
        self.norm = model.norm
        self._one = torch.ones((), device=device)
        self.layers: list[FusedLayer] = [self._layer(x) for x in model.layers if isinstance(x, DecoderLayer)]
        rope = Rope(config.rope_theta, config.rope_scaling, config.max_position)
        self.cos_sin = table_of(rope, config.head_dim, config.max_position, device)

    def _layer(self, layer: DecoderLayer) -> FusedLayer:
        return FusedLayer(
            qkv=self._weight(layer.qkv), qkv_bias=layer.qkv_bias, q_norm=layer.q_norm, k_norm=layer.k_norm,
            out=self._weight(layer.out), gate_up=self._weight(layer.gate_up), down=self._weight(layer.down),
            input_norm=layer.input_norm, post_norm=layer.post_norm,
        )  # fmt: skip

    def body(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """All layers."""
        if len(tokens.ids) <= FEW_ROWS:
            return self._few(tokens, cache, attention)
        if len(tokens.ids) <= NARROW_ROWS and self._fits_narrow:
            return self._narrow(tokens, cache, attention)
        if self.fp8:
            return self._many_fp8(tokens, cache, attention)
        with library_for(len(tokens.ids), self.embedding.device):
            return self._many(tokens, cache, attention)

    def logits(self, hidden: Hidden, last: Tensor | None) -> Tensor:
        """Of the tokens named by `last`, for few rows have a next token to draw; None: of all."""
        if last is not None:
            hidden = hidden.rows(last)
        if hidden.added is None and len(hidden.residual) <= FEW_ROWS:
            eps = self.config.rms_norm_eps
            return self.kernels.skinny_linear(hidden.residual, self.head, norm=self.norm, eps=eps)
        return F.linear(self.states(hidden, None), self.head)

    def _few(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
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
        return Hidden(hidden)

    def _narrow(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """With weights of either kind; the norms sum what the products before them leave in parts."""
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(tokens.ids, self.embedding)
        x, x_scale = self._quantised(k.rms_norm(residual, self.layers[0].input_norm, eps))
        for i, layer in enumerate(self.layers):
            qkv = k.narrow_linear(x, layer.qkv.data, scales=scales_of(x_scale, layer.qkv), bias=layer.qkv_bias)
            x, x_scale = self._quantised(self._attend(i, layer, qkv, tokens, cache, attention))
            parts = k.narrow_parts(x, layer.out.data, scales=scales_of(x_scale, layer.out))
            x, x_scale, residual = self._add_norm(parts, residual, layer.post_norm)
            gated = k.narrow_linear(x, layer.gate_up.data, scales=scales_of(x_scale, layer.gate_up), gated=True)
            x, x_scale = self._quantised(gated)
            parts = k.narrow_parts(x, layer.down.data, scales=scales_of(x_scale, layer.down))
            if i + 1 < len(self.layers):
                x, x_scale, residual = self._add_norm(parts, residual, self.layers[i + 1].input_norm)
        return Hidden(residual, parts)

    def _add_norm(self, parts: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """(normalised, its scale if quantised, new residual)."""
        eps = self.config.rms_norm_eps
        if self.fp8:
            return self.kernels.add_rms_norm_fp8(parts, residual, weight, eps)
        x, residual = self.kernels.add_rms_norm(parts, residual, weight, eps)
        return x, None, residual

    def _many(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """The products that end a residual branch add to the residual themselves: one pass over it less."""
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(tokens.ids, self.embedding)
        for i, layer in enumerate(self.layers):
            qkv = F.linear(k.rms_norm(residual, layer.input_norm, eps), layer.qkv.data, layer.qkv_bias)
            residual.addmm_(self._attend(i, layer, qkv, tokens, cache, attention), layer.out.data.t())
            gate_up = F.linear(k.rms_norm(residual, layer.post_norm, eps), layer.gate_up.data)
            residual.addmm_(k.silu_mul(gate_up), layer.down.data.t())
        return Hidden(residual)

    def _many_fp8(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """Products are left unscaled where their readers have few scales to read; the library is faster so."""
        k, eps = self.kernels, self.config.rms_norm_eps
        residual = F.embedding(tokens.ids, self.embedding)
        x, x_scale = k.rms_norm_fp8(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            if attention.keys_in_place or layer.qkv_bias is not None:
                qkv, scales = self._linear_fp8(x, x_scale, layer.qkv), None
                if layer.qkv_bias is not None:
                    qkv = qkv + layer.qkv_bias
            else:
                qkv, scales = self._product(x, x_scale, layer.qkv)
            x, x_scale = k.quantize_rows(self._attend(i, layer, qkv, tokens, cache, attention, scales))
            x, scales = self._product(x, x_scale, layer.out)
            x, x_scale, residual = k.add_rms_norm_fp8(x, residual, layer.post_norm, eps, scales=scales)
            x, x_scale = k.silu_mul_fp8(self._linear_fp8(x, x_scale, layer.gate_up))
            x, scales = self._product(x, x_scale, layer.down)
            if i + 1 < len(self.layers):
                x, x_scale, residual = k.add_rms_norm_fp8(
                    x, residual, self.layers[i + 1].input_norm, eps, scales=scales
                )
        return Hidden(residual, x, scales)

    def _attend(
        self, index: int, layer: FusedLayer, qkv: Tensor, tokens: StepTokens, cache: PagedCache,
        attention: CachedAttention, scales: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        return self._turned(index, layer, qkv, self.cos_sin, tokens, cache, attention, scales)

    def _product(self, x: Tensor, x_scale: Tensor, weight: Weight) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(product, the scales that it lacks)."""
        assert weight.scale is not None  # noqa: S101
        return self.kernels.fp8_product(x, weight.data, self._one), (x_scale, weight.scale)
