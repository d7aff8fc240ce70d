"""The decoders of the kernels in which a token's logits depend on nothing but its own sequence.

Not on who runs beside it, on how its prompt was cut into chunks, on the cache, the pages, graphs or guesses: every
product takes `kernels.invariant_linear` whatever the number of rows, the other kernels work row by row anyway, and
attention is told to do the same (`engine.paged_layers`). So a retained request can be run again later, alone, and give
the tokens it gave then. It costs speed, most at few rows.
"""

import torch.nn.functional as F
from torch import Tensor

from backend.models.config import ModelConfig
from backend.models.fused_decoder import FusedDecoder
from backend.models.paged_decoder import CachedAttention, Hidden, PagedCache, StepTokens, Weight
from backend.models.variant_decoder import VariantDecoder


class InvariantDecoder(FusedDecoder):
    """Weights in the model's dtype only: products of FP8 ones are the library's, which chooses by rows."""

    def body(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        k, eps, linear = self.kernels, self.config.rms_norm_eps, self.kernels.invariant_linear
        residual = F.embedding(tokens.ids, self.embedding)
        x = k.rms_norm(residual, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            qkv = linear(x, layer.qkv.data, layer.qkv_bias)
            x = linear(self._attend(i, layer, qkv, tokens, cache, attention), layer.out.data)
            x, residual = k.add_rms_norm(x, residual, layer.post_norm, eps)
            x = linear(k.silu_mul(linear(x, layer.gate_up.data)), layer.down.data)
            if i + 1 < len(self.layers):
                x, residual = k.add_rms_norm(x, residual, self.layers[i + 1].input_norm, eps)
        return Hidden(residual, x)

    def logits(self, hidden: Hidden, last: Tensor | None) -> Tensor:
        return self.kernels.invariant_linear(self.states(hidden, last), self.head)


class InvariantVariantDecoder(VariantDecoder):
    """The same of families that depart from Llama; weights likewise."""

    def _linear(self, x: Tensor, weight: Weight) -> Tensor:
        return self.kernels.invariant_linear(x, weight.data)

    def _head(self, x: Tensor) -> Tensor:
        return self.kernels.invariant_linear(x, self.head)


def kind_of(model: ModelConfig, *, batch_invariant: bool) -> type[FusedDecoder] | type[VariantDecoder]:
    """What computes it on a GPU."""
    if model.variant is not None:
        return InvariantVariantDecoder if batch_invariant else VariantDecoder
    return InvariantDecoder if batch_invariant else FusedDecoder
