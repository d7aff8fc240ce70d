"""Every family and every way to stretch RoPE, against transformers on the same random checkpoint read from disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache, PagedAttention, Prefill
from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.families import FAMILIES
from backend.models.loader import load_model
from tests.backend.tiny import generate, greedy, tiny_engine

TOKENS = 120
SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **settings}}


STRETCH = {"factor": 4.0, "original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", rope("default")),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama, linear": ("LlamaForCausalLM", rope("linear", factor=4.0)),
    "llama, dynamic within its length": ("LlamaForCausalLM", rope("dynamic", factor=4.0)),
    "llama, llama3": ("LlamaForCausalLM", rope("llama3", **STRETCH, low_freq_factor=1.0, high_freq_factor=4.0)),
    "llama, yarn": ("LlamaForCausalLM", rope("yarn", **STRETCH)),
    "llama, yarn with every key": (
        "LlamaForCausalLM",
        rope("yarn", **STRETCH, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=1.3),
    ),
    "llama, yarn with mscale": ("LlamaForCausalLM", rope("yarn", **STRETCH, mscale=0.7, mscale_all_dim=0.4)),
    "llama, longrope beyond": ("LlamaForCausalLM", rope("longrope", **STRETCH, **FACTORS)),
    "llama, longrope, given magnitude": (
        "LlamaForCausalLM",
        rope("longrope", **STRETCH, **FACTORS, attention_factor=1.2),
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral with a window": ("MistralForCausalLM", {"sliding_window": 20}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2, yarn": ("Qwen2ForCausalLM", rope("yarn", **STRETCH)),
    "qwen2 with windows above": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3 with windows by layer": (
        "Qwen3ForCausalLM",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3ForCausalLM", {"pad_token_id": 0}),
    "phi3 with a window, and longrope beyond": (
        "Phi3ForCausalLM",
        {
            "pad_token_id": 0,
            "sliding_window": 20,
            "original_max_position_embeddings": 64,
            **rope("longrope", **FACTORS),
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "num_experts": 6, "norm_topk_prob": True}),
    "qwen3-moe, some layers dense": (
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "num_experts": 6, "norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
}

EYES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
TOKENS_OF_SMOLLM3 = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {"head_dim": 16, "pad_token_id": 0, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}
CASES |= {
    "ministral: heads wider than the model has room for": (
        "MistralForCausalLM",
        {"head_dim": 32, "sliding_window": None},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "sliding_window": 20, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma2, without caps": (
        "Gemma2ForCausalLM",
        {**GEMMA, "sliding_window": 20, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "num_hidden_layers": 7,
            "sliding_window": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma3 with images, of which it is the text": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 20},
            "vision_config": {**EYES, "model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_index": 200,
            "boi_token_index": 201,
            "eoi_token_index": 202,
        },
    ),
    "mistral3, which is the text of its release": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {"model_type": "mistral", "head_dim": 32, "sliding_window": None},
            "vision_config": {**EYES, "model_type": "pixtral", "head_dim": 8},
            "image_token_index": 200,
            "tie_word_embeddings": False,
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.25,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {"pad_token_id": 0}),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 5, **TOKENS_OF_SMOLLM3}),
    "smollm3, other layers without positions": (
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 1], "tie_word_embeddings": True, **TOKENS_OF_SMOLLM3},
    ),
}


def theirs(architecture: str, changes: dict[str, Any]) -> Any:
    import transformers

    kind = getattr(transformers, architecture)
    if text := changes.get("text_config"):
        changes = {**changes, "text_config": {**SHAPE, **text}}
    config = kind.config_class(**(changes if text else {**SHAPE, **changes}))
    torch.manual_seed(1)
    model = kind(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return model


def logits(model: Decoder, ids: list[int]) -> Tensor:
    """Of every position, through the paged cache."""
    cache = KVCache(model.config, -(-len(ids) // 4), 4, model.embedding.dtype, "cpu")
    rows = torch.arange(len(ids))
    attention = PagedAttention(cache, rows, None, [Prefill(0, len(ids), 0, torch.arange(-(-len(ids) // 4)))])
    return model(torch.tensor(ids), rows, attention, rows)


def reference(model: Any, ids: list[int]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.tensor([ids])).logits[0]
    return found


ELSEWHERE = {
    "GptOssForCausalLM",  # test_gpt_oss: its experts are stored in four bits
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",  # test_deepseek: their cache holds latents
}  # fmt: skip


def test_there_is_a_case_for_every_family() -> None:
    cases = {architecture for architecture, _ in CASES.values()}
    assert cases | ELSEWHERE == {family.architecture for family in FAMILIES}
    assert not cases & ELSEWHERE


@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens_equal_transformers(case: str, tmp_path: Path) -> None:
    original = theirs(*CASES[case])
    original.save_pretrained(tmp_path, max_shard_size="40KB")  # so that most come in shards
    ours = load_model(Checkpoint(tmp_path), "float32")
    ids = [(13 * i + i * i) % 101 for i in range(TOKENS)]
    expected = reference(original, ids)
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits(ours, ids), expected, atol=5e-4, rtol=2e-4)

    engine = tiny_engine(ours, max_num_batched_tokens=32, block_size=4)  # chunks, then single tokens, of two sequences
    prompts = [ids[:90], ids[7:83]]
    for prompt, answer in zip(prompts, generate(engine, prompts, greedy(16)), strict=True):
        wanted = reference(original, prompt + answer)[len(prompt) - 1 : -1]
        assert answer == wanted.argmax(-1).tolist()


def test_longrope_takes_its_short_factors_where_no_more_than_the_original_context_is_served(tmp_path: Path) -> None:
    original = theirs("LlamaForCausalLM", rope("longrope", **STRETCH, **FACTORS))
    original.save_pretrained(tmp_path)
    ids = [(13 * i + i * i) % 101 for i in range(60)]
    short = load_model(Checkpoint(tmp_path, 64), "float32")
    torch.testing.assert_close(logits(short, ids), reference(original, ids), atol=5e-4, rtol=2e-4)
    long = load_model(Checkpoint(tmp_path), "float32")
    assert (logits(long, ids) - logits(short, ids)).abs().max() > 0.1


def test_a_token_is_seen_from_within_the_window_and_from_nowhere_else(tmp_path: Path) -> None:
    theirs("MistralForCausalLM", {"sliding_window": 20, "num_hidden_layers": 1}).save_pretrained(tmp_path)
    ids = [(13 * i + i * i) % 101 for i in range(40)]
    model = load_model(Checkpoint(tmp_path), "float32")
    apart = (logits(model, ids) - logits(model, [ids[0] ^ 1, *ids[1:]])).abs().amax(-1)
    assert (apart[:20] > 0).all()
    assert (apart[20:] == 0).all()


@pytest.mark.parametrize("gone", ["model.layers.1.mlp.experts.3.up_proj.weight", "model.layers.2.mlp.gate.weight"])
def test_a_missing_expert_is_named(gone: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs(*CASES["qwen3-moe"]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[gone]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=gone):
        load_model(Checkpoint(tmp_path), "float32")


def test_a_tied_model_whose_files_hold_another_head_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs(*CASES["llama, tied"]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    shared = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": shared.clone()}, tmp_path / "model.safetensors")
    load_model(Checkpoint(tmp_path), "float32")
    save_file({**tensors, "lm_head.weight": shared + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"lm_head\.weight is another"):
        load_model(Checkpoint(tmp_path), "float32")


@pytest.mark.parametrize("case", [case for case in CASES if "text_config" in CASES[case][1]])
def test_a_tensor_that_belongs_neither_to_text_nor_images_is_refused(case: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs(*CASES[case]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "audio_tower.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"tensor audio_tower\.weight has no place"):
        load_model(Checkpoint(tmp_path), "float32")


@pytest.mark.parametrize("case", [case for case in CASES if "text_config" in CASES[case][1]])
def test_the_names_of_both_layouts_of_a_release_with_images_are_read(case: str, tmp_path: Path) -> None:
    """On disk transformers writes the older one; in memory it has the newer."""
    from safetensors.torch import load_file, save_file

    original = theirs(*CASES[case])
    original.save_pretrained(tmp_path)
    older = load_file(tmp_path / "model.safetensors")
    newer = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    if original.config.tie_word_embeddings:
        del newer["lm_head.weight"]
    assert older.keys() != newer.keys()
    first = load_model(Checkpoint(tmp_path), "float32")
    save_file(newer, tmp_path / "model.safetensors")
    second = load_model(Checkpoint(tmp_path), "float32")
    assert all(torch.equal(p, second.get_parameter(name)) for name, p in first.named_parameters())
