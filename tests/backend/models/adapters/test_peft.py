"""Reading adapters as PEFT saves them: what is computed, what is refused by name, and each rank's part of it."""

import hashlib
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import AdapterRefused
from backend.models.adapters.peft import Adapter, digest_of, parsed, read_adapter
from backend.models.config import ModelConfig
from backend.models.families import mixtral
from backend.models.families.family import Experts
from backend.models.sharding import layer_shares, of_rank
from backend.models.tensors import part_of
from backend.parallel.shard import Shard, Stage
from tests.backend.adapters_on_disk import write_adapter
from tests.backend.tiny import tiny_config
from tests.backend.tiny_families import tiny_family

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}
MODEL = tiny_config(head_dim=16, num_heads=4, num_kv_heads=2, num_layers=4, hidden_size=64)
Q = "base_model.model.model.layers.1.self_attn.q_proj"


def read(folder: Path, model: ModelConfig = MODEL, most: int = 16) -> Adapter:
    return read_adapter(folder, model, most, model.all_layers or model.num_layers)


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({}, 2.0),
        ({"lora_alpha": 4}, 0.5),
        ({"lora_alpha": 4.5}, 0.5625),
        ({"use_rslora": True}, 16 / math.sqrt(8)),
        ({"lora_alpha": -16}, -2.0),
    ],
    ids=str,
)
def test_the_scaling_follows_from_rank_and_alpha(config: dict[str, Any], scaling: float) -> None:
    found = parsed({**LORA, **config})
    assert (found.rank, found.scaling) == (8, pytest.approx(scaling))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not computed"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias 'all' is not computed"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not computed"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is not computed"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern is not computed"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is not computed"),
        ({"trainable_token_indices": [4]}, "trainable_token_indices is not computed"),
        ({"layer_replication": [[0, 4]]}, "layer_replication is not computed"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters is not computed"),
        ({"lora_bias": True}, "lora_bias is not computed"),
        ({"use_something_new": 3}, "use_something_new is not computed"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the base model"),
        ({"init_lora_weights": "pissa_niter_16"}, "changes the base model"),
        ({"init_lora_weights": 1}, "changes the base model"),
        ({"r": 0}, "r is 0, not a rank"),
        ({"r": True}, "r is True, not a rank"),
        ({"r": 8.0}, "r is 8.0, not a rank"),
        ({"lora_alpha": "16"}, "lora_alpha is '16', not a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan, not a number"),
        ({"lora_alpha": None}, "lora_alpha is None"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(AdapterRefused, match=said):
        parsed({**LORA, **config})


def test_a_file_is_read_with_its_scaling_in_it_and_its_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5, rank=4, alpha=6)
    found = read(folder)
    stored = load_file(folder / "adapter_model.safetensors")
    a, b = found.parts[1, "self_attn.q_proj"]
    assert torch.equal(a, stored[f"{Q}.lora_A.weight"])
    assert torch.equal(b, stored[f"{Q}.lora_B.weight"] * 1.5)
    assert len(found.parts) == 7 * 4
    command = "sha256sum adapter_config.json adapter_model.safetensors | sha256sum"
    said = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert found.digest == said.split()[0]
    assert found.size == sum(path.stat().st_size for path in folder.iterdir())


def test_another_scaling_is_another_digest() -> None:
    assert digest_of(b'{"lora_alpha": 8}', b"w") != digest_of(b'{"lora_alpha": 9}', b"w")
    assert digest_of(b"a", b"bc") != digest_of(b"ab", b"c")
    assert len(digest_of(b"", b"")) == len(hashlib.sha256().hexdigest())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_sixteen_bits_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5)
    stored = {name: x.to(dtype) for name, x in load_file(folder / "adapter_model.safetensors").items()}
    save_file(stored, folder / "adapter_model.safetensors")
    assert torch.equal(read(folder).parts[1, "self_attn.q_proj"][0], stored[f"{Q}.lora_A.weight"].float())


@pytest.mark.parametrize("prefix", ["base_model.model.model.language_model.", "base_model.model.language_model.model."])
def test_adapters_of_a_release_that_reads_images_name_its_text_part(prefix: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5)
    stored = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace("base_model.model.model.", prefix): x for name, x in stored.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    assert len(read(folder).parts) == 7 * 4


def changed(folder: Path, change: dict[str, Tensor | None]) -> None:
    stored: dict[str, Any] = {**load_file(folder / "adapter_model.safetensors"), **change}
    save_file({name: x for name, x in stored.items() if x is not None}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{Q}.lora_magnitude_vector": torch.ones(64)}, "DoRA are not computed"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 320)}, "embeddings are not computed"),
        ({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}, "the head are not computed"),
        ({"base_model.model.lm_head.weight": torch.ones(320, 64)}, "the head are not computed"),
        ({f"{Q}.lora_B.bias": torch.ones(64)}, "is not one of a LoRA adapter"),
        ({"something": torch.ones(4)}, "tensor something is not one of a LoRA adapter"),
        ({f"{Q.replace('.1.', '.4.')}.lora_A.weight": torch.ones(4, 64)}, "of a module that is not adapted"),
        ({f"{Q.replace('q_proj', 'q_norm')}.lora_A.weight": torch.ones(4, 64)}, "is not adapted; use q_proj, k_proj"),
        ({f"{Q}.lora_A.weight": None}, "layer 1 has one of both matrices of self_attn.q_proj"),
        ({f"{Q}.lora_A.weight": torch.ones(5, 64)}, r"is \[5, 64\], not \[4, 64\]"),
        ({f"{Q}.lora_B.weight": torch.ones(48, 4)}, r"is \[48, 4\], not \[64, 4\]; use an adapter of this model"),
        ({f"{Q}.lora_B.weight": torch.full((64, 4), float("nan"))}, "holds NaN or infinity"),
        ({f"{Q}.lora_A.weight": torch.full((4, 64), float("-inf"))}, "holds NaN or infinity"),
        ({f"{Q}.lora_A.weight": torch.ones(4, 64, dtype=torch.int8)}, "is I8; save it as one of F32"),
        ({f"{Q}.lora_A.default.weight": torch.ones(4, 64)}, "is there twice"),
        ({"base_model.model.big": torch.ones(3, 1 << 21)}, "bytes, more than the"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_have_no_place_are_refused_by_name(
    change: dict[str, Tensor | None], said: str, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5)
    changed(folder, change)
    with pytest.raises(AdapterRefused, match=said):
        read(folder)


@pytest.mark.parametrize("layer", [0, 3])
def test_a_layer_of_another_stage_is_checked_as_well(layer: int, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5)
    changed(folder, {f"{Q.replace('.1.', f'.{layer}.')}.lora_B.weight": torch.full((64, 4), float("nan"))})
    with pytest.raises(AdapterRefused, match="NaN"):
        read(folder, of_rank(MODEL, Shard(), stage=Stage(layer == 0, 2)))


def test_experts_are_refused_and_the_attention_of_a_mixture_is_not(tmp_path: Path) -> None:
    mixture = tiny_config(head_dim=16, experts=Experts(4, 2, 32, mixtral.NAMES))
    folder = write_adapter(tmp_path / "one", mixture, 5, targets=("q_proj", "o_proj"))
    assert len(read(folder, mixture).parts) == 4
    changed(folder, {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(4, 48)})
    with pytest.raises(AdapterRefused, match="experts are not adapted"):
        read(folder, mixture)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no folder", "there is no folder"),
        ("no config", "no adapter_config.json"),
        ("no weights", "has no adapter_model.safetensors; copy"),
        ("a pickle", "a pickle, which is not read; save it as safetensors"),
        ("a cut file", "is not where its file says"),
        ("no tensor", "holds no tensor"),
        ("a list", "does not hold an object"),
        ("no json", "adapter_config.json: "),
        ("a high rank", "its rank is 64, and at most 16 fit; start the backend with --max-adapter-rank 64"),
    ],
)
def test_a_folder_that_is_none_says_what_is_wrong(broken: str, said: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", MODEL, 5, rank=64 if broken == "a high rank" else 4)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if broken == "no folder":
        folder = tmp_path / "two"
    elif broken == "no config":
        config.unlink()
    elif broken in ("no weights", "a pickle"):
        weights.rename(folder / "adapter_model.bin") if broken == "a pickle" else weights.unlink()
    elif broken == "a cut file":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif broken == "no tensor":
        save_file({}, weights)
    elif broken in ("a list", "no json"):
        config.write_text(json.dumps([LORA]) if broken == "a list" else "{")
    with pytest.raises(AdapterRefused, match=said) as refused:
        read(folder)
    assert "; " in str(refused.value)


WHOLE: dict[str, ModelConfig] = {
    "llama": MODEL,
    "one kv head": tiny_config(head_dim=16, num_heads=4, num_kv_heads=1, num_layers=4, hidden_size=64),
    "phi3": tiny_config(head_dim=16, num_heads=4, num_kv_heads=2, num_layers=4, hidden_size=64, fused_names=True),
    "gemma2": tiny_family("gemma2").config,
}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", WHOLE)
def test_what_each_rank_adds_is_its_part_of_what_the_whole_adapter_adds(
    name: str, size: int, stages: int, tmp_path: Path
) -> None:
    whole = WHOLE[name]
    targets = tuple(module.rpartition(".")[2] for module in whole.modules)
    folder = write_adapter(tmp_path / "one", whole, 5, targets=targets)
    deltas = {place: b @ a for place, (a, b) in read(folder, whole).parts.items()}
    seen = set()
    for stage in range(stages):
        for rank in range(size):
            own = of_rank(whole, Shard(rank, size), stage=Stage(stage, stages))
            for (layer, module), (a, b) in read(folder, own).parts.items():
                share = None if size == 1 else layer_shares(own, layer)[f"{module}.weight"]
                part = part_of(deltas[own.first_layer + layer, module], share)
                assert torch.allclose(b @ a, part, atol=1e-5)
                seen.add((own.first_layer + layer, module, rank))
    assert len(seen) == len(deltas) * size
