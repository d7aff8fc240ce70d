"""Phi-3 and Phi-4 (Abdin et al. 2024): Llama with LongRoPE, its projections stored in one piece."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import windows
from backend.models.families.family import Family, Traits


def _traits(config: Mapping[str, Any]) -> Traits:
    return Traits(fused_names=True, windows=windows.in_every_layer(config))


FAMILY = Family(
    architecture="Phi3ForCausalLM",
    models="Phi-3 and Phi-3.5 mini and medium, Phi-4 (14B)",
    features="LongRoPE; sliding window in every layer, where config.json has one",
    traits=_traits,
)
