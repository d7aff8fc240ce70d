"""Gemma's config.json in the spellings of its releases, and what is refused; its logits are compared in test_parity."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import ModelConfig, from_hugging_face
from backend.models.families.family import Variant
from backend.models.loader import load_model
from tests.backend.asked import asked
from tests.backend.models.checkpoints.test_chat_template import WITHOUT_SYSTEM
from tests.backend.models.families.test_parity import CASES, reference, theirs
from tests.backend.tiny import generate, greedy, tiny_config, tiny_engine, tiny_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 32,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA2 = {
    **SHAPE,
    "architectures": ["Gemma2ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3 = {**SHAPE, "architectures": ["Gemma3ForCausalLM"]}
OLD = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": None, "sliding_window_pattern": 3}
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
NEW = {
    "layer_types": KINDS * 4,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    },
}


def variant(config: ModelConfig) -> Variant:
    assert config.variant is not None
    return config.variant


def test_what_a_release_leaves_unsaid_is_what_its_models_have() -> None:
    config = from_hugging_face(GEMMA2)
    assert (config.head_dim, config.tie_word_embeddings, config.rms_norm_eps) == (256, True, 1e-6)
    assert config.windows == (32, None) * 6
    assert (variant(config).attention_scale, variant(config).attention_cap, variant(config).logit_cap) == (
        1 / 16,
        50,
        30,
    )
    assert variant(config).embedding_scale == 8


def test_both_spellings_of_gemma_3_are_the_same_model() -> None:
    old, new = from_hugging_face({**GEMMA3, **OLD}), from_hugging_face({**GEMMA3, **NEW})
    assert old == new
    assert old.rope_theta == 5e5
    local = variant(old).local_rope
    assert local is not None
    assert local.theta == 2e4
    assert [old.positions_of(layer) for layer in range(3)] == ["local", "local", "rope"]


def test_gemma_3_without_a_word_on_positions_has_its_two_bases_and_a_full_layer_in_six() -> None:
    config = from_hugging_face(GEMMA3)
    local = variant(config).local_rope
    assert local is not None
    assert (config.rope_theta, local.theta) == (1e6, 1e4)
    assert config.windows == (*(32,) * 5, None) * 2


def test_a_stretch_is_that_of_the_full_layers_alone() -> None:
    config = from_hugging_face({**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    local = variant(config).local_rope
    assert local is not None
    assert config.inverse_frequencies()[0] == 1 / 8
    assert local.scaling.frequencies(local.theta, 256, 256)[0] == 1


def test_layers_whose_window_no_sequence_reaches_keep_their_own_positions() -> None:
    config = from_hugging_face(GEMMA3).within(20)
    assert config.windows == ()
    assert config.positions_of(0) == "local"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": True}, "attention to later tokens"),
        ({"attention_bias": True}, "bias"),
        ({"hidden_activation": "gelu"}, "activation 'gelu'; only gelu_pytorch_tanh"),
        ({"hidden_activation": "silu"}, "activation 'silu'"),
        ({"layer_types": ["linear_attention"] * 12}, "layers of linear_attention"),
    ],
)
@pytest.mark.parametrize("config", [GEMMA2, GEMMA3], ids=["2", "3"])
def test_what_would_be_computed_wrongly_is_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_hugging_face({**config, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_logit_softcapping": 0.0}, "attention_cap is 0.0; it must be positive"),
        ({"final_logit_softcapping": -1.0}, "logit_cap is -1.0"),
        ({"layer_types": KINDS}, "windows for 12 layers"),
        ({"query_pre_attn_scalar": 0}, "config.json|positive"),
    ],
)
def test_what_cannot_be_is_a_corrupt_checkpoint(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=message):
        from_hugging_face({**GEMMA2, **changes})


def test_a_silu_model_does_not_become_a_gelu_one_by_a_word_in_its_config() -> None:
    llama = {**SHAPE, "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
    with pytest.raises(UnsupportedModel, match="gelu_pytorch_tanh"):
        from_hugging_face(llama)


@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_a_prompt_from_the_prefix_cache_has_the_same_answer(case: str, tmp_path: Path) -> None:
    original = theirs(*CASES[case])
    original.save_pretrained(tmp_path)
    engine = tiny_engine(load_model(Checkpoint(tmp_path), "float32"), max_num_batched_tokens=32, block_size=4)
    prompt = [(13 * i + i * i) % 101 for i in range(90)]
    (first,) = generate(engine, [prompt], greedy(8))
    (again,) = generate(engine, [prompt], greedy(8))
    assert engine.stats.prefix_hits == 88
    expected = reference(original, prompt + first)[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert again == first == expected


def test_more_or_fewer_kinds_of_positions_than_layers_cannot_be() -> None:
    with pytest.raises(CorruptCheckpoint, match="kinds of positions for 1 of 2 layers"):
        tiny_config(variant=Variant(positions=("rope",)))


async def test_a_chat_with_gemma_is_answered_and_its_system_turn_a_400_with_the_templates_word(tmp_path: Path) -> None:
    theirs("Gemma2ForCausalLM", {**CASES["gemma2"][1], "vocab_size": 320}).save_pretrained(tmp_path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": WITHOUT_SYSTEM, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    user = {"role": "user", "content": "the rain"}
    async with asked(tmp_path, num_blocks=64) as backend:
        answer = await backend.chat(messages=[user], ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 8
        system = {"role": "system", "content": "be brief"}
        status, refused = await backend.post("/v1/chat/completions", messages=[system, user])
    assert (status, refused["error"]["param"]) == (400, "messages")
    assert "no turn for a system" in refused["error"]["message"]
