"""Qwen3 (Yang et al. 2025): q and k are normalised, head by head."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import llama, windows
from backend.models.families.family import Family, Traits


def traits(config: Mapping[str, Any]) -> Traits:
    """Raises UnsupportedModel."""
    llama.require_no_bias(config)
    return Traits(qk_norm=True, windows=windows.by_layer(config))


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    models="Qwen3 0.6B to 32B",
    features="q and k norms; YaRN; sliding window by layer",
    traits=traits,
    gguf="qwen3",
)
