from typing import Any

import pytest

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.config import from_hugging_face
from tests.backend.tiny import tiny_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
OLD_SCALING = {"type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_what_is_not_said_takes_its_usual_value() -> None:
    config = from_hugging_face(CONFIG)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 16, 10_000.0)
    assert not config.tie_word_embeddings
    assert not config.qkv_bias


@pytest.mark.parametrize(
    "rope",
    [{"rope_theta": 5.0, "rope_scaling": OLD_SCALING}, {"rope_parameters": {**OLD_SCALING, "rope_theta": 5.0}}],
    ids=["old", "new"],
)
def test_rope_is_read_in_both_spellings(rope: dict[str, Any]) -> None:
    config = from_hugging_face({**CONFIG, **rope})
    assert (config.rope_theta, config.rope_linear_factor) == (5.0, 2.0)
    assert config.inverse_frequencies()[0] == 0.5


def test_llama_3_scaling_leaves_short_waves_and_stretches_long_ones() -> None:
    plain = from_hugging_face({**CONFIG, "rope_theta": 500_000.0}).inverse_frequencies()
    scaled = from_hugging_face({**CONFIG, "rope_theta": 500_000.0, "rope_scaling": LLAMA3}).inverse_frequencies()
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8


def test_a_sliding_window_bounds_the_context() -> None:
    mistral = {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 100}
    assert from_hugging_face(mistral).max_position == 100
    qwen = {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "use_sliding_window": False}
    assert from_hugging_face(qwen).max_position == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "None"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "bias"),
        ({"mlp_bias": True}, "bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq' is not one of"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
    ],
)
def test_what_we_would_compute_wrongly_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_hugging_face({**CONFIG, **changes})


@pytest.mark.parametrize("key", [k for k in CONFIG if k != "architectures"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=key):
        from_hugging_face({k: v for k, v in CONFIG.items() if k != key})


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 5},
        {"head_dim": 7},
        {"num_layers": 0},
        {"vocab_size": -1},
    ],
)
def test_shapes_that_cannot_be_are_corrupt(changes: dict[str, int]) -> None:
    with pytest.raises(CorruptCheckpoint):
        tiny_config(**changes)


def test_a_word_where_a_number_belongs_is_corrupt() -> None:
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        from_hugging_face({**CONFIG, "hidden_size": "wide"})
