"""gpt-oss beside transformers, on a random checkpoint as it is released."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.errors import ConfigError, CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from backend.models.sharding import of_rank, possible_sizes
from backend.parallel.shard import Shard
from backend.quantization.mxfp4 import MXFP4
from tests.backend.tiny import generate, greedy, tiny_engine
from tests.backend.tiny_families import plain_logits
from tests.backend.tiny_gpt_oss import CONFIG, random_tensors, write_gpt_oss


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return random_tensors()


@pytest.fixture(scope="module")
def model(tensors: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = write_gpt_oss(tmp_path_factory.mktemp("gpt-oss") / "model", tensors)
    return load_model(Checkpoint(folder), "float32")


def multiplied_out(blocks: Tensor, scales: Tensor) -> Tensor:
    """transformers' own conversion, [experts, width, outputs]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(tensors: dict[str, Tensor]) -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = {name: value for name, value in CONFIG.items() if name not in ("quantization_config", "architectures")}
    found = GptOssForCausalLM(GptOssConfig(**config, attn_implementation="eager")).float().eval()
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
            weights[whole] = multiplied_out(tensor, tensors[f"{whole}_scales"])
        elif not name.endswith("_scales"):
            weights[name] = tensor
    found.load_state_dict(weights, strict=True)
    for layer in found.model.layers:  # read from no config.json
        layer.mlp.experts.limit = CONFIG["swiglu_limit"]
    return found


def test_four_bits_are_multiplied_out_as_transformers_does(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    parts = {"blocks": tensors[f"{name}_blocks"], "scales": tensors[f"{name}_scales"]}
    expected = multiplied_out(*parts.values()).transpose(1, 2).flatten(0, 1)
    assert torch.equal(MXFP4.dense(parts, MXFP4.stored({})), expected)


@pytest.mark.parametrize("length", [1, 7, 9, 60, 200])  # within the window and beyond it, and the original context
def test_logits_are_those_of_transformers(model: Decoder, reference: Any, length: int) -> None:
    torch.manual_seed(length)
    ids = torch.randint(0, 320, (length,))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    found = plain_logits(model, ids)
    assert float((found - expected).abs().max()) < 2e-4
    assert float(expected.std()) > 0.5


def test_sinks_clamp_biases_and_window_each_make_a_difference(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    ids = torch.arange(3, 60)

    def logits(name: str, **config: Any) -> Tensor:
        changed = {n: torch.zeros_like(t) if name and n.endswith(name) else t for n, t in tensors.items()}
        if name == "sinks":
            changed = {n: t - 100 if n.endswith("sinks") else t for n, t in tensors.items()}
        place = tmp_path / (name or "-".join(config) or "base")
        return plain_logits(load_model(Checkpoint(write_gpt_oss(place, changed, **config)), "float32"), ids)

    base = logits("")
    for name in ("sinks", "router.bias", "gate_up_proj_bias", "down_proj_bias", "o_proj.bias", "q_proj.bias"):
        assert float((logits(name) - base).abs().max()) > 0.01, name
    for config in ({"swiglu_limit": 7.0}, {"sliding_window": 128}, {"swiglu_alpha": 1.0}):
        assert float((logits("", **config) - base).abs().max()) > 0.01, config


def test_an_engine_gives_the_tokens_of_the_whole_forward_in_chunks_and_from_the_cache(
    model: Decoder, reference: Any
) -> None:
    prompts = [[3 + (i * 7 + k) % 300 for i in range(n)] for k, n in enumerate((1, 5, 20, 33))]
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(8):
                ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    engine = tiny_engine(model, max_num_batched_tokens=16)
    assert generate(engine, prompts, greedy(8)) == expected
    assert generate(engine, prompts, greedy(8)) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": None}, "experts in MXFP4, as it is released"),
        ({"attention_bias": False}, "without biases in attention"),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "linear_attention"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        from_hugging_face({**CONFIG, **change})


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("blocks", lambda x: x[..., :8], "expected bytes of 32 columns"),
        ("scales", lambda x: x[:, :3], "expected"),
        ("blocks", lambda x: x.to(torch.int8), "expected bytes"),
        ("scales", lambda x: torch.full_like(x, 255), "an mxfp4 scale is not a number"),
        ("scales", None, "scales is missing"),
        ("blocks", lambda x: x[:5], "expected"),
    ],
    ids=["narrow blocks", "few scales", "blocks of int8", "a scale of 255", "no scales", "few blocks"],
)
def test_a_broken_matrix_is_named(
    part: str, change: Any, said: str, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    name = f"model.layers.2.mlp.experts.down_proj_{part}"
    broken = {n: t for n, t in tensors.items() if n != name}
    if change is not None:
        broken[name] = change(tensors[name]).contiguous()
    with pytest.raises(CorruptCheckpoint, match=said):
        load_model(Checkpoint(write_gpt_oss(tmp_path / "m", broken)), "float32")


def test_it_is_on_one_card_and_says_so() -> None:
    whole = from_hugging_face(CONFIG)
    assert possible_sizes(whole) == [1]
    with pytest.raises(ConfigError, match="experts that a checkpoint stores in one tensor are not divided"):
        of_rank(whole, Shard(0, 2))
