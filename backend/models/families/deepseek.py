"""DeepSeek-V2 and V3 (DeepSeek-AI 2024): latent attention, and many narrow routed experts with shared experts."""

from collections.abc import Mapping
from typing import Any

from backend.errors import UnsupportedModel
from backend.models.families.family import ExpertNames, Experts, Family, LatentAttention, Traits
from backend.models.families.llama import require_no_bias
from backend.models.rope import yarn_magnitude

NAMES = ExpertNames(
    router="mlp.gate.weight",
    gate="mlp.experts.{}.gate_proj.weight",
    up="mlp.experts.{}.up_proj.weight",
    down="mlp.experts.{}.down_proj.weight",
    correction="mlp.gate.e_score_correction_bias",
)
GREEDY, BY_GROUP, CORRECTED = "greedy", "group_limited_greedy", "noaux_tc"


def _spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration under the names common to all families: the number of KV heads is that of the heads,
    and the output width of a head is that of a value."""
    return {**config, "num_key_value_heads": 1, "head_dim": config.get("v_head_dim")}


def _latent(config: Mapping[str, Any], *, interleaved: bool) -> LatentAttention:
    rank = config["q_lora_rank"]
    return LatentAttention(
        rank=int(config["kv_lora_rank"]),
        query_rank=None if rank is None else int(rank),
        plain=int(config["qk_nope_head_dim"]),
        rotary=int(config["qk_rope_head_dim"]),
        value=int(config["v_head_dim"]),
        interleaved=interleaved,
    )


def _experts(config: Mapping[str, Any], method: str, *, sigmoid: bool, normalised: bool) -> Experts | None:
    """Return the experts' configuration, or None where all layers are dense. Raises UnsupportedModel."""
    if config.get("n_routed_experts") is None:
        return None
    if int(config.get("moe_layer_freq") or 1) != 1:
        raise UnsupportedModel("a mixture of experts in every nth layer only is not computed for DeepSeek")
    if method not in (GREEDY, BY_GROUP, CORRECTED):
        raise UnsupportedModel(f"topk_method {method!r} is not one of {GREEDY}, {BY_GROUP}, {CORRECTED}")
    inner, layers = int(config["moe_intermediate_size"]), int(config["num_hidden_layers"])
    grouped = method != GREEDY
    return Experts(
        count=int(config["n_routed_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        intermediate_size=inner,
        names=NAMES,
        normalised=normalised,
        dense_layers=frozenset(range(min(layers, int(config.get("first_k_dense_replace") or 0)))),
        sigmoid=sigmoid,
        scale=float(config.get("routed_scaling_factor", 1.0)),
        groups=int(config["n_group"]) if grouped else 1,
        groups_taken=int(config["topk_group"]) if grouped else 1,
        corrected=method == CORRECTED,
        shared_size=inner * int(config.get("n_shared_experts") or 0),
    )


def attention_scale(config: Mapping[str, Any]) -> float:
    """Return the factor of the attention scores. YaRN's magnitude scales both query and key, and with DeepSeek's
    ``mscale_all_dim`` all their dimensions, those without rotary embedding too."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scale = (int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])) ** -0.5
    every = float(rope.get("mscale_all_dim") or 0.0)
    stretched = (rope.get("rope_type") or rope.get("type") or "default") != "default"
    return float(scale * yarn_magnitude(float(rope["factor"]), every) ** 2) if every and stretched else float(scale)


def _v2(config: Mapping[str, Any]) -> Traits:
    require_no_bias(config)
    if config.get("scoring_func", "softmax") != "softmax":
        raise UnsupportedModel(f"scoring_func {config['scoring_func']!r} of DeepSeek-V2 is not computed, only softmax")
    if config.get("norm_topk_prob"):
        raise UnsupportedModel("norm_topk_prob of DeepSeek-V2 is not computed: its releases do without")
    method = config.get("topk_method") or GREEDY
    if method == CORRECTED:
        raise UnsupportedModel(f"topk_method {CORRECTED!r} of DeepSeek-V2 is not computed; V3 has it")
    experts = _experts(config, method, sigmoid=False, normalised=False)
    return Traits(experts=experts, latent=_latent(config, interleaved=True), attention_scale=attention_scale(config))


def _v3(config: Mapping[str, Any]) -> Traits:
    require_no_bias(config)
    scoring, method = config.get("scoring_func", "sigmoid"), config.get("topk_method", CORRECTED)
    if scoring != "sigmoid" or method != CORRECTED:
        raise UnsupportedModel(f"DeepSeek-V3 with scoring_func {scoring!r} and topk_method {method!r} is not computed")
    experts = _experts(config, CORRECTED, sigmoid=True, normalised=bool(config.get("norm_topk_prob", True)))
    interleaved = bool(config.get("rope_interleave", True))
    predicting = config.get("num_nextn_predict_layers") or config.get("num_mtp_layers") or 0
    return Traits(
        experts=experts,
        latent=_latent(config, interleaved=interleaved),
        attention_scale=attention_scale(config),
        predicting_layers=int(predicting),
    )


V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    models="DeepSeek-V2, V2-Lite, V2.5, Coder-V2",
    features="latent attention; mixture of experts by groups, shared experts; YaRN",
    traits=_v2,
    spelling=_spelling,
    gpu="yes; these kernels have not run on a card yet",
)
V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    models="DeepSeek-V3, V3-0324, V3.1, R1",
    features="latent attention; mixture of experts by groups with a corrected choice, shared experts; YaRN",
    traits=_v3,
    spelling=_spelling,
    gpu="yes; these kernels have not run on a card yet",
)
