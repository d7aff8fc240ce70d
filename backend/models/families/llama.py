"""Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024), and those shaped like them."""

from collections.abc import Mapping
from typing import Any

from backend.errors import UnsupportedModel
from backend.models.families.family import Family, Traits


def require_no_bias(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel."""
    if config.get("attention_bias"):
        raise UnsupportedModel("a bias of the attention's output is not computed")


def _traits(config: Mapping[str, Any]) -> Traits:
    require_no_bias(config)
    return Traits()


FAMILY = Family(
    architecture="LlamaForCausalLM",
    models="Llama 2, 3, 3.1, 3.2, 3.3; SmolLM2, TinyLlama, Yi, DeepSeek-R1-Distill-Llama",
    features="grouped-query attention, RoPE of every kind below",
    traits=_traits,
    gguf="llama",
    interleaved=True,
)
