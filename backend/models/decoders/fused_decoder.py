"""The decoder of `decoder`, computed by the kernels of `backend.kernels`: the form that runs on a GPU.

The same weights and the same result, in fewer passes over memory: each residual add goes with the norm behind it,
rotary embedding with the write of keys and values. Everything that varies from step to step arrives in tensors, so that
a whole step can be captured in a CUDA graph. How a layer is computed depends on the number of rows (`layer_paths`). The
embedding and the head stay as they are.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.layer_paths import (
    FusedLayer,
    Layer,
    LayerPath,
    ManyRows,
    MixtureLayer,
    NarrowRows,
    OneRow,
    ShardedRows,
)
from backend.models.decoders.paged_decoder import (
    Attended,
    CachedAttention,
    PagedCache,
    PagedDecoder,
    StepTokens,
    library_for,
    table_of,
)
from backend.models.layers.decoder_layer import DecoderLayer
from backend.models.layers.experts import ExpertLayer
from backend.models.layers.held_experts import HeldExperts
from backend.models.rope import Rope
from backend.quantization.experts import ClampedExperts, Experts
from backend.quantization.format import FEW_ROWS, Quantization
from backend.quantization.linear import BiasedLinear, DenseLinear, Hidden, Linear
from backend.quantization.none import NONE


class FusedDecoder(PagedDecoder):
    """Takes over the weights of `model`, as `PagedDecoder` does."""

    def __init__(self, model: Decoder, kernels: Kernels, quantization: Quantization = NONE) -> None:
        super().__init__(model, kernels, quantization)
        config, device = self.config, self.embedding.device
        self.norm = model.norm
        self.layers: list[Layer] = [self._layer(x) for x in model.layers if isinstance(x, DecoderLayer)]
        rope = Rope(config.rope_theta, config.rope_scaling, config.max_position)
        self.cos_sin = table_of(rope, config.rotary_dim, config.max_position, device)

    def _layer(self, layer: DecoderLayer) -> Layer:
        attending: dict[str, Any] = {
            "qkv": self._linear(layer, "qkv"), "qkv_bias": layer.qkv_bias, "q_norm": layer.q_norm,
            "k_norm": layer.k_norm, "out": self._ending(layer, "out"), "input_norm": layer.input_norm,
            "post_norm": layer.post_norm,
        }  # fmt: skip
        mixed = layer.experts
        experts: Experts
        if mixed is None:
            return FusedLayer(**attending, gate_up=self._linear(layer, "gate_up"), down=self._ending(layer, "down"))
        routing = mixed.shape.routing
        if mixed.shape.clamp is not None:
            experts = self._clamped(mixed, mixed.shape.clamp)
        elif mixed.packed:
            gate_up, down = mixed.packed["gate_up"], mixed.packed["down"]
            experts = gate_up.format.stored_experts(self.kernels, routing, gate_up, down)
        else:
            format = NONE if self.config.keeps_experts(layer.index) else self.quantization
            experts = format.experts(self.kernels, routing, mixed.gate_up, mixed.down)
        experts.hold(mixed.held)
        experts.correct(None if mixed.correction is None else mixed.correction.float())
        if self.group.ordered and mixed.shape.parts > 1:
            experts = experts.divided(mixed.shape.parts)
            mixed.release()  # the parts are copies
        router: Linear = DenseLinear(self.kernels, mixed.router)
        if mixed.router_bias is not None:
            router = BiasedLinear(router, mixed.router_bias)
        shared = layer.shares_experts
        return MixtureLayer(
            **attending,
            router=router,
            experts=experts,
            shared_gate_up=self._linear(layer, "shared_gate_up") if shared else None,
            shared_down=self._ending(layer, "shared_down") if shared else None,
        )

    def _clamped(self, mixed: ExpertLayer, clamp: float) -> Experts:
        """Experts of gpt-oss's form, in the model's dtype or as they are stored."""
        assert mixed.gate_up_bias is not None and mixed.down_bias is not None  # noqa: S101 -- such have biases
        biases, gate = (mixed.gate_up_bias, mixed.down_bias), (clamp, mixed.shape.slope)
        routing, count = mixed.shape.routing, len(mixed.gate_up)
        if not mixed.packed:
            return ClampedExperts(self.kernels, routing, mixed.gate_up, mixed.down, biases, gate)
        parts = [mixed.packed[name].parts for name in ("gate_up", "down")]
        weights = [part["words"].view(count, -1, part["words"].shape[1]) for part in parts]
        groups = [part["groups"].view(count, -1, part["groups"].shape[1]).transpose(1, 2) for part in parts]
        scales = groups[0].contiguous(), groups[1].contiguous()
        return ClampedExperts(self.kernels, routing, weights[0], weights[1], biases, gate, scales)

    def rebalance(self, least: int) -> bool:
        return any(
            layer.experts.held.rebalance(layer.experts.by_slot(), least)
            for layer in self.layers
            if isinstance(layer, MixtureLayer) and isinstance(layer.experts.held, HeldExperts)
        )

    def expert_loads(self) -> list[int]:
        held = [layer.experts.held for layer in self.layers if isinstance(layer, MixtureLayer)]
        each = [one.rank_loads() for one in held if isinstance(one, HeldExperts)]
        return [round(sum(ranks)) for ranks in zip(*each, strict=True)]

    def attended(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Attended:
        rows = len(tokens.ids)
        path = self._path(rows, attention.keys_in_place)
        self._adapt(tokens.adapters)
        hidden = Hidden(self.entering(tokens.ids))
        with library_for(rows, self.embedding.device):
            for i, layer in enumerate(self.layers):
                qkv, scales, residual = path.to_attention(layer, hidden)
                self._expose(i, residual)
                x = self._turned(i, layer, qkv, self.cos_sin, tokens, cache, attention, scales)
                if i + 1 < len(self.layers):
                    hidden = path.from_attention(layer, residual, x)
        return Attended(residual, x, tokens.adapters)

    def finished(self, before: Attended) -> Hidden:
        self._adapt(before.adapters)
        rows = len(before.residual)
        with library_for(rows, self.embedding.device):
            return self._path(rows).from_attention(self.layers[-1], before.residual, before.x)

    def own_logits(self, hidden: Hidden) -> Tensor:
        if self.group.alone and hidden.added is None and not hidden.normed and len(hidden.residual) <= FEW_ROWS:
            eps = self.config.rms_norm_eps
            return self.kernels.skinny_linear(hidden.residual, self.head, norm=self.norm, eps=eps)
        return self.headed(self.states(hidden))

    def headed(self, states: Tensor) -> Tensor:
        few = len(states) <= FEW_ROWS
        logits = self.kernels.skinny_linear(states, self.head) if few else F.linear(states, self.head)
        return self.group.logits(logits, self.config.vocab_size)

    def _path(self, rows: int, keys_in_place: bool = False) -> LayerPath:
        eps = self.config.rms_norm_eps
        if not self.group.alone:
            width, few_rows = self.config.hidden_size, self.quantization.few_rows
            return ShardedRows(eps, self.group, width, few_rows, self.narrow_rows)
        if rows <= self.quantization.few_rows:
            return OneRow(eps)
        return NarrowRows(eps, keys_in_place) if rows <= self.narrow_rows else ManyRows(eps, keys_in_place)
