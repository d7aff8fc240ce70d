"""gpt-oss (OpenAI 2025): experts in MXFP4, attention with sinks and biases, a sliding window in every second layer and
a clamped gate."""

from collections.abc import Mapping
from typing import Any

from backend.errors import UnsupportedModel
from backend.models.families import windows
from backend.models.families.family import ExpertNames, Experts, Family, Traits

NAMES = ExpertNames(
    router="mlp.router.weight",
    gate="mlp.experts.gate_up_proj",  # all experts, gate and up rows interleaved
    up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
)


def spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with the defaults of transformers for the keys that a release leaves out."""
    return {"attention_bias": True, "rms_norm_eps": 1e-5, "swiglu_limit": 7.0, "swiglu_alpha": 1.702, **config}


def _traits(config: Mapping[str, Any]) -> Traits:
    if not config["attention_bias"]:
        raise UnsupportedModel("gpt-oss without biases in attention is not computed")
    if (config.get("quantization_config") or {}).get("quant_method") != "mxfp4":
        raise UnsupportedModel("gpt-oss is read with experts in MXFP4, as it is released; this one has others")
    experts = Experts(
        count=int(config["num_local_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        intermediate_size=int(config["intermediate_size"]),
        names=NAMES,
        clamp=float(config["swiglu_limit"]),
        slope=float(config["swiglu_alpha"]),
    )
    return Traits(
        qkv_bias=True,
        out_bias=True,
        sinks=True,
        windows=windows.of_kinds(config, windows.kinds(config, every=2)),
        experts=experts,
    )


FAMILY = Family(
    architecture="GptOssForCausalLM",
    models="gpt-oss-20b, gpt-oss-120b",
    features="mixture of experts in MXFP4; sinks; sliding window in every second layer; clamped gate; YaRN",
    traits=_traits,
    spelling=spelling,
    gpu="yes",
)
