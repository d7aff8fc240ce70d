"""Granite 3 and later (IBM 2024), dense: Llama with multipliers."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import llama
from backend.models.families.family import Family, Traits, Variant


def _traits(config: Mapping[str, Any]) -> Traits:
    llama.require_no_bias(config)
    made = Variant(
        attention_scale=float(config.get("attention_multiplier", 1.0)),
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        logit_scale=float(config.get("logits_scaling", 1.0)),
    )
    return Traits(variant=made)


FAMILY = Family(
    architecture="GraniteForCausalLM",
    models="Granite 3.0 to 3.3, 2B and 8B",
    features="multipliers of embedding, attention, residual and logits",
    traits=_traits,
)
