"""A layer of Llama's form, and of a mixture of experts in the MLP's place."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.config import ModelConfig
from backend.models.layers.arithmetic import Attention, rms_norm, rotate
from backend.models.layers.experts import ExpertLayer
from backend.models.layers.matrices import Matrices
from backend.parallel.group import SINGLE, ParallelGroup
from backend.quantization.format import Packed, Quantization


class DecoderLayer(Matrices):
    """One block. Weights are fused: q, k, v in one matrix, gate and up in another."""

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
        self.eps = config.rms_norm_eps
        self.heads = config.num_heads
        self.input_norm = self.empty(config.hidden_size)
        self.make_attention(config)
        self.post_norm = self.empty(config.hidden_size)
        experts = config.experts
        self.shares_experts = False  # whether every token takes some experts beside those that it chose
        if experts is not None and index not in experts.dense_layers:
            kept = quantization if self._packs_experts() else None
            self.experts: ExpertLayer | None = ExpertLayer(experts, config.hidden_size, dtype, device, kept, group)
            self.packed |= {f"experts.{name}": packed for name, packed in self.experts.packed.items()}
            if experts.shared_size:
                self.shares_experts = True
                self.shared_gate_up, self.shared_down = self.matrix("shared_gate_up"), self.matrix("shared_down")
        else:
            self.experts = None
            self.gate_up, self.down = self.matrix("gate_up"), self.matrix("down")

    def empty(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(*shape, dtype=self._dtype, device=self._device), requires_grad=False)

    def make_attention(self, config: ModelConfig) -> None:
        """The weights of the layer's first half, but for the norm before it."""
        self.kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.qkv = self.matrix("qkv")
        self.qkv_bias = self.empty(q + 2 * kv) if config.qkv_bias else None
        self.q_norm = self.empty(self.head_dim) if config.qk_norm else None
        self.k_norm = self.empty(self.head_dim) if config.qk_norm else None
        self.out = self.matrix("out")
        self.out_bias = self.empty(config.hidden_size) if config.out_bias else None
        self.sinks = self.empty(self.heads) if config.sinks else None

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        hidden = hidden + self.attended(rms_norm(hidden, self.input_norm, self.eps), cos, sin, attention)
        return hidden + self.mixed(rms_norm(hidden, self.post_norm, self.eps))

    def attended(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """What attention adds. x: [tokens, hidden]; so is what comes back."""
        tokens = x.shape[0]
        qkv = self.qkv_of(x, self.qkv, self.qkv_bias)
        qkv = qkv.view(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        rotated, v = qkv.tensor_split((self.heads + self.kv_heads,), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rotated.tensor_split((self.heads,), 1)
            rotated = torch.cat((rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)), 1)
        q, k = rotate(rotated, cos, sin).tensor_split((self.heads,), 1)
        more = () if self.sinks is None else (self.sinks,)
        added = self.branch(attention(self.index, q, k, v, *more).reshape(tokens, -1), self.out)
        return added if self.out_bias is None else added + self.out_bias

    def mixed(self, x: Tensor) -> Tensor:
        """Return what the MLP, or the experts, add: [tokens, hidden], as x."""
        if self.experts is None:
            return self.gated_branch(x, self.gate_up, self.down, F.silu)
        found: Tensor = self.experts(x)
        if not self.shares_experts:
            return found
        return found + self.gated_branch(x, self.shared_gate_up, self.shared_down, F.silu, adapted=False)

    def arrange(self) -> None:
        super().arrange()
        if self.experts is not None:
            self.experts.arrange()

    def packed_places(self) -> dict[str, Packed]:
        return super().packed_places() | ({} if self.experts is None else self.experts.packed_places())

    def places(self) -> dict[str, Tensor]:
        """The checkpoint's names, behind the layer's own prefix, and where their tensors go."""
        places: dict[str, Tensor] = {
            "input_layernorm.weight": self.input_norm,
            "post_attention_layernorm.weight": self.post_norm,
            **self.matrix_places(),
            **self.attention_places(),
        }
        return places if self.experts is None else places | self.experts.places()

    def attention_places(self) -> dict[str, Tensor]:
        """The same of attention, but for `Matrices.matrix_places`."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        places: dict[str, Tensor] = {}
        if self.qkv_bias is not None:
            parts = self.qkv_bias.tensor_split((q, q + kv))
            places |= {f"self_attn.{n}_proj.bias": p for n, p in zip("qkv", parts, strict=True)}
        if self.out_bias is not None:
            places["self_attn.o_proj.bias"] = self.out_bias
        if self.sinks is not None:
            places["self_attn.sinks"] = self.sinks
        if self.q_norm is not None and self.k_norm is not None:
            places |= {"self_attn.q_norm.weight": self.q_norm, "self_attn.k_norm.weight": self.k_norm}
        return places
