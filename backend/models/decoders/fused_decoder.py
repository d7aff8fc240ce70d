"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph. How a layer is computed depends on the number of rows (`roads`). The
embedding and the head stay as they are.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoders.decoder import Decoder, DecoderLayer
from backend.models.decoders.layer_paths import FewRows, FusedLayer, ManyRows, ManyRowsFp8, NarrowRows, Road
from backend.models.decoders.paged_decoder import (
    FEW_ROWS,
    NARROW_ROWS,
    Attended,
    CachedAttention,
    Hidden,
    PagedCache,
    PagedDecoder,
    StepTokens,
    library_for,
    table_of,
)
from backend.models.rope import Rope


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

    def attended(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Attended:
        rows = len(tokens.ids)
        road = self._road(rows, attention.keys_in_place)
        hidden = Hidden(self.embedding[tokens.ids])  # for few rows three times as fast as F.embedding
        with library_for(rows, self.embedding.device):
            for i, layer in enumerate(self.layers):
                qkv, scales, residual = road.to_attention(layer, hidden)
                x = self._turned(i, layer, qkv, self.cos_sin, tokens, cache, attention, scales)
                if i + 1 < len(self.layers):
                    hidden = road.from_attention(layer, residual, x)
        return Attended(residual, x)

    def finished(self, before: Attended) -> Hidden:
        rows = len(before.residual)
        with library_for(rows, self.embedding.device):
            return self._road(rows).from_attention(self.layers[-1], before.residual, before.x)

    def logits(self, hidden: Hidden) -> Tensor:
        if hidden.added is None and len(hidden.residual) <= FEW_ROWS:
            eps = self.config.rms_norm_eps
            return self.kernels.skinny_linear(hidden.residual, self.head, norm=self.norm, eps=eps)
        return F.linear(self.states(hidden), self.head)

    def _road(self, rows: int, keys_in_place: bool = False) -> Road:
        kernels, eps = self.kernels, self.config.rms_norm_eps
        if rows <= FEW_ROWS:
            return FewRows(kernels, eps)
        if rows <= NARROW_ROWS and self._fits_narrow:
            return NarrowRows(kernels, eps, self.fp8)
        return ManyRowsFp8(kernels, eps, self._one, keys_in_place) if self.fp8 else ManyRows(kernels, eps)
