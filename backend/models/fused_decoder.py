"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph. There are four roads through the layers: a single row, which is all about
reading weights, and a few, which is little else; many; and many with FP8 weights, where activations are quantised token
by token on the way in. The embedding and the head stay as they are.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.kernels.interface import Kernels
from backend.models.decoder import Decoder, DecoderLayer

FEW_ROWS = 1  # from two on, tensor cores are faster than `skinny_linear`
LT_ROWS = (64, 128)  # see `_library_for`
NARROW_ROWS = 32  # up to here `narrow_linear` is faster than the library


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
class Hidden:
    """What the layers leave behind: ``residual + added``, both [tokens, width]; None adds nothing.

    added: perhaps in parts, float32 [parts, tokens, width], to be summed. scales: of `added` by row and by column, if
    it is yet to be multiplied by them.
    """

    residual: Tensor
    added: Tensor | None = None
    scales: tuple[Tensor, Tensor] | None = None

    def rows(self, index: Tensor) -> "Hidden":
        added = None if self.added is None else self.added[..., index, :].contiguous()
        scales = None if self.scales is None else (self.scales[0][index], self.scales[1])
        return Hidden(self.residual[index], added, scales)


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
        config = self.config
        widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
        self._fits_narrow = all(width % 32 == 0 for width in widths)
        self.layers = [self._layer(layer) for layer in model.layers if isinstance(layer, DecoderLayer)]
        frequencies = torch.tensor(self.config.inverse_frequencies(), dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(self.config.max_position, dtype=torch.float32, device=device), frequencies)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1) * self.config.rope_scaling.magnitude

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

    def weights(self) -> list[Tensor]:
        """All that it multiplies by, each once."""
        found: list[Tensor | None] = [self.embedding, self.head, self.norm]
        for layer in self.layers:
            for part in (getattr(layer, f.name) for f in fields(layer)):
                found += [part.data, part.scale] if isinstance(part, Weight) else [part]
        return list({id(tensor): tensor for tensor in found if tensor is not None}.values())

    def __call__(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        """[rows, vocab_size] in the model's dtype."""
        return self.logits(self.body(tokens, cache, attention), tokens.last)

    def body(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """All layers."""
        if len(tokens.ids) <= FEW_ROWS:
            return self._few(tokens, cache, attention)
        if len(tokens.ids) <= NARROW_ROWS and self._fits_narrow:
            return self._narrow(tokens, cache, attention)
        if self.fp8:
            return self._many_fp8(tokens, cache, attention)
        with _library_for(len(tokens.ids), self.embedding.device):
            return self._many(tokens, cache, attention)

    def logits(self, hidden: Hidden, last: Tensor | None) -> Tensor:
        """Of the tokens named by `last`, for few rows have a next token to draw; None: of all."""
        k, eps = self.kernels, self.config.rms_norm_eps
        if last is not None:
            hidden = hidden.rows(last)
        if hidden.added is not None:
            x, _ = k.add_rms_norm(hidden.added, hidden.residual, self.norm, eps, scales=hidden.scales)
        elif len(hidden.residual) <= FEW_ROWS:
            return k.skinny_linear(hidden.residual, self.head, norm=self.norm, eps=eps)
        else:
            x = k.rms_norm(hidden.residual, self.norm, eps)
        return F.linear(x, self.head)

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
            qkv = k.narrow_linear(x, layer.qkv.data, scales=_scales(x_scale, layer.qkv), bias=layer.qkv_bias)
            x, x_scale = self._quantised(self._attend(i, layer, qkv, tokens, cache, attention))
            parts = k.narrow_parts(x, layer.out.data, scales=_scales(x_scale, layer.out))
            x, x_scale, residual = self._add_norm(parts, residual, layer.post_norm)
            gated = k.narrow_linear(x, layer.gate_up.data, scales=_scales(x_scale, layer.gate_up), gated=True)
            x, x_scale = self._quantised(gated)
            parts = k.narrow_parts(x, layer.down.data, scales=_scales(x_scale, layer.down))
            if i + 1 < len(self.layers):
                x, x_scale, residual = self._add_norm(parts, residual, self.layers[i + 1].input_norm)
        return Hidden(residual, parts)

    def _quantised(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.kernels.quantize_rows(x) if self.fp8 else (x, None)

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
                qkv, scales = self._linear(x, x_scale, layer.qkv), None
                if layer.qkv_bias is not None:
                    qkv = qkv + layer.qkv_bias
            else:
                qkv, scales = self._product(x, x_scale, layer.qkv)
            x, x_scale = k.quantize_rows(self._attend(i, layer, qkv, tokens, cache, attention, scales))
            x, scales = self._product(x, x_scale, layer.out)
            x, x_scale, residual = k.add_rms_norm_fp8(x, residual, layer.post_norm, eps, scales=scales)
            x, x_scale = k.silu_mul_fp8(self._linear(x, x_scale, layer.gate_up))
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
        q = self.kernels.rotary_kv(
            qkv, tokens.positions, self.cos_sin, tokens.slots, cache.keys[index], cache.values[index],
            q_norm=layer.q_norm, k_norm=layer.k_norm, eps=self.config.rms_norm_eps,
            keys_in_place=attention.keys_in_place, scales=scales, **cache.scales(index),
        )  # fmt: skip
        return attention(index, q, qkv)

    def _linear(self, x: Tensor, x_scale: Tensor, weight: Weight) -> Tensor:
        assert weight.scale is not None  # noqa: S101  (FP8 weights have one)
        return self.kernels.fp8_linear(x, x_scale, weight.data, weight.scale)

    def _product(self, x: Tensor, x_scale: Tensor, weight: Weight) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(product, the scales that it lacks)."""
        assert weight.scale is not None  # noqa: S101
        return self.kernels.fp8_product(x, weight.data, self._one), (x_scale, weight.scale)


@contextmanager
def _library_for(rows: int, device: torch.device) -> Iterator[None]:
    """At 128 rows cuBLAS takes a poor form for wide products that cuBLASLt does not (8B's down: 53 µs and 45 on an
    H100); elsewhere they are alike, or cuBLAS is ahead."""
    if device.type != "cuda" or not LT_ROWS[0] < rows <= LT_ROWS[1]:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*preferred_blas_library is an experimental feature")
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            yield
        finally:
            torch.backends.cuda.preferred_blas_library(before)


def _scales(x_scale: Tensor | None, weight: Weight) -> tuple[Tensor, Tensor] | None:
    return None if x_scale is None or weight.scale is None else (x_scale, weight.scale)
