"""FP8 checkpoints in both layouts give the weights that their numbers and scales say."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.tiny import tiny_model, write_folder

FP8 = torch.float8_e4m3fn
LAYERS = (".q_proj.", ".k_proj.", ".v_proj.", ".o_proj.", ".gate_proj.", ".up_proj.", ".down_proj.")
WIDE = {"hidden_size": 160, "intermediate_size": 272, "num_heads": 10, "num_kv_heads": 2, "head_dim": 16}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}},
}  # fmt: skip
QWEN = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def by_channel(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    return {name: (weight / scale.float()).to(FP8), name + "_scale": scale}


def by_tensor(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = weight.abs().max() / 448
    return {name: (weight / scale).to(FP8), name + "_scale": scale.view(1), name[:-6] + "input_scale": torch.ones(1)}


def by_block(name: str, weight: Tensor) -> dict[str, Tensor]:
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // 128), -(-columns // 128))
    quantised = torch.empty(weight.shape, dtype=FP8)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = weight[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            scale[i, j] = block.abs().max() / 448
            quantised[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)] = (block / scale[i, j]).to(FP8)
    return {name: quantised, name + "_scale_inv": scale}


def by_block_plain(name: str, weight: Tensor) -> dict[str, Tensor]:
    tensors = by_block(name, weight)
    return {name: tensors[name], name + "_scale": tensors[name + "_scale_inv"]}


BLOCKS = copy.deepcopy(COMPRESSED)
BLOCKS["config_groups"]["g"]["weights"] |= {"strategy": "block", "block_structure": [128, 128]}
LAYOUTS: dict[str, tuple[Callable[[str, Tensor], dict[str, Tensor]], dict[str, Any]]] = {
    "channel": (by_channel, COMPRESSED), "tensor": (by_tensor, COMPRESSED), "block": (by_block, QWEN),
    "block, compressed-tensors": (by_block_plain, BLOCKS),
}  # fmt: skip


def write(folder: Path, model: Decoder, layout: str) -> Path:
    quantise, config = LAYOUTS[layout]
    write_folder(folder, model, quantization_config=config)
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        tensors |= quantise(name, tensor) if any(part in name for part in LAYERS) else {name: tensor}
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module")
def wide() -> Decoder:
    return tiny_model(4, **WIDE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_come_back_within_fp8s_rounding_and_the_rest_exactly(
    wide: Decoder, layout: str, tmp_path: Path
) -> None:
    loaded = load_model(Checkpoint(write(tmp_path / "m", wide, layout)), "float32")
    for name, original in wide.places().items():
        back = loaded.places()[name]
        if any(part in name for part in LAYERS):
            # Half a step of three mantissa bits, and of the smallest numbers a fixed half step of the scale.
            coarse = original.abs().amax() if layout == "tensor" else original.abs().amax(1, keepdim=True)
            assert ((back - original).abs() <= original.abs() * 2**-4 + coarse * 2**-15).float().mean() > 0.99, name
            assert not torch.equal(back, original)
        else:
            assert torch.equal(back, original), name


@pytest.mark.parametrize(("layout", "ending"), [("block", "_scale_inv"), ("block, compressed-tensors", "_scale")])
def test_a_block_scale_multiplies_its_own_block_and_no_other(
    wide: Decoder, layout: str, ending: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "m", wide, layout)
    name = "model.layers.0.mlp.gate_proj.weight"
    before = load_model(Checkpoint(folder), "float32").places()[name].clone()
    change(folder, lambda t: t[name + ending][2, 1].mul_(2))  # rows 256 to 271, columns 128 to 159
    after = load_model(Checkpoint(folder), "float32").places()[name]
    assert torch.equal(after[256:, 128:], before[256:, 128:] * 2)
    assert torch.equal(after[:256], before[:256])
    assert torch.equal(after[256:, :128], before[256:, :128])


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("layout", "edit", "message"),
    [
        ("channel", lambda t: t.pop(Q + "_scale"), "q_proj.weight is FP8 and has no scale"),
        ("channel", lambda t: t.update({"model.norm.weight_scale": torch.ones(1)}), "norm.weight_scale scales nothing"),
        ("channel", lambda t: t.update({Q + "_scale": torch.ones(7, 1)}), r"weight_scale is \[7, 1\], expected"),
        ("block", lambda t: t.update({Q + "_scale_inv": torch.ones(1, 1)}), r"expected \[2, 2\]"),
        (
            "block, compressed-tensors",
            lambda t: t.update({Q + "_scale": torch.ones(2, 3)}),
            r"weight_scale is \[2, 3\]",
        ),
        ("channel", lambda t: t[Q + "_scale"].fill_(float("nan")), "q_proj.weight_scale holds NaN"),
        ("tensor", lambda t: t[Q].view(torch.uint8)[3].fill_(0x7F), "q_proj.weight holds NaN"),
        ("tensor", lambda t: t.update({"model.layers.9.self_attn.k_scale": torch.ones(1)}), "not one positive number"),
    ],
    ids=["no scale", "no weight", "shape", "blocks", "other blocks", "NaN scale", "NaN weight", "layer"],
)
def test_what_does_not_fit_together_is_refused_naming_the_tensor(
    wide: Decoder, layout: str, edit: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "m", wide, layout)
    change(folder, edit)
    with pytest.raises(CorruptCheckpoint, match=message):
        load_model(Checkpoint(folder), "float32")


def test_scales_of_the_cache_are_read_under_any_of_their_names(wide: Decoder, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", wide, "channel")
    assert load_model(Checkpoint(folder), "float32").kv_scales is None
    change(
        folder,
        lambda t: t.update(
            {
                "model.layers.0.self_attn.k_scale": torch.tensor(0.5),
                "model.layers.0.self_attn.v_proj.v_scale": torch.tensor([0.25]),
                "model.layers.1.self_attn.attn.k_scale": torch.tensor(2.0),
            }
        ),
    )
    loaded = load_model(Checkpoint(folder), "float32").kv_scales
    assert loaded is not None
    assert loaded.tolist() == [[0.5, 0.25], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not one of"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2'; only e4m3"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 4}}}},
            r"compressed-tensors weights \(int 4\) are not read, only",
        ),
    ],
    ids=str,
)
def test_other_quantisations_are_refused_by_name(wide: Decoder, config: dict[str, Any], message: str) -> None:
    shape = {
        "architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "hidden_size": 64,
        "max_position_embeddings": 64,
        "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    assert from_hugging_face(shape | {"quantization_config": COMPRESSED}).hidden_size == 64
    with pytest.raises(UnsupportedModel, match=message):
        from_hugging_face(shape | {"quantization_config": config})
