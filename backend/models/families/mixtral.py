"""Mixtral (Jiang et al. 2024): Mistral with eight experts a layer, two of them for each token."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import windows
from backend.models.families.family import ExpertNames, Experts, Family, Traits

NAMES = ExpertNames(
    router="block_sparse_moe.gate.weight",
    gate="block_sparse_moe.experts.{}.w1.weight",
    up="block_sparse_moe.experts.{}.w3.weight",
    down="block_sparse_moe.experts.{}.w2.weight",
)


def _traits(config: Mapping[str, Any]) -> Traits:
    experts = Experts(
        count=int(config["num_local_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        intermediate_size=int(config["intermediate_size"]),
        names=NAMES,
    )
    return Traits(windows=windows.in_every_layer(config), experts=experts)


FAMILY = Family(
    architecture="MixtralForCausalLM",
    models="Mixtral 8x7B, 8x22B",
    features="mixture of experts",
    traits=_traits,
    gpu="yes",
)
