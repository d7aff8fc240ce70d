"""Which decoder of the kernels computes a model."""

from backend.models.config import ModelConfig
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import InvariantDecoder, InvariantVariantDecoder
from backend.models.decoders.latent_decoder import InvariantLatentDecoder, LatentDecoder
from backend.models.decoders.variant_decoder import VariantDecoder


def kind_of(model: ModelConfig, *, batch_invariant: bool) -> type[FusedDecoder] | type[VariantDecoder]:
    """What computes it on a GPU."""
    if model.variant is not None:
        return InvariantVariantDecoder if batch_invariant else VariantDecoder
    if model.latent is not None:
        return InvariantLatentDecoder if batch_invariant else LatentDecoder
    return InvariantDecoder if batch_invariant else FusedDecoder
