"""Layers that depart from Llama's (`families.family.Variant`), computed by the kernels: Gemma 2 and 3, Granite, OLMo 2,
SmolLM3. The form that `variant_layer` takes on a GPU.

A residual add goes with the norm behind it where there is one, and products of a few rows take the kernels that read
weights fastest; what a family has for itself (GELU, multipliers, a norm of all heads at once) is torch's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.paged_decoder import (
    Attended,
    CachedAttention,
    PagedCache,
    PagedDecoder,
    Products,
    StepTokens,
    library_for,
    table_of,
)
from backend.models.layers.variant_layer import VariantLayer, wide_norms
from backend.models.rope import Rope
from backend.quantization.format import FEW_ROWS, Quantization
from backend.quantization.linear import Hidden, Linear
from backend.quantization.none import NONE

UNTURNED = 16  # columns of a table that turns nothing: the kernel takes dimensions past it as they are


@dataclass(frozen=True, slots=True)
class VariantWeights(Products):
    """Norms before and after attention and MLP, None where the family has none; q_norm and k_norm here are of one head.

    wide_norms: of q and of k, over all heads at once.
    """

    gate_up: Linear
    down: Linear
    attention_before: Tensor | None
    attention_after: Tensor | None
    mlp_before: Tensor | None
    mlp_after: Tensor | None
    wide_norms: tuple[Tensor, Tensor] | None


class VariantDecoder(PagedDecoder):
    """Takes over the weights of `model`, as `PagedDecoder` does. Norms that multiply by 1 + weight keep that sum in
    float32, in which the kernels multiply anyway."""

    def __init__(self, model: Decoder, kernels: Kernels, quantization: Quantization = NONE) -> None:
        super().__init__(model, kernels, quantization)
        config, device = self.config, self.embedding.device
        assert config.variant is not None  # noqa: S101 -- who builds it has looked
        self.variant = variant = config.variant
        scale = torch.tensor(variant.embedding_scale, dtype=self.embedding.dtype)
        self._embedding_scale = float(scale)  # rounded as in the release
        norm = self._factor(model.norm)
        assert norm is not None  # noqa: S101
        self.norm = norm
        self.layers: list[VariantWeights] = [self._layer(x) for x in model.layers if isinstance(x, VariantLayer)]
        whole = Rope(config.rope_theta, config.rope_scaling, config.max_position)
        made: dict[str, Callable[[], Tensor]] = {
            "rope": lambda: table_of(whole, config.head_dim, config.max_position, device),
            "local": lambda: table_of(variant.local_rope or whole, config.head_dim, config.max_position, device),
            "none": lambda: unturned(config.head_dim, config.max_position, device),
        }
        kinds = [config.positions_of(layer) for layer in range(config.num_layers)]
        tables = {kind: made[kind]() for kind in set(kinds)}
        self._tables = [tables[kind] for kind in kinds]

    def _layer(self, layer: VariantLayer) -> VariantWeights:
        q_norm, k_norm = self._factor(layer.q_norm), self._factor(layer.k_norm)
        wide = (q_norm, k_norm) if self.variant.wide_qk_norm and q_norm is not None and k_norm is not None else None
        return VariantWeights(
            qkv=self._linear(layer, "qkv"),
            qkv_bias=None,
            q_norm=None if wide else q_norm,
            k_norm=None if wide else k_norm,
            out=self._ending(layer, "out"),
            gate_up=self._linear(layer, "gate_up"),
            down=self._ending(layer, "down"),
            attention_before=self._factor(layer.attention_before),
            attention_after=self._factor(layer.attention_after),
            mlp_before=self._factor(layer.mlp_before),
            mlp_after=self._factor(layer.mlp_after),
            wide_norms=wide,
        )

    def _factor(self, weight: Tensor | None) -> Tensor | None:
        """What a norm multiplies by."""
        return weight if weight is None or not self.variant.norm_from_one else 1.0 + weight.float()

    def attended(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Attended:
        self._adapt(tokens.adapters)
        residual = self.entering(tokens.ids)
        if self.config.stage.first and self._embedding_scale != 1.0:
            residual = residual * self._embedding_scale
        hidden = Hidden(residual)
        with library_for(len(tokens.ids), self.embedding.device):
            for i, layer in enumerate(self.layers):
                x, residual = self._next(hidden.residual, hidden.added, layer.attention_before)
                self._expose(i, residual)
                qkv = self._widely_normed(layer, self._product(x, layer.qkv))
                x = self._turned(i, layer, qkv, self._tables[i], tokens, cache, attention)
                if i + 1 < len(self.layers):
                    hidden = self._from_attention(layer, residual, x)
        return Attended(residual, x, tokens.adapters)

    def finished(self, before: Attended) -> Hidden:
        self._adapt(before.adapters)
        with library_for(len(before.residual), self.embedding.device):
            return self._from_attention(self.layers[-1], before.residual, before.x)

    def _from_attention(self, layer: VariantWeights, residual: Tensor, attended: Tensor) -> Hidden:
        added = self._branch(attended, layer.out, layer.attention_after)
        x, residual = self._next(residual, added, layer.mlp_before)
        return Hidden(residual, self._branch(self._gated(self._product(x, layer.gate_up)), layer.down, layer.mlp_after))

    def headed(self, states: Tensor) -> Tensor:
        logits, limit = self._head(states), self.variant.logit_cap
        logits = self.group.logits(logits, self.config.vocab_size)
        if self.variant.logit_scale != 1.0:
            logits.div_(self.variant.logit_scale)
        return logits if limit is None else logits.div_(limit).tanh_().mul_(limit)  # there is no room for copies

    def _head(self, x: Tensor) -> Tensor:
        return self.kernels.skinny_linear(x, self.head) if len(x) <= FEW_ROWS else F.linear(x, self.head)

    def _product(self, x: Tensor, weight: Linear) -> Tensor:
        return weight.product(x, self.quantization.few_rows, self.narrow_rows)

    def _next(self, residual: Tensor, added: Tensor | None, norm: Tensor | None) -> tuple[Tensor, Tensor]:
        """(what the next products multiply, the residual with `added`)."""
        eps = self.config.rms_norm_eps
        if norm is None:
            residual = residual if added is None else residual + added
            return residual, residual
        if added is None:
            return self.kernels.rms_norm(residual, norm, eps), residual
        return self.kernels.add_rms_norm(added, residual, norm, eps)

    def _branch(self, x: Tensor, weight: Linear, norm: Tensor | None) -> Tensor:
        """What attention or MLP adds to the residual."""
        added = self.group.all_reduce(self._product(x, weight)).to(x.dtype)
        if norm is not None:
            added = self.kernels.rms_norm(added, norm, self.config.rms_norm_eps)
        return added if self.variant.residual_scale == 1.0 else added * self.variant.residual_scale

    def _gated(self, gate_up: Tensor) -> Tensor:
        if not self.variant.gelu:
            return self.kernels.silu_mul(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.gelu(gate, approximate="tanh") * up

    def _widely_normed(self, layer: VariantWeights, qkv: Tensor) -> Tensor:
        if layer.wide_norms is None:
            return qkv
        (q_norm, k_norm), norm, eps = layer.wide_norms, self.kernels.rms_norm, self.config.rms_norm_eps
        q, k, v = qkv.tensor_split((len(q_norm), len(q_norm) + len(k_norm)), 1)
        if not self.group.alone or self.group.ordered:
            parts = self.config.parts, self.config.kv_parts
            return torch.cat((*wide_norms(q, k, q_norm, k_norm, eps, self.group, *parts), v), 1)
        return torch.cat((norm(q.contiguous(), q_norm, eps), norm(k.contiguous(), k_norm, eps), v), 1)


def unturned(head_dim: int, length: int, device: torch.device) -> Tensor:
    """As `table_of`, for a layer without positions: cosines 1 and sines 0, float32 [length, UNTURNED or head_dim]."""
    table = torch.zeros(length, min(UNTURNED, head_dim), device=device)
    table[:, : table.shape[1] // 2] = 1.0
    return table
