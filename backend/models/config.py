"""What a decoder-only transformer looks like, whatever file it came from.

Field names follow Hugging Face's config.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models import families, rope
from backend.models.families.family import Experts, LatentAttention, Positions, Variant
from backend.models.rope import RopeScaling, Unscaled
from backend.parallel.shard import ALONE, WHOLE, Shard, Stage
from backend.quantization import declared_by
from backend.quantization.format import StoredWeights


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-shaped decoder: pre-norm, RoPE (half-rotated), grouped-query attention, gated SiLU.

    ``qkv_bias`` is Qwen2's, ``qk_norm`` Qwen3's, ``fused_names`` Phi-3's, ``out_bias`` and ``sinks`` gpt-oss's (see
    `families`). ``windows``: for each layer
    how many of the newest tokens, its own included, a token attends to, None for all; empty: all in every layer.
    ``experts`` take the place of the MLP (Mixtral, Qwen3-MoE). ``variant``: what else differs from Llama (Gemma, …).
    ``stored_weights``: how the checkpoint quantises them; None for weights in a float type. ``latent``: attention is
    DeepSeek's; there is one KV head then, and ``head_dim`` is a value's. ``scale``: what q · k is multiplied by; None:
    the variant's, or head_dim ** -0.5. ``predicting_layers``: behind the others, for tokens further ahead (multi-token
    prediction); they are not read.

    ``shard``: whose part of a model this is (`sharding.of_rank`). Heads and the widths of MLP and experts are then
    those of the rank, the vocabulary is the model's. ``kv_copies``: ranks that hold the same KV heads. ``parts``: in
    how many parts products are computed, so that their bits are those of more ranks (`layers.in_parts`). ``stage``:
    the group of layers that this is; the checkpoint has ``all_layers``, and its ``first_layer`` is layer 0 here.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    out_bias: bool = False
    sinks: bool = False
    rope_scaling: RopeScaling = Unscaled()  # noqa: RUF009 -- frozen
    fused_names: bool = False
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    variant: Variant | None = None
    latent: LatentAttention | None = None
    scale: float | None = None
    predicting_layers: int = 0
    stored_weights: StoredWeights | None = None
    shard: Shard = ALONE
    kv_copies: int = 1
    parts: int = 1
    stage: Stage = WHOLE
    first_layer: int = 0
    all_layers: int = 0

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        )
        for name in sizes:
            if getattr(self, name) <= 0:
                raise CorruptCheckpoint(f"{name} is {getattr(self, name)}; it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise CorruptCheckpoint(f"{self.num_heads} heads do not divide into {self.num_kv_heads} KV heads")
        if self.rotary_dim % 2:
            raise CorruptCheckpoint(f"RoPE needs an even head_dim, not {self.rotary_dim}")
        if self.windows and len(self.windows) != self.num_layers:
            raise CorruptCheckpoint(f"{len(self.windows)} attention windows for {self.num_layers} layers")
        if any(window is not None and window <= 0 for window in self.windows):
            raise CorruptCheckpoint("an attention window holds no token")
        positions = self.variant.positions if self.variant else ()
        if positions and len(positions) != self.num_layers:
            raise CorruptCheckpoint(f"kinds of positions for {len(positions)} of {self.num_layers} layers")

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token's keys and values take, all layers."""
        return self.num_layers * self.kv_bytes_of_layer(element_size)

    def kv_bytes_of_layer(self, element_size: int) -> int:
        """The same, of one layer."""
        return self.num_kv_heads * sum(self.cached_widths) * element_size

    @property
    def cached_widths(self) -> tuple[int, int]:
        """Widths of what a KV head of a layer stores for a token: key and value, or latent and rotary key."""
        return (self.head_dim, self.head_dim) if self.latent is None else (self.latent.rank, self.latent.rotary)

    @property
    def attended_dim(self) -> int:
        """Width of the output of attention over the cache, per head: a value, or a sum of latents."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def numbers_a_pair(self) -> int:
        """Products of a query token with a key token in a layer, of all heads: scores and sums of values."""
        score = self.head_dim if self.latent is None else self.latent.stored
        return self.num_heads * (score + self.attended_dim)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are turned by the position."""
        return self.head_dim if self.latent is None else self.latent.rotary

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, width) of the matrices that a layer without experts multiplies by."""
        q, kv, hidden, inner = self.q_width, self.kv_width, self.hidden_size, self.intermediate_size
        found = {
            "qkv": (q + 2 * kv, hidden), "out": (hidden, q), "gate_up": (2 * inner, hidden), "down": (hidden, inner),
        }  # fmt: skip
        if self.latent is not None:
            found["qkv"] = (self._query_rows + self.latent.stored, hidden)
        if self.latent is not None and self.latent.query_rank is not None:
            found["q_b"] = (self.num_heads * self.latent.query, self.latent.query_rank)
        return found

    @property
    def shared_matrices(self) -> dict[str, tuple[int, int]]:
        """The same of the experts that every token of a mixture takes."""
        if self.experts is None or not self.experts.shared_size:
            return {}
        hidden, inner = self.hidden_size, self.experts.shared_size
        return {"shared_gate_up": (2 * inner, hidden), "shared_down": (hidden, inner)}

    @property
    def _query_rows(self) -> int:
        """Rows of ``qkv`` with latent attention: the query's latent, or the queries themselves."""
        assert self.latent is not None  # noqa: S101 -- who asks has looked
        rank = self.latent.query_rank
        return self.num_heads * self.latent.query if rank is None else rank

    @property
    def modules(self) -> dict[str, tuple[str, int, int]]:
        """A layer's modules as the checkpoint names them, each with its matrix and the rows that it has there: from
        the first, to before the second."""
        q, kv, inner = self.q_width, self.kv_width, self.intermediate_size
        if self.fused_names:
            joined = {
                "self_attn.qkv_proj": ("qkv", 0, q + 2 * kv),
                "mlp.gate_up_proj": ("gate_up", 0, 2 * inner),
            }
        else:
            joined = {
                "self_attn.q_proj": ("qkv", 0, q), "self_attn.k_proj": ("qkv", q, q + kv),
                "self_attn.v_proj": ("qkv", q + kv, q + 2 * kv), "mlp.gate_proj": ("gate_up", 0, inner),
                "mlp.up_proj": ("gate_up", inner, 2 * inner),
            }  # fmt: skip
        if self.latent is not None:
            joined = {name: place for name, place in joined.items() if place[0] != "qkv"} | self._latent_modules
        if self.shared_matrices:
            inner, place = self.experts.shared_size if self.experts else 0, "mlp.shared_experts."
            joined |= {
                f"{place}gate_proj": ("shared_gate_up", 0, inner),
                f"{place}up_proj": ("shared_gate_up", inner, 2 * inner),
                f"{place}down_proj": ("shared_down", 0, self.hidden_size),
            }
        return joined | {
            "self_attn.o_proj": ("out", 0, self.hidden_size),
            "mlp.down_proj": ("down", 0, self.hidden_size),
        }

    @property
    def _latent_modules(self) -> dict[str, tuple[str, int, int]]:
        assert self.latent is not None  # noqa: S101 -- who asks has looked
        rows = self._query_rows
        keys = {"self_attn.kv_a_proj_with_mqa": ("qkv", rows, rows + self.latent.stored)}
        if self.latent.query_rank is None:
            return {"self_attn.q_proj": ("qkv", 0, rows)} | keys
        queries = ("q_b", 0, self.num_heads * self.latent.query)
        return {"self_attn.q_a_proj": ("qkv", 0, rows)} | keys | {"self_attn.q_b_proj": queries}

    @property
    def expansion_numbers(self) -> int:
        """Numbers of a layer that make keys and values of latents (``kv_b_proj``), which are never quantised."""
        latent = self.latent
        return 0 if latent is None else self.num_heads * (latent.plain + latent.value) * latent.rank

    @property
    def layer_numbers(self) -> int:
        """Numbers of a layer's matrices that a token is multiplied by: of the experts, those that it takes."""
        sizes = {name: outputs * width for name, (outputs, width) in self.matrices.items()}
        if self.experts is None:
            return sum(sizes.values()) + self.expansion_numbers
        taken = 3 * self.hidden_size * self.experts.intermediate_size * self.experts.per_token
        shared = sum(outputs * width for outputs, width in self.shared_matrices.values())
        attention = sum(size for name, size in sizes.items() if name not in ("gate_up", "down"))
        return attention + self.expansion_numbers + self.hidden_size * self.experts.count + taken + shared

    def kept_modules(self, layer: int, matrix: str) -> list[str]:
        """Those that share a matrix of a layer and that the checkpoint, whose weights are quantised, has in higher
        precision."""
        stored = self.stored_weights
        shared = [module for module, (name, _, _) in self.modules.items() if name == matrix]
        return [] if stored is None else [m for m in shared if stored.keeps(f"{self.prefix_of(layer)}{m}")]

    def keeps(self, layer: int, matrix: str) -> bool:
        """Whether a matrix stays in the model's dtype since the checkpoint has it in higher precision."""
        return bool(self.kept_modules(layer, matrix))

    @property
    def has_embedding(self) -> bool:
        """Whether this stage has the table of the embedding, which may be the head's, too."""
        return self.stage.first or (self.stage.last and self.tie_word_embeddings)

    def prefix_of(self, layer: int) -> str:
        """Prefix of a layer's tensors and modules in a checkpoint."""
        return f"model.layers.{self.first_layer + layer}."

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def kv_parts(self) -> int:
        """Number of parts of the KV heads: parts that hold the same one are one."""
        return min(self.parts, self.num_kv_heads)

    @property
    def heads_of_part(self) -> int:
        """Query heads of a part that attend to the same KV head."""
        return self.num_heads // self.parts // (self.num_kv_heads // self.kv_parts)

    def inverse_frequencies(self) -> list[float]:
        """RoPE angles per position step, ``rotary_dim // 2`` of them; times `rope_scaling.magnitude` once they are
        sines and cosines."""
        return self.rope_scaling.frequencies(self.rope_theta, self.rotary_dim, self.max_position)

    def positions_of(self, layer: int) -> Positions:
        """Which table that layer's q and k are turned by."""
        return self.variant.positions[layer] if self.variant and self.variant.positions else "rope"

    def within(self, context: int | None) -> "ModelConfig":
        """The same model for sequences of at most `context` tokens, where that is less than its own. A window that no
        such sequence reaches is none."""
        position = self.max_position if context is None else min(context, self.max_position)
        windows = tuple(None if window is None or window >= position else window for window in self.windows)
        return replace(self, max_position=position, windows=windows if any(windows) else ())

    @property
    def attention_scale(self) -> float:
        """What q · k is multiplied by."""
        given = self.variant.attention_scale if self.variant else self.scale
        return self.head_dim**-0.5 if given is None else given

    @property
    def attention_cap(self) -> float | None:
        """Cap of the scaled scores; None: there is none."""
        return self.variant.attention_cap if self.variant else None

    @property
    def plain_attention(self) -> bool:
        """Whether every token attends to keys and values of all before it, by scores as they are: what the library's
        kernel knows."""
        return not self.windows and self.attention_cap is None and not self.sinks and self.latent is None

    def keeps_experts(self, layer: int) -> bool:
        """Whether a layer's experts stay in the model's dtype since the checkpoint has them in higher precision."""
        if self.experts is None or self.stored_weights is None:
            return False
        module = self.experts.names.down.format(0).removesuffix(".weight")
        return self.stored_weights.keeps(f"{self.prefix_of(layer)}{module}")


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read config.json.

    Raises UnsupportedModel for an architecture, activation or RoPE type we do not compute exactly, CorruptCheckpoint
    for a missing or mistyped key.
    """
    names = config.get("architectures") or [None]
    family = families.of_architecture(names[0])
    config = family.spelling(config)
    activation = config.get("hidden_activation") or config.get("hidden_act") or family.activation
    if activation != family.activation:
        raise UnsupportedModel(f"activation {activation!r}; only {family.activation} is computed")
    if config.get("mlp_bias"):
        raise UnsupportedModel("biases in the MLP are not computed")
    quantised = config.get("quantization_config")
    stored_weights = declared_by(quantised) if quantised else None
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        positions = rope.from_hugging_face(config)
        traits = family.traits(config)
        return ModelConfig(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            max_position=positions.context,
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=positions.theta,
            rope_scaling=positions.scaling,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=traits.qkv_bias,
            qk_norm=traits.qk_norm,
            out_bias=traits.out_bias,
            sinks=traits.sinks,
            fused_names=traits.fused_names,
            windows=traits.windows,
            experts=traits.experts,
            variant=traits.variant,
            latent=traits.latent,
            scale=traits.attention_scale,
            predicting_layers=traits.predicting_layers,
            stored_weights=stored_weights,
        ).within(None)
    except KeyError as missing:
        raise CorruptCheckpoint(f"config.json has no {missing.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as bad:
        raise CorruptCheckpoint(f"config.json: {bad}") from None
