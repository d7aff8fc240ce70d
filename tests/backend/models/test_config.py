from typing import Any

import pytest

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.config import from_hugging_face
from backend.models.rope import Linear, Unscaled, Yarn
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
    assert (config.rope_theta, config.rope_scaling) == (5.0, Linear(2.0))
    assert config.inverse_frequencies()[0] == 0.5


def test_llama_3_scaling_leaves_short_waves_and_stretches_long_ones() -> None:
    plain = from_hugging_face({**CONFIG, "rope_theta": 500_000.0}).inverse_frequencies()
    scaled = from_hugging_face({**CONFIG, "rope_theta": 500_000.0, "rope_scaling": LLAMA3}).inverse_frequencies()
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8


MISTRAL = {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 100}
QWEN = {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "max_window_layers": 1}


def test_a_sliding_window_is_read_for_the_layers_that_have_it() -> None:
    assert from_hugging_face(MISTRAL).windows == (100, 100)
    assert from_hugging_face({**QWEN, "use_sliding_window": True}).windows == (None, 100)
    named = {**QWEN, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    assert from_hugging_face(named).windows == (100, None)
    assert from_hugging_face({**QWEN, "use_sliding_window": False}).windows == ()


def test_a_window_that_no_sequence_reaches_is_none() -> None:
    assert from_hugging_face({**MISTRAL, "sliding_window": 256}).windows == ()
    config = from_hugging_face(MISTRAL)
    assert config.within(101).windows == (100, 100)
    assert config.within(100).windows == ()
    assert config.within(100).max_position == 100
    assert config.within(10_000).max_position == 256


def test_yarn_by_one_key_stretches_the_context_beyond_what_the_file_says() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = from_hugging_face({**CONFIG, "rope_scaling": scaling})
    assert config.max_position == 1024
    assert isinstance(config.rope_scaling, Yarn)


def test_dynamic_scaling_is_served_for_as_long_as_it_changes_nothing() -> None:
    config = from_hugging_face({**CONFIG, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    assert (config.max_position, config.rope_scaling) == (256, Unscaled())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "None"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "bias"),
        ({"mlp_bias": True}, "bias"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method 'bitsandbytes' is not one of"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "'proportional' is not one of default, linear"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, "bias"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "linear_attention"]},
            "layers of linear_attention",
        ),
    ],
)
def test_what_we_would_compute_wrongly_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_hugging_face({**CONFIG, **changes})


def test_the_refusal_of_an_architecture_names_those_that_are_served() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"LlamaForCausalLM, Mistral3For.*MistralForCausalLM, .*Qwen3ForCausalLM"
    ):
        from_hugging_face({**CONFIG, "architectures": ["GPT2LMHeadModel"]})


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
        {"windows": (4,)},
        {"windows": (4, 0)},
    ],
)
def test_shapes_that_cannot_be_are_corrupt(changes: dict[str, int]) -> None:
    with pytest.raises(CorruptCheckpoint):
        tiny_config(**changes)


def test_a_word_where_a_number_belongs_is_corrupt() -> None:
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        from_hugging_face({**CONFIG, "hidden_size": "wide"})
