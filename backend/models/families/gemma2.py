"""Gemma 2 (Gemma Team 2024): norms before and after, soft caps, a window in every second layer, GELU, and heads whose
width is a matter of its own."""

from collections.abc import Mapping
from typing import Any

from backend.errors import UnsupportedModel
from backend.models.families import llama, windows
from backend.models.families.family import GELU_TANH, Family, Traits, Variant


def spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a release leaves to transformers' defaults."""
    return {"tie_word_embeddings": True, "head_dim": 256, "rms_norm_eps": 1e-6, **config}


def variant(config: Mapping[str, Any]) -> Variant:
    """What all Gemmas have, with caps where config.json says so. Raises UnsupportedModel."""
    llama.require_no_bias(config)
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("attention to later tokens is not computed")
    return Variant(
        norm_after=True,
        norm_from_one=True,
        gelu=True,
        attention_scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        attention_cap=_cap(config, "attn_logit_softcapping"),
        logit_cap=_cap(config, "final_logit_softcapping"),
        embedding_scale=float(config["hidden_size"]) ** 0.5,
    )


def _cap(config: Mapping[str, Any], name: str) -> float | None:
    value = config.get(name)
    return None if value is None else float(value)


def _traits(config: Mapping[str, Any]) -> Traits:
    return Traits(
        windows=windows.of_kinds(config, windows.kinds(config, every=2)),
        variant=variant(config),
    )


FAMILY = Family(
    architecture="Gemma2ForCausalLM",
    models="Gemma 2 2B, 9B, 27B",
    features="norms before and after; soft caps of attention and logits; sliding window in every second layer; GELU",
    traits=_traits,
    spelling=spelling,
    activation=GELU_TANH,
)
