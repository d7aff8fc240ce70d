"""A head that guesses from a model's hidden states, computed by the kernels of `backend.kernels`.

The layer is the one of `fused_decoder` or `latent_decoder`; what differs is how it is entered and left. Features come
in and outputs go out through memory that stays, so that steps can be captured.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.latent_decoder import LatentDecoder
from backend.models.decoders.paged_decoder import Attended, CachedAttention, PagedCache, StepTokens, library_for
from backend.models.heads.head_config import EAGLE3, HeadConfig
from backend.models.heads.head_decoder import EagleLayer, HeadDecoder, of_all_tokens
from backend.quantization.format import FEW_ROWS, Quantization
from backend.quantization.linear import Hidden
from backend.quantization.none import NONE


class PagedHead(FusedDecoder):
    """Takes over the weights of `model`. features, outputs: as of `HeadDecoder`, once there is room for them."""

    config: HeadConfig

    def __init__(self, model: Decoder, kernels: Kernels, quantization: Quantization = NONE) -> None:
        assert isinstance(model, HeadDecoder)  # noqa: S101 -- see `paged_head`
        super().__init__(model, kernels, quantization)
        self.plain = model
        self.features = self.outputs = model.features

    def reserve(self, tokens: int) -> None:
        """Make room for steps of so many tokens."""
        self.features, self.outputs = (self.embedding.new_zeros(tokens, self.config.hidden_size) for _ in range(2))

    def combined(self, states: Tensor) -> Tensor:
        """As `HeadDecoder.combined`."""
        return self.plain.combined(states)

    def weights(self) -> list[Tensor]:
        own = [self.plain.join, self.plain.targets]
        if self.config.kind == EAGLE3:
            own.append(self._eagle.hidden_norm)
        else:
            own += [self.plain.embedding_norm, self.plain.state_norm]
        return [*super().weights(), *own]

    @property
    def _eagle(self) -> EagleLayer:
        layer = self.plain.layers[0]
        assert isinstance(layer, EagleLayer)  # noqa: S101 -- of this kind of head
        return layer

    def entering(self, ids: Tensor) -> Tensor:
        """The input of the layer for multi-token prediction."""
        norm, eps = self.kernels.rms_norm, self.config.rms_norm_eps
        features = self.features[: len(ids)]
        parts = norm(self.embedded(ids), self.plain.embedding_norm, eps), norm(features, self.plain.state_norm, eps)
        return F.linear(torch.cat(parts, -1), self.plain.join)

    def attended(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Attended:
        if self.config.kind != EAGLE3:
            return super().attended(tokens, cache, attention)
        norm, eps, layer = self.kernels.rms_norm, self.config.rms_norm_eps, self.layers[0]
        features = self.features[: len(tokens.ids)]
        normed = norm(features, self._eagle.hidden_norm, eps)
        x = torch.cat((norm(self.embedded(tokens.ids), layer.input_norm, eps), normed), -1)
        with library_for(len(x), self.embedding.device):
            qkv = layer.qkv.product(x, self.quantization.few_rows, self.narrow_rows)
            attended = self._turned(0, layer, qkv, self.cos_sin, tokens, cache, attention)
        return Attended(normed if self.config.normed_residual else features.clone(), attended)

    def finish(self, before: Attended, last: Tensor | None) -> Hidden:
        hidden = self._settled(super().finish(before, last))
        normed = self.kernels.rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        self.outputs[: len(hidden)].copy_(hidden if self.config.kind == EAGLE3 else normed)
        return Hidden(normed, normed=True)

    def own_logits(self, hidden: Hidden) -> Tensor:
        x = hidden.residual
        logits = self.kernels.skinny_linear(x, self.head) if len(x) <= FEW_ROWS else F.linear(x, self.head)
        return of_all_tokens(logits, self.plain.chosen, self.config.vocab_size)


class PagedLatentHead(PagedHead, LatentDecoder):
    """The same with latent attention: DeepSeek's layer for multi-token prediction."""


def paged_head(model: HeadDecoder, kernels: Kernels, quantization: Quantization = NONE) -> PagedHead:
    """The form of `model` that runs on its card."""
    kind = PagedHead if model.config.latent is None else PagedLatentHead
    return kind(model, kernels, quantization)
