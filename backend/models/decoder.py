"""The Llama-shaped decoder (Touvron et al. 2023; Grattafiori et al. 2024), for a flat batch of tokens.

One forward takes the tokens of all sequences of a step, prefill and decode mixed, as one row each: linear layers do
not care whose row it is. Attention does, and is handed in, so that the same model runs on gathered pages (CPU) or on a
paged kernel (GPU).
"""

from collections.abc import Iterable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.errors import CorruptCheckpoint
from backend.models.config import ModelConfig
from backend.models.experts import ExpertLayer
from backend.models.linear import linear


class Attention(Protocol):
    """Writes this step's keys and values to the cache of `layer`, then attends causally over each whole sequence.

    q: [tokens, num_heads, head_dim]; k, v: [tokens, num_kv_heads, head_dim]; returns q's shape.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang & Sennrich 2019. Accumulates in float32. x: [..., width], weight: [width]."""
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE by halves. x: [tokens, heads, head_dim]; cos, sin: [tokens, 1, head_dim // 2] in x's dtype."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class DecoderLayer(nn.Module):
    """One block. Weights are fused: q, k, v in one matrix, gate and up in another."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.index = index
        self.eps = config.rms_norm_eps
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, dtype=dtype, device=device), requires_grad=False)

        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.input_norm = empty(config.hidden_size)
        self.qkv = empty(q + 2 * kv, config.hidden_size)
        self.qkv_bias = empty(q + 2 * kv) if config.qkv_bias else None
        self.q_norm = empty(self.head_dim) if config.qk_norm else None
        self.k_norm = empty(self.head_dim) if config.qk_norm else None
        self.out = empty(config.hidden_size, q)
        self.post_norm = empty(config.hidden_size)
        experts = config.experts
        if experts is not None and index not in experts.dense_layers:
            self.experts: ExpertLayer | None = ExpertLayer(experts, config.hidden_size, dtype, device)
        else:
            self.experts = None
            self.gate_up = empty(2 * config.intermediate_size, config.hidden_size)
            self.down = empty(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        tokens = hidden.shape[0]
        qkv = linear(rms_norm(hidden, self.input_norm, self.eps), self.qkv, self.qkv_bias)
        qkv = qkv.view(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        rotated, v = qkv.tensor_split((self.heads + self.kv_heads,), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rotated.tensor_split((self.heads,), 1)
            rotated = torch.cat((rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)), 1)
        q, k = rotate(rotated, cos, sin).tensor_split((self.heads,), 1)
        attended = attention(self.index, q, k, v).reshape(tokens, -1)
        hidden = hidden + linear(attended, self.out)
        x = rms_norm(hidden, self.post_norm, self.eps)
        if self.experts is not None:
            mixed: Tensor = self.experts(x)
            return hidden + mixed
        gate, up = linear(x, self.gate_up).chunk(2, -1)
        return hidden + linear(F.silu(gate) * up, self.down)


class Decoder(nn.Module):
    """Token ids and positions in, logits of chosen rows out."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.config = config
        width = (config.vocab_size, config.hidden_size)
        self.embedding = nn.Parameter(torch.empty(*width, dtype=dtype, device=device), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(config, i, dtype, device) for i in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype, device=device), requires_grad=False)
        self.head = (
            self.embedding
            if config.tie_word_embeddings
            else nn.Parameter(torch.empty(*width, dtype=dtype, device=device), requires_grad=False)
        )
        self.kv_scales: Tensor | None = None  # [layers, 2] float32 on the CPU, of an FP8 cache; None: 1
        frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(config.max_position, dtype=torch.float32, device=device), frequencies)
        magnitude = config.rope_scaling.magnitude
        self.register_buffer("cos", (angles.cos() * magnitude).to(dtype).unsqueeze(1), persistent=False)
        self.register_buffer("sin", (angles.sin() * magnitude).to(dtype).unsqueeze(1), persistent=False)

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor) -> Tensor:
        """
        Args:
            ids, positions: [tokens], int64.
            logit_rows: [rows], int64: which tokens' next-token logits are wanted (each sequence's last, usually).
        Returns:
            [rows, vocab_size] in the model's dtype.
        """
        hidden = F.embedding(ids, self.embedding)
        cos, sin = self.cos[positions], self.sin[positions]
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, attention)
        return linear(rms_norm(hidden[logit_rows], self.norm, self.config.rms_norm_eps), self.head)

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from Hugging Face names.

        Raises CorruptCheckpoint naming the tensor if one is missing, unknown, twice there, misshapen or not finite.
        """
        found = self.expected()
        for name, tensor in weights:
            place = found.place(name, tuple(tensor.shape))
            if place is not None:
                require_finite([(name, tensor)])
                place.copy_(tensor)
        found.require_all()

    def expected(self) -> "Expected":
        return Expected(self.places(), {"lm_head.weight"} if self.config.tie_word_embeddings else set())

    def places(self) -> dict[str, Tensor]:
        """Hugging Face name -> where it goes, as views into the fused weights."""
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        places: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not c.tie_word_embeddings:
            places["lm_head.weight"] = self.head
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)  # noqa: S101  (ModuleList forgets its element type)
            at = f"model.layers.{i}."
            places[at + "input_layernorm.weight"] = layer.input_norm
            places[at + "post_attention_layernorm.weight"] = layer.post_norm
            if c.fused_names:
                places[at + "self_attn.qkv_proj.weight"] = layer.qkv
            else:
                for name, part in zip("qkv", layer.qkv.tensor_split((q, q + kv)), strict=True):
                    places[f"{at}self_attn.{name}_proj.weight"] = part
            if layer.qkv_bias is not None:
                for name, part in zip("qkv", layer.qkv_bias.tensor_split((q, q + kv)), strict=True):
                    places[f"{at}self_attn.{name}_proj.bias"] = part
            if layer.q_norm is not None and layer.k_norm is not None:
                places[at + "self_attn.q_norm.weight"] = layer.q_norm
                places[at + "self_attn.k_norm.weight"] = layer.k_norm
            places[at + "self_attn.o_proj.weight"] = layer.out
            if layer.experts is not None:
                places |= {at + name: place for name, place in layer.experts.places().items()}
                continue
            if c.fused_names:
                places[at + "mlp.gate_up_proj.weight"] = layer.gate_up
            else:
                for name, part in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
                    places[f"{at}mlp.{name}_proj.weight"] = part
            places[at + "mlp.down_proj.weight"] = layer.down
        return places


class Expected:
    """The tensors that a checkpoint is to bring, each once. ``ignored`` may come, too: some exports repeat a shared
    matrix."""

    def __init__(self, places: dict[str, Tensor], ignored: set[str]) -> None:
        self._places = places
        self._ignored = ignored
        self._missing = set(places)

    def place(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Where it goes; None to pass it over. Raises CorruptCheckpoint if it is unknown, there twice or misshapen."""
        if name in self._ignored:
            return None
        if name not in self._places:
            raise CorruptCheckpoint(f"tensor {name} has no place in this architecture")
        if name not in self._missing:
            raise CorruptCheckpoint(f"tensor {name} is there twice")
        place = self._places[name]
        if shape != tuple(place.shape):
            raise CorruptCheckpoint(f"tensor {name} is {list(shape)}, expected {list(place.shape)}")
        self._missing.remove(name)
        return place

    def require_all(self) -> None:
        if self._missing:
            raise CorruptCheckpoint(f"{len(self._missing)} tensors are missing, the first is {min(self._missing)}")


def require_finite(tensors: list[tuple[str, Tensor]]) -> None:
    """Raises CorruptCheckpoint naming the first that holds NaN or infinity. Waits for the device once."""
    if not tensors:
        return
    extremes = torch.stack([torch.stack(tensor.aminmax()).isfinite().all() for _, tensor in tensors])  # NaN is either's
    for (name, _), finite in zip(tensors, extremes.tolist(), strict=True):
        if not finite:
            raise CorruptCheckpoint(f"tensor {name} holds NaN or infinity")
