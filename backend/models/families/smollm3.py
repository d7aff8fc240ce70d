"""SmolLM3 (Hugging Face 2025): Llama without positions in every fourth layer (NoPE; Yang et al. 2025, RNoPE)."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import llama, windows
from backend.models.families.family import Family, Traits, Variant

INTERVAL, THETA = 4, 2_000_000.0


def _spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"tie_word_embeddings": True, "rope_theta": THETA, **config}


def _traits(config: Mapping[str, Any]) -> Traits:
    """``no_rope_layers`` is 1 where a layer does have positions."""
    llama.require_no_bias(config)
    turned = config.get("no_rope_layers")
    if turned is None:
        interval = int(config.get("no_rope_layer_interval") or INTERVAL)
        turned = [(layer + 1) % interval for layer in range(int(config["num_hidden_layers"]))]
    made = Variant(positions=tuple("rope" if each else "none" for each in turned))
    return Traits(windows=windows.by_layer(config), variant=made)


FAMILY = Family(
    architecture="SmolLM3ForCausalLM",
    models="SmolLM3 3B",
    features="no positions in every fourth layer; YaRN",
    traits=_traits,
    spelling=_spelling,
)
