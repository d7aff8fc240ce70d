"""OLMo 2 (Team OLMo 2024): norms after attention and MLP, none before; q and k normalised over all heads at once."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import llama
from backend.models.families.family import Family, Traits, Variant


def _traits(config: Mapping[str, Any]) -> Traits:
    llama.require_no_bias(config)
    made = Variant(norm_before=False, norm_after=True, wide_qk_norm=True)
    return Traits(qk_norm=True, variant=made)


FAMILY = Family(
    architecture="Olmo2ForCausalLM",
    models="OLMo 2 1B to 32B",
    features="norms after, none before; q and k norms over all heads",
    traits=_traits,
)
