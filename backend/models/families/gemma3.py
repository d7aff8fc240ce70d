"""Gemma 3 (Gemma Team 2025), text: Gemma 2 with q and k norms in the place of caps, five layers with a window to one
without, and positions of their own in those with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.models import rope
from backend.models.families import gemma2, windows
from backend.models.families.family import GELU_TANH, Family, Traits

PATTERN = 6
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
LOCAL = "local_rope_parameters"  # our name for what releases spell in two ways


def spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    by_kind = config.get("rope_parameters") or {}
    whole = by_kind.get(windows.FULL) or config.get("rope_scaling") or {}
    local = by_kind.get(windows.SLIDING) or {}
    return {
        **gemma2.spelling(config),
        "rope_parameters": {"rope_theta": config.get("rope_theta") or THETA, **whole},
        LOCAL: {"rope_theta": config.get("rope_local_base_freq") or LOCAL_THETA, **local},
    }


def traits(config: Mapping[str, Any]) -> Traits:
    kinds = windows.kinds(config, every=int(config.get("sliding_window_pattern") or PATTERN))
    made = gemma2.variant(config)
    context = config["max_position_embeddings"]
    local = rope.from_hugging_face({"max_position_embeddings": context, "rope_parameters": config[LOCAL]})
    return Traits(
        qk_norm=True,
        windows=windows.of_kinds(config, kinds),
        variant=replace(
            made, local_rope=local, positions=tuple("local" if kind == windows.SLIDING else "rope" for kind in kinds)
        ),
    )


FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    models="Gemma 3 270M and 1B; text-only exports of the larger ones",
    features="q and k norms, norms before and after; sliding window in five of six layers, with RoPE of its own; GELU",
    traits=traits,
    spelling=spelling,
    activation=GELU_TANH,
)
