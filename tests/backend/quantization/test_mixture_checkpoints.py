"""Quantised checkpoints of mixtures: experts come out of them whatever the format, and routers stay as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.layer_paths import MixtureLayer
from backend.models.families import qwen3_moe
from backend.models.families.family import Experts
from backend.models.loader import dummy_model, load_model
from backend.planner.memory import weight_bytes
from tests.backend.models.decoders.test_fused_decoder import DEVICE, distance, fused, plain
from tests.backend.quantization.test_kept_checkpoints import EVERY, LAYOUTS, stored_format
from tests.backend.tiny import tiny_model, write_folder

EXPERTS = Experts(4, 2, 128, qwen3_moe.NAMES)
SHAPE: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16, "qk_norm": True,
    "tie_word_embeddings": False, "experts": EXPERTS,
}  # fmt: skip
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "norm_topk_prob": True,
}  # fmt: skip
GATE = "model.layers.1.mlp.experts.3.gate_proj"


def write(folder: Path, layout: str) -> Decoder:
    """Everything but norms, embedding, head and routers is quantised, as releases have it."""
    quantise, config, _ = LAYOUTS[layout]
    name = "modules_to_not_convert" if layout == "block" else "ignore"
    kept = {name: ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(2))]}
    write_folder(folder, tiny_model(5, **SHAPE), **CONFIG, quantization_config={**config, **kept})
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        quantised = name.endswith("_proj.weight")
        tensors |= quantise(name, tensor) if quantised else {name: tensor}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return load_model(Checkpoint(folder), "float32")


def kept_decoder(folder: Path, layout: str) -> FusedDecoder:
    format = stored_format(layout)
    model = load_model(Checkpoint(folder), "bfloat16", str(DEVICE), quantization=format)
    return FusedDecoder(model, kernels_for(DEVICE), format)


@EVERY
def test_logits_are_near_those_of_the_weights_written_out(layout: str, tmp_path: Path) -> None:
    exact, ids = write(tmp_path, layout), torch.randint(0, 64, (40,))
    format = stored_format(layout)
    model = load_model(Checkpoint(tmp_path), "bfloat16", str(DEVICE), quantization=format)
    assert distance(fused(model, ids, torch.bfloat16, step=7, quantization=format), plain(exact, ids)) < 0.6


@EVERY
def test_experts_in_fp8_are_kept_to_the_bit_and_others_are_in_the_models_dtype(layout: str, tmp_path: Path) -> None:
    exact = write(tmp_path, layout)
    for mine, theirs in zip(kept_decoder(tmp_path, layout).layers, exact.layers, strict=True):
        assert isinstance(mine, MixtureLayer)
        assert mine.qkv.tensors()[0].dtype != torch.bfloat16
        assert torch.equal(mine.router.tensors()[0].cpu(), theirs.experts.router.bfloat16())
        for place, name in enumerate(("gate_up", "down")):
            weight, exact_one = getattr(mine.experts, name).float().cpu(), getattr(theirs.experts, name)
            if mine.experts.scales is None:
                assert torch.equal(weight, exact_one.bfloat16().float())
                continue
            scale, span = mine.experts.scales[place].cpu(), mine.experts.spans[place]
            if span:
                scale = scale.repeat_interleave(span, 0).repeat_interleave(128, 1).view(weight.shape)
            assert torch.equal(weight * scale, exact_one)
        assert (mine.experts.scales is not None) == stored_format(layout).groups_stored


def test_nothing_dense_is_left_of_experts_in_fp8(tmp_path: Path) -> None:
    write(tmp_path, "block")
    format = stored_format("block")
    model = load_model(Checkpoint(tmp_path), "bfloat16", str(DEVICE), quantization=format)
    assert all(layer.experts.gate_up.is_meta and layer.experts.down.is_meta for layer in model.layers)
    held = sum(t.numel() * t.element_size() for t in FusedDecoder(model, kernels_for(DEVICE), format).weights())
    counted = weight_bytes(Checkpoint(tmp_path).config, "bfloat16", None)
    assert held == pytest.approx(counted, rel=0.01)  # k and v of narrow heads have more scales than blocks


def test_an_expert_that_lacks_a_scale_is_named(tmp_path: Path) -> None:
    write(tmp_path, "block")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{GATE}.weight_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"experts\.3\.gate_proj\.weight is FP8 and has no scale"):
        load_model(Checkpoint(tmp_path), "float32")


@EVERY
def test_random_weights_for_measuring_go_through_every_layer(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    format = stored_format(layout)
    model = dummy_model(Checkpoint(tmp_path).config, "bfloat16", str(DEVICE), quantization=format)
    logits = fused(model, torch.randint(0, 64, (9,)), torch.bfloat16, quantization=format)
    assert logits.float().isfinite().all()
