"""Batch-invariant decoders: a token's logits depend on its own sequence only.

Not on who runs beside it, on how its prompt was cut into chunks, on the cache, the pages, graphs or guesses: every
product takes `kernels.invariant_linear` whatever the number of rows, the other kernels work row by row anyway, and
attention does the same (`engine.paged_layers`). So a retained request can be run again later, alone, and give
the tokens it gave then. It costs speed, most at few rows.
"""

from torch import Tensor

from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.layer_paths import InvariantRows, LayerPath, OrderedRows
from backend.models.decoders.variant_decoder import VariantDecoder
from backend.quantization.linear import Hidden, Linear


class InvariantDecoder(FusedDecoder):
    """For weights whose format has such a product (`Quantization.batch_invariant`)."""

    def _path(self, rows: int, keys_in_place: bool = False) -> LayerPath:
        eps = self.config.rms_norm_eps
        return OrderedRows(eps, self.group) if self.group.ordered else InvariantRows(eps)

    def own_logits(self, hidden: Hidden) -> Tensor:
        return self.headed(self.states(hidden))

    def headed(self, states: Tensor) -> Tensor:
        return self.group.logits(self.kernels.invariant_linear(states, self.head), self.config.vocab_size)


class InvariantVariantDecoder(VariantDecoder):
    """The same of families that depart from Llama; weights likewise."""

    def _product(self, x: Tensor, weight: Linear) -> Tensor:
        return weight.invariant(weight.operand(x))

    def _head(self, x: Tensor) -> Tensor:
        return self.kernels.invariant_linear(x, self.head)
