"""A decoder's layer where a family departs from Llama: Gemma 2 and 3, Granite, OLMo 2, SmolLM3 (see `families.family`).

The same life as `decoder_layer.DecoderLayer`, in plain torch for every device; the fused kernels know Llama's form
only.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.config import ModelConfig
from backend.models.families.family import Variant
from backend.models.layers.arithmetic import Attention, rms_norm, rotate
from backend.models.layers.matrices import Matrices
from backend.parallel.group import SINGLE, ParallelGroup, tree_sum
from backend.quantization.format import Quantization


def norm(variant: Variant | None, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm as the family writes it. x: [..., width]."""
    if variant is None or not variant.norm_from_one:
        return rms_norm(x, weight, eps)
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return (h * (1.0 + weight.float())).to(x.dtype)


def cap(x: Tensor, limit: float | None) -> Tensor:
    """Between -limit and limit, softly; as it is without one."""
    return x if limit is None else torch.tanh(x / limit) * limit


def wide_norms(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    group: ParallelGroup,
    parts: int = 1,
    kv_parts: int = 1,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of q and of k over the heads of all ranks. q, k: [tokens, width of this rank's heads]. parts, kv_parts:
    as in `ModelConfig`."""
    wide = [x.float() for x in (q, k)]
    tiles = [wide[0].view(len(q), parts, -1), wide[1].view(len(k), kv_parts, -1)]
    tiles[1] = tiles[1].repeat_interleave(parts // kv_parts, 1)  # copies of KV heads count in both sum and width
    squares = group.all_reduce(tree_sum(torch.stack([tile.square().sum(-1).t() for tile in tiles], 1)))
    # As numbers, not as a tensor of them: a graph's capture copies nothing from the host.
    widths = [tile.shape[1] * tile.shape[2] * group.size for tile in tiles]
    factors = [torch.rsqrt(square / width + eps) for square, width in zip(squares, widths, strict=True)]
    normed = [(x * factor[:, None]).to(q.dtype) for x, factor in zip(wide, factors, strict=True)]
    return q_weight * normed[0], k_weight * normed[1]


class VariantLayer(Matrices):
    """One block. Weights are fused as in `decoder_layer.DecoderLayer`; norms that a family has not are None."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization,
        group: ParallelGroup = SINGLE,
    ) -> None:
        super().__init__(config, index, dtype, device, quantization, group)
        assert config.variant is not None  # noqa: S101 -- who builds it has looked
        self.variant = variant = config.variant
        self.eps = config.rms_norm_eps
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.turned = config.positions_of(index) != "none"

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, dtype=dtype, device=device), requires_grad=False)

        def maybe(wanted: bool, width: int) -> nn.Parameter | None:
            return empty(width) if wanted else None

        hidden = config.hidden_size
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.cuts = (q, q + kv)  # rows of `qkv` where k and v begin
        wide = variant.wide_qk_norm
        self.attention_before = maybe(variant.norm_before, hidden)
        self.attention_after = maybe(variant.norm_after, hidden)
        self.mlp_before = maybe(variant.norm_before, hidden)
        self.mlp_after = maybe(variant.norm_after, hidden)
        self.q_norm = maybe(config.qk_norm, q if wide else self.head_dim)
        self.k_norm = maybe(config.qk_norm, kv if wide else self.head_dim)
        self.qkv, self.out = self.matrix("qkv"), self.matrix("out")
        self.gate_up, self.down = self.matrix("gate_up"), self.matrix("down")

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        scale = self.variant.residual_scale
        attended = self._attended(self._norm(hidden, self.attention_before), cos, sin, attention)
        hidden = hidden + self._norm(attended, self.attention_after) * scale
        activation = partial(F.gelu, approximate="tanh") if self.variant.gelu else F.silu
        added = self.gated_branch(self._norm(hidden, self.mlp_before), self.gate_up, self.down, activation)
        return hidden + self._norm(added, self.mlp_after) * scale

    def _attended(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        tokens = len(x)
        q, k, v = self.qkv_of(x, self.qkv).tensor_split(self.cuts, 1)
        if self.q_norm is not None and self.k_norm is not None and self.variant.wide_qk_norm:
            if self.group.alone and not self.group.ordered:
                q, k = self._norm(q, self.q_norm), self._norm(k, self.k_norm)
            else:
                parts = self._config.parts, self._config.kv_parts
                q, k = wide_norms(q, k, self.q_norm, self.k_norm, self.eps, self.group, *parts)
        q, k, v = (part.reshape(tokens, -1, self.head_dim) for part in (q, k, v))
        if not self.variant.wide_qk_norm:
            q, k = self._norm(q, self.q_norm), self._norm(k, self.k_norm)
        if self.turned:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.branch(attention(self.index, q, k, v).reshape(tokens, -1), self.out)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else norm(self.variant, x, weight, self.eps)

    def places(self) -> dict[str, Tensor]:
        """The checkpoint's names, behind the layer's own prefix, and where their tensors go."""
        # What stands before the MLP is named after the attention, unless a norm stands there, too.
        mlp_before = "pre_feedforward" if self.variant.norm_after else "post_attention"
        named = {
            "input_layernorm": self.attention_before,
            "post_attention_layernorm": self.attention_after,
            f"{mlp_before}_layernorm": self.mlp_before,
            "post_feedforward_layernorm": self.mlp_after,
            "self_attn.q_norm": self.q_norm,
            "self_attn.k_norm": self.k_norm,
        }
        return self.matrix_places() | {f"{name}.weight": weight for name, weight in named.items() if weight is not None}
