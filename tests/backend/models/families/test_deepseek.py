"""DeepSeek-V2 and V3 beside transformers, on random checkpoints as they are released."""

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.cpu.model_runner import ModelRunner
from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.tiny import generate, greedy, tiny_engine
from tests.backend.tiny_deepseek import MODELS, stored_tensors, tiny_deepseek, write_deepseek
from tests.backend.tiny_families import plain_logits


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return write_deepseek(tmp_path_factory.mktemp(name) / name, name, stored_tensors(tiny_deepseek(name)))


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load_model(Checkpoint(folder), "float32")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    found: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return found.eval()


@pytest.mark.parametrize("length", [1, 7, 60, 200])  # within the original context and beyond it
def test_logits_are_those_of_transformers(model: Decoder, reference: Any, length: int) -> None:
    torch.manual_seed(length)
    ids = torch.randint(0, 320, (length,))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    found = plain_logits(model, ids)
    assert float((found - expected).abs().max()) < 3e-4
    assert float(expected.std()) > 0.5


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("v3", {"rope_interleave": False}),
        ("v3", {"q_lora_rank": None}),
        ("v3", {"norm_topk_prob": False}),
        ("v3", {"first_k_dense_replace": 3}),
        ("v3", {"rope_scaling": None, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1}),
        ("v2", {"n_group": 8, "topk_group": 3, "n_shared_experts": 1}),
    ],
    ids=str,
)
def test_other_shapes_are_those_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_deepseek(name, seed=3, **changes)
    folder = write_deepseek(tmp_path / "m", name, stored_tensors(model), **changes)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    reference.eval()
    ids = torch.arange(3, 100)
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    assert float((plain_logits(model, ids) - expected).abs().max()) < 3e-4


def test_what_tells_it_from_llama_makes_a_difference() -> None:
    ids = torch.arange(3, 120)
    base = plain_logits(tiny_deepseek("v3"), ids)
    changes: list[dict[str, Any]] = [
        {"rope_interleave": False},
        {"routed_scaling_factor": 1.0},
        {"norm_topk_prob": False},
        {"n_group": 1, "topk_group": 1},
        {"rope_scaling": {**MODELS["v3"]["rope_scaling"], "mscale_all_dim": 0.0}},
    ]
    for change in changes:
        assert float((plain_logits(tiny_deepseek("v3", **change), ids) - base).abs().max()) > 0.01, change
    for part in ("correction", "shared_down", "latent_norm", "query_norm"):
        model = tiny_deepseek("v3")
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.zero_() if part == "correction" else parameter.mul_(0.5)
        assert float((plain_logits(model, ids) - base).abs().max()) > 0.01, part


PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(n)] for k, n in enumerate((1, 5, 20, 33, 70))]


def test_an_engine_gives_the_tokens_of_the_whole_forward_in_chunks_and_from_the_cache(
    model: Decoder, reference: Any
) -> None:
    expected = []
    for prompt in PROMPTS:
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(8):
                ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    engine = tiny_engine(model, max_num_batched_tokens=16)
    assert generate(engine, PROMPTS, greedy(8)) == expected
    assert generate(engine, PROMPTS, greedy(8)) == expected
    assert engine.scheduler.prefix_hits >= sum(map(len, PROMPTS)) // 2
    engine = tiny_engine(model, batch_invariant=True)
    assert generate(engine, PROMPTS[:4], greedy(8)) == expected[:4]


def test_a_token_leaves_its_latent_and_rotary_key_and_nothing_else(model: Decoder) -> None:
    runner = tiny_engine(model).runner
    assert isinstance(runner, ModelRunner)
    cache = runner.cache
    assert cache.keys.shape[3:] == (1, 32)
    assert cache.values.shape[3:] == (1, 16)
    assert model.config.kv_bytes_per_token(4) == 3 * (32 + 16) * 4


def test_blocks_are_zeroed_and_read_back_in_both_parts(model: Decoder) -> None:
    engine = tiny_engine(model)
    generate(engine, PROMPTS, greedy(4))
    assert isinstance(engine.runner, ModelRunner)
    cache = engine.runner.cache
    assert cache.keys.count_nonzero() > 0
    assert cache.values.count_nonzero() > 0
    cache.values[1, 3, 0, 0, 5] = 1.0
    assert engine.runner.residue([3]) > 0
    blocks = list(range(cache.keys.shape[1]))
    engine.runner.scrub(blocks)
    assert engine.runner.residue(blocks) == 0
    assert not cache.values.any()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("v3", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("v3", {"topk_method": "greedy"}, "topk_method 'greedy'"),
        ("v2", {"topk_method": "noaux_tc"}, "V3 has it"),
        ("v2", {"topk_method": "by_lot"}, "topk_method 'by_lot' is not one of greedy"),
        ("v2", {"scoring_func": "sigmoid"}, "only softmax"),
        ("v2", {"norm_topk_prob": True}, "norm_topk_prob of DeepSeek-V2"),
        ("v2", {"attention_bias": True}, "bias"),
        ("v2", {"moe_layer_freq": 2}, "every nth layer"),
        ("v3", {"hidden_act": "gelu"}, "activation 'gelu'"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused_by_name(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        from_hugging_face({**MODELS[name], **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_group": 3}, "8 experts in 3 groups"),
        ({"topk_group": 5}, "8 experts in 4 groups, 5 taken"),
        ({"topk_group": 1}, "3 experts a token are more than 1 groups have"),
        ({"kv_lora_rank": 0}, "latent attention of rank 0"),
        ({"qk_rope_head_dim": 15}, "15 rotary"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
    ],
    ids=str,
)
def test_numbers_that_contradict_each_other_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=said):
        from_hugging_face({**MODELS["v3"], **change})


@pytest.mark.parametrize("missing", ["v_head_dim", "kv_lora_rank", "q_lora_rank", "moe_intermediate_size"])
def test_a_missing_number_is_named(missing: str) -> None:
    config = {name: value for name, value in MODELS["v3"].items() if name != missing}
    with pytest.raises(CorruptCheckpoint, match=f"config.json has no {missing}"):
        from_hugging_face(config)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.layers.2.mlp.gate.e_score_correction_bias", "e_score_correction_bias"),
        ("model.layers.1.mlp.shared_experts.down_proj.weight", "shared_experts.down_proj"),
        ("model.layers.0.self_attn.kv_b_proj.weight", "kv_b_proj"),
    ],
)
def test_a_missing_tensor_is_named(name: str, said: str, tmp_path: Path) -> None:
    tensors = stored_tensors(tiny_deepseek("v3"))
    del tensors[name]
    with pytest.raises(CorruptCheckpoint, match=said):
        load_model(Checkpoint(write_deepseek(tmp_path / "m", "v3", tensors)), "float32")


def test_layers_that_predict_further_tokens_are_passed_over_and_others_are_not(tmp_path: Path) -> None:
    tensors = stored_tensors(tiny_deepseek("v3"))
    assert "model.layers.3.eh_proj.weight" in tensors
    load_model(Checkpoint(write_deepseek(tmp_path / "one", "v3", tensors)), "float32")
    tensors["model.layers.4.eh_proj.weight"] = torch.zeros(4, 8)
    with pytest.raises(CorruptCheckpoint, match=r"layers\.4\.eh_proj"):
        load_model(Checkpoint(write_deepseek(tmp_path / "two", "v3", tensors)), "float32")
