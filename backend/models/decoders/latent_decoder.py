"""Decoder with the kernels for latent attention (DeepSeek-V2, V3). The parts shared with Llama are in `fused_decoder`.

The products by the key and value matrices are applied to queries and results, in prompts and in decode steps. One
kernel reads the cache, later chunks of a long prompt expand no latents, and every step computes a token in the same
way. The cost, with V3's widths, is 1,088 multiplications a head for each pair of tokens instead of 320.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from backend.kernels.interface import Kernels
from backend.kernels.latent.interface import latent_kernels_for
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import InvariantDecoder
from backend.models.decoders.layer_paths import LayerPath
from backend.models.decoders.paged_decoder import CachedAttention, PagedCache, Products, StepTokens
from backend.models.layers.latent_layer import LatentLayer
from backend.quantization.format import Quantization
from backend.quantization.linear import Hidden, Linear, Operand
from backend.quantization.none import NONE


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Weights of a layer's attention that are not in `Products`.

    Attributes:
        query, query_norm: map the query latent to queries; None where ``qkv`` computes the queries.
        latent_norm: [rank].
        keys: [heads, plain, rank], maps latents to keys.
    """

    query: Linear | None
    query_norm: Tensor | None
    latent_norm: Tensor
    keys: Tensor

    def tensors(self) -> list[Tensor]:
        own = [] if self.query is None else self.query.tensors()
        return [*own, *([] if self.query_norm is None else [self.query_norm]), self.latent_norm, self.keys]


class LatentOutput(Linear):
    """Output projection of attention, applied after the matrices that map sums of latents to values.

    values: [heads, value, rank]. The input x of all products is [tokens, heads * rank].
    """

    def __init__(self, base: Linear, values: Tensor, ops: Any, *, batch_invariant: bool) -> None:
        super().__init__(base.kernels)
        self.base, self.values = base, values
        self._ops, self._batch_invariant = ops, batch_invariant

    def tensors(self) -> list[Tensor]:
        return [*self.base.tensors(), self.values]

    def _valued(self, x: Tensor) -> Tensor:
        heads, value, rank = self.values.shape
        out = x.new_empty(len(x), heads, value)
        sums, weight = x.view(len(x), heads, rank), self.values.transpose(1, 2)
        self._ops.per_head_linear(sums, weight, out, batch_invariant=self._batch_invariant)
        return out.view(len(x), -1)

    def operand(self, x: Tensor) -> Operand:
        return self.base.operand(self._valued(x))

    def one_row(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        return self.base.one_row(self._valued(x), bias=bias, norm=norm, eps=eps, residual=residual, gated=gated)

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        return self.base.narrow(x, bias=bias, gated=gated)

    def narrow_parts(self, x: Operand) -> Tensor:
        return self.base.narrow_parts(x)

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.base.many(x, bias)

    def added(self, residual: Tensor, x: Operand) -> Hidden:
        return self.base.added(residual, x)

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.base.invariant(x, bias)


class LatentDecoder(FusedDecoder):
    """Takes over the weights of `model`, as `FusedDecoder` does. ``qkv`` of a layer computes the query latent (or the
    queries), the latent and the rotary key."""

    batch_invariant = False

    def __init__(self, model: Decoder, kernels: Kernels, quantization: Quantization = NONE) -> None:
        self._ops = latent_kernels_for(model.embedding.device)
        super().__init__(model, kernels, quantization)
        assert self.config.latent is not None  # noqa: S101 -- checked by the caller
        self.latent = self.config.latent
        own = [layer for layer in model.layers if isinstance(layer, LatentLayer)]
        self.latents = [self._latent_weights(layer) for layer in own]

    def _latent_weights(self, layer: LatentLayer) -> LatentWeights:
        query = None if layer.query_norm is None else self._linear(layer, "q_b")
        return LatentWeights(query, layer.query_norm, layer.latent_norm, layer.halves()[0])

    def _ending(self, layer: Any, name: str) -> Linear:
        found = super()._ending(layer, name)
        if name != "out":
            return found
        return LatentOutput(found, layer.halves()[1], self._ops, batch_invariant=self.batch_invariant)

    def weights(self) -> list[Tensor]:
        found = [*super().weights(), *(tensor for own in self.latents for tensor in own.tensors())]
        return list({id(tensor): tensor for tensor in found}.values())

    def _turned(
        self,
        index: int,
        layer: Products,
        qkv: Tensor,
        cos_sin: Tensor,
        tokens: StepTokens,
        cache: PagedCache,
        attention: CachedAttention,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention of layer `index`: [tokens, heads * rank]."""
        assert scales is None  # noqa: S101 -- guaranteed by `_path`
        own, shape = self.latents[index], self.latent
        first = qkv[:, : qkv.shape[1] - shape.stored]
        if own.query is not None and own.query_norm is not None:
            normed = self.kernels.rms_norm(first.contiguous(), own.query_norm, self.config.rms_norm_eps)
            first = self._query(own.query, normed)
        each = first.view(len(first), self.config.num_heads, shape.query)
        q = qkv.new_empty(*each.shape[:2], shape.stored)
        plain = each[..., : shape.plain]
        self._ops.per_head_linear(plain, own.keys, q[..., : shape.rank], batch_invariant=self.batch_invariant)
        self._ops.latent_rotary(
            qkv,
            each,
            tokens.positions,
            cos_sin,
            tokens.slots,
            own.latent_norm,
            cache.keys[index],
            cache.values[index],
            q,
            eps=self.config.rms_norm_eps,
            interleaved=shape.interleaved,
        )
        return attention(index, q, qkv)

    def _query(self, weight: Linear, x: Tensor) -> Tensor:
        return weight.product(x, self.quantization.few_rows, self.narrow_rows)

    def _path(self, rows: int, keys_in_place: bool = False) -> LayerPath:
        return super()._path(rows, True)  # the product of ``qkv`` has several uses, so its scales cannot be deferred


class InvariantLatentDecoder(LatentDecoder, InvariantDecoder):
    """Batch-invariant variant: the logits of a token depend on its own sequence only."""

    batch_invariant = True

    def _query(self, weight: Linear, x: Tensor) -> Tensor:
        return weight.invariant(weight.operand(x))
