"""What a decoder-only transformer looks like, whatever file it came from.

Field names follow Hugging Face's config.json.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.errors import CorruptCheckpoint, UnsupportedModel

ARCHITECTURES = {  # config.json "architectures" entry -> our family
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Wavelength-dependent RoPE scaling of Llama 3.1 (Meta 2024, model card)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, inverse_frequency: float) -> float:
        wavelength = 2 * math.pi / inverse_frequency
        low = self.original_max_position / self.low_freq_factor
        high = self.original_max_position / self.high_freq_factor
        if wavelength < high:
            return inverse_frequency
        if wavelength > low:
            return inverse_frequency / self.factor
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1 - smooth) * inverse_frequency / self.factor + smooth * inverse_frequency


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-shaped decoder: pre-norm, RoPE (half-rotated), grouped-query attention, gated SiLU.

    ``qkv_bias`` is Qwen2's, ``qk_norm`` Qwen3's. ``rope_factors`` are GGUF's per-frequency divisors, ``head_dim // 2``
    of them.
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
    rope_linear_factor: float = 1.0
    rope_scaling: Llama3Scaling | None = None
    rope_factors: tuple[float, ...] | None = None

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
        if self.head_dim % 2:
            raise CorruptCheckpoint(f"RoPE needs an even head_dim, not {self.head_dim}")

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token's keys and values take, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size

    def inverse_frequencies(self) -> list[float]:
        """RoPE angles per position step, ``head_dim // 2`` of them (Su et al. 2021, RoFormer)."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-i / half) for i in range(half)]
        if self.rope_scaling is not None:
            return [self.rope_scaling.apply(f) for f in plain]
        if self.rope_factors is not None:
            return [f / divisor for f, divisor in zip(plain, self.rope_factors, strict=True)]
        return [f / self.rope_linear_factor for f in plain]


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read config.json.

    Raises UnsupportedModel for an architecture, activation or RoPE type we do not compute exactly, CorruptCheckpoint
    for a missing or mistyped key.
    """
    names = config.get("architectures") or [None]
    family = ARCHITECTURES.get(names[0])
    if family is None:
        raise UnsupportedModel(f"architecture {names[0]!r} is not one of {', '.join(sorted(ARCHITECTURES))}")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"activation {config['hidden_act']!r}; only silu is computed")
    if config.get("mlp_bias") or (family == "llama" and config.get("attention_bias")):
        raise UnsupportedModel("biases in the MLP or the attention output are not computed")
    if config.get("quantization_config"):
        require_readable(config["quantization_config"])
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        theta, linear_factor, scaling = _rope(config)
        window = config.get("sliding_window") if config.get("use_sliding_window", family == "llama") else None
        context = int(config["max_position_embeddings"])
        return ModelConfig(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            # Within its window, sliding attention is full attention: serve that much and no more.
            max_position=min(context, int(window)) if window else context,
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=theta,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or (family == "qwen3" and bool(config.get("attention_bias"))),
            qk_norm=family == "qwen3",
            rope_linear_factor=linear_factor,
            rope_scaling=scaling,
        )
    except KeyError as missing:
        raise CorruptCheckpoint(f"config.json has no {missing.args[0]}") from None
    except (TypeError, ValueError) as bad:
        raise CorruptCheckpoint(f"config.json: {bad}") from None


def require_readable(quantization: Mapping[str, Any]) -> None:
    """Of pre-quantised checkpoints we read e4m3 weights with scales by tensor, channel or 128 × 128 block, as
    compressed-tensors ("float-quantized") and the Qwen and DeepSeek releases ("fp8") lay them out. Activations are
    quantised token by token whatever the file says. Raises UnsupportedModel for the rest."""
    method = quantization.get("quant_method")
    if method == "fp8":
        if quantization.get("fmt", "e4m3") != "e4m3":
            raise UnsupportedModel(f"fp8 weights in {quantization['fmt']!r}; only e4m3 is read")
        return
    if method != "compressed-tensors":
        raise UnsupportedModel(f"quant_method {method!r} is not one of compressed-tensors, fp8")
    for group in (quantization.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        kind = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
        if (
            kind[:2] != ("float", 8)
            or kind[2] not in ("tensor", "channel", "block")
            or not weights.get("symmetric", True)
        ):
            raise UnsupportedModel(
                f"compressed-tensors weights of type, bits and strategy {kind}; only float, 8 are read"
            )


def _rope(config: Mapping[str, Any]) -> tuple[float, float, Llama3Scaling | None]:
    """(theta, linear factor, Llama 3 scaling) from either spelling: transformers 5's or the older pair of keys."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, 1.0, None
    if kind == "linear":
        return theta, float(rope["factor"]), None
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
        )
        return theta, 1.0, scaling
    raise UnsupportedModel(f"RoPE type {kind!r}; default, linear and llama3 are computed")
