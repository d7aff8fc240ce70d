"""Qwen3-MoE (Yang et al. 2025): Qwen3 with a mixture of experts in most layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.errors import UnsupportedModel
from backend.models.families import qwen3, windows
from backend.models.families.family import ExpertNames, Experts, Family, Traits

NAMES = ExpertNames(
    router="mlp.gate.weight",
    gate="mlp.experts.{}.gate_proj.weight",
    up="mlp.experts.{}.up_proj.weight",
    down="mlp.experts.{}.down_proj.weight",
)


def _traits(config: Mapping[str, Any]) -> Traits:
    if config.get("use_sliding_window"):
        # Every layer has the window here, whatever max_window_layers says.
        return replace(_full(config), windows=windows.in_every_layer(config))
    return _full(config)


def _full(config: Mapping[str, Any]) -> Traits:
    layers, step = int(config["num_hidden_layers"]), int(config.get("decoder_sparse_step", 1))
    if step < 1:
        raise UnsupportedModel(f"decoder_sparse_step is {step}")
    dense = set(config.get("mlp_only_layers") or ()) | {i for i in range(layers) if (i + 1) % step}
    experts = Experts(
        count=int(config.get("num_experts") or config["num_local_experts"]),  # transformers 5 writes the latter
        per_token=int(config["num_experts_per_tok"]),
        intermediate_size=int(config["moe_intermediate_size"]),
        names=NAMES,
        normalised=bool(config.get("norm_topk_prob", False)),
        dense_layers=frozenset(dense),
    )
    return replace(qwen3.traits({**config, "use_sliding_window": False}), experts=experts)


FAMILY = Family(
    architecture="Qwen3MoeForCausalLM",
    models="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
    features="q and k norms; mixture of experts; YaRN",
    traits=_traits,
    gpu="yes",
)
