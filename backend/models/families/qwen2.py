"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on q, k and v, and a sliding window in the upper layers if wanted."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import windows
from backend.models.families.family import Family, Traits


def _traits(config: Mapping[str, Any]) -> Traits:
    return Traits(qkv_bias=True, windows=windows.by_layer(config))


FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    models="Qwen2, Qwen2.5, Qwen2.5-Coder, QwQ, DeepSeek-R1-Distill-Qwen",
    features="q, k, v biases; YaRN; sliding window by layer",
    traits=_traits,
    gguf="qwen2",
)
