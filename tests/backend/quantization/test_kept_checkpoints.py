"""FP8 (by channel, tensor, block), INT8 and packed INT4 checkpoints, kept as they are stored: the numbers that
compressed-tensors itself reads, and the logits of the same weights written out."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import ConfigError, CorruptCheckpoint, UnsupportedModel
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import InvariantDecoder
from backend.models.layers.matrices import Matrices
from backend.models.loader import dummy_model, load_model
from backend.quantization import chosen, declared_by, of_name
from backend.quantization.format import Quantization, StoredWeights
from backend.quantization.linear import DenseLinear
from backend.quantization.none import NONE
from tests.backend.models.checkpoints.test_quantised import QWEN, by_block, by_channel, by_tensor
from tests.backend.models.decoders.test_fused_decoder import DEVICE, distance, fused, plain
from tests.backend.quantization.test_int4_checkpoints import MODULES, SHAPE, quantised, words_of
from tests.backend.tiny import tiny_model, write_folder

VECTORS = Path(__file__).parent / "vectors"  # written by compressed-tensors 0.20.1
CONFIGS: dict[str, dict[str, Any]] = json.loads((VECTORS / "compressed_tensors.json").read_text())
FORMATS = {
    "fp8-tensor": "fp8", "fp8-channel": "fp8", "fp8-block": "fp8-block", "int8-channel": "int8", "int4-group": "w4a16",
    "int4-group-zero-points": "w4a16",
}  # fmt: skip
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
Q = "model.layers.1.self_attn.q_proj"


def by_int8(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {name: (weight / scale).round().to(torch.int8), name + "_scale": scale.bfloat16()}


def by_int4(name: str, weight: Tensor) -> dict[str, Tensor]:
    """With zero points."""
    numbers, zeros, scales = quantised(weight, len(name))
    straight, module = tuple(range(8)), name.removesuffix(".weight")
    return {
        f"{module}.weight_packed": words_of(numbers, straight),
        f"{module}.weight_zero_point": words_of(zeros.t(), straight).t().contiguous(),
        f"{module}.weight_scale": scales.bfloat16(), f"{module}.weight_shape": torch.tensor(weight.shape),
    }  # fmt: skip


Layout = tuple[Callable[[str, Tensor], dict[str, Tensor]], dict[str, Any], str]
LAYOUTS: dict[str, Layout] = {
    "channel": (by_channel, CONFIGS["fp8-channel"], "fp8"),
    "tensor": (by_tensor, CONFIGS["fp8-tensor"], "fp8"),
    "modelopt": (by_tensor, MODELOPT, "fp8"),
    "block": (by_block, QWEN, "fp8-block"),
    "int8": (by_int8, CONFIGS["int8-channel"], "int8"),
    "int4": (by_int4, CONFIGS["int4-group-zero-points"], "w4a16"),
}
EVERY = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.mark.parametrize("case", CONFIGS)
def test_numbers_are_those_that_compressed_tensors_reads(case: str) -> None:
    stored = declared_by(CONFIGS[case])
    assert stored.format.name == FORMATS[case]
    assert stored.keeps("lm_head")
    tensors = {
        n: t for n, t in load_file(VECTORS / "compressed_tensors.safetensors").items() if n.startswith(f"{case}.")
    }
    expected = tensors.pop(f"{case}.expected")
    parts, heads = {}, {}
    for name, tensor in tensors.items():
        head = SimpleNamespace(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
        weight, part = stored.format.part_of(head) or ("", "")
        assert weight == f"{case}.weight"
        parts[part], heads[part] = tensor, head
    assert stored.format.shape_of(f"{case}.weight", heads, stored) == tuple(expected.shape)
    found = stored.format.dense(parts, stored)
    assert ((found - expected.float()).abs() <= expected.float().abs() * 2**-8).all()  # theirs is in bfloat16


def write(folder: Path, layout: str, kept: tuple[str, ...] = (), **declared: Any) -> Decoder:
    """A checkpoint, and the model of its weights written out. kept: modules that are not quantised."""
    quantise, config, _ = LAYOUTS[layout]
    model = tiny_model(5, **SHAPE)
    write_folder(folder, model, quantization_config={**config, **declared})
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        plain_one = not module.endswith(MODULES) or any(part in module for part in kept)
        tensors |= {name: tensor} if plain_one else quantise(name, tensor)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return load_model(Checkpoint(folder), "float32")


def stored_format(layout: str) -> Quantization:
    return of_name(LAYOUTS[layout][2])


def kept_model(folder: Path, layout: str) -> Decoder:
    return load_model(Checkpoint(folder), "bfloat16", str(DEVICE), quantization=stored_format(layout))


@EVERY
def test_it_is_what_is_chosen_where_nothing_is_asked_for(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    stored = Checkpoint(tmp_path).config.stored_weights
    assert chosen(None, stored) is stored_format(layout)
    assert chosen("none", stored) is NONE


@EVERY
@pytest.mark.parametrize("step", [1, 5, 64])
def test_logits_are_those_of_the_same_weights_written_out(layout: str, step: int, tmp_path: Path) -> None:
    """Within what quantising activations costs: the bound of FP8 by channel, and of bfloat16 where they are not."""
    exact, ids = write(tmp_path, layout), torch.randint(0, 64, (40,))
    found = fused(kept_model(tmp_path, layout), ids, torch.bfloat16, step=step, quantization=stored_format(layout))
    bound = {"int4": 0.1, "int8": 0.15}.get(layout, 0.4)
    assert distance(found, plain(exact, ids)) < bound


@pytest.mark.parametrize("layout", ["channel", "tensor", "modelopt"])
def test_fp8_numbers_and_scales_are_the_files_to_the_bit(layout: str, tmp_path: Path) -> None:
    exact = write(tmp_path, layout)
    decoder = FusedDecoder(kept_model(tmp_path, layout), kernels_for(DEVICE), stored_format(layout))
    for mine, layer in zip(decoder.layers, exact.layers, strict=True):
        data, scale = mine.qkv.tensors()
        assert torch.equal((data.float() * scale).cpu(), layer.get_parameter("qkv"))


def test_fp8_blocks_are_repeated_where_modules_begin_within_one(tmp_path: Path) -> None:
    """q has 128 rows, k and v 32 each: a scale a block of k and one of v, in one matrix."""
    exact = write(tmp_path, "block")
    decoder = FusedDecoder(kept_model(tmp_path, "block"), kernels_for(DEVICE), stored_format("block"))
    data, scale = decoder.layers[0].qkv.tensors()
    assert scale.shape == (192 // 32, 1)
    multiplied = data.float().cpu() * scale.cpu().repeat_interleave(32, 0).repeat_interleave(128, 1)
    layer = exact.layers[0]
    assert isinstance(layer, Matrices)
    assert torch.equal(multiplied, layer.get_parameter("qkv"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="rows of the twins know of each other: a CPU's library adds")
@pytest.mark.parametrize("layout", ["block", "int8"])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_where_the_batch_is_not_to_matter_logits_are_the_same_to_the_bit(
    layout: str, count: int, tmp_path: Path
) -> None:
    write(tmp_path, layout)
    ids, last = torch.randint(0, 64, (50,)), torch.randperm(50)[:count]
    options: dict[str, Any] = {"kind": InvariantDecoder, "quantization": stored_format(layout)}
    alone = fused(kept_model(tmp_path, layout), ids, torch.bfloat16, last=last, **options)
    assert torch.equal(alone, fused(kept_model(tmp_path, layout), ids, torch.bfloat16, **options)[last])


@EVERY
def test_nothing_dense_is_left_and_every_tensor_is_listed_once(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    model = kept_model(tmp_path, layout)
    assert all(parameter.is_meta for layer in model.layers for parameter in (layer.qkv, layer.down))
    decoder = FusedDecoder(model, kernels_for(DEVICE), stored_format(layout))
    held = sum(t.numel() * t.element_size() for layer in decoder.layers for t in layer.gate_up.tensors())
    assert held <= stored_format(layout).matrix_bytes(512, 128, 2) * 2 <= NONE.matrix_bytes(512, 128, 2) * 2
    assert len({id(t) for t in decoder.weights()}) == len(decoder.weights())


IGNORED = {
    "names": ["lm_head", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
              "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj"],
    "patterns": ["lm_head", r"re:.*layers\.0\.self_attn.*"],
    "wildcards": ["lm_head", "model.layers.0.self_attn*"],
    "as in a release with images": ["lm_head", r"re:language_model\.model\.layers\.0\.self_attn"],
}  # fmt: skip


@pytest.mark.parametrize("spelled", IGNORED)
@EVERY
def test_modules_that_the_checkpoint_keeps_stay_as_they_are(layout: str, spelled: str, tmp_path: Path) -> None:
    name = "modules_to_not_convert" if layout == "block" else "ignore"
    exact = write(tmp_path, layout, ("layers.0.self_attn",), **{name: IGNORED[spelled]})
    decoder = FusedDecoder(kept_model(tmp_path, layout), kernels_for(DEVICE), stored_format(layout))
    assert [isinstance(layer.qkv, DenseLinear) for layer in decoder.layers] == [True, False]
    assert not any(isinstance(layer.gate_up, DenseLinear) for layer in decoder.layers)
    weights = exact.layers[0].get_parameter("out").to(DEVICE, torch.bfloat16)
    assert torch.equal(decoder.layers[0].out.tensors()[0], weights)


def test_only_modules_that_are_targeted_are_quantised(tmp_path: Path) -> None:
    config = json.loads(json.dumps(CONFIGS["fp8-channel"]))
    config["config_groups"]["group_0"]["targets"] = [r"re:.*\.mlp\..*"]
    write(tmp_path, "channel", ("self_attn",), **config)
    decoder = FusedDecoder(kept_model(tmp_path, "channel"), kernels_for(DEVICE), stored_format("channel"))
    assert all(isinstance(layer.qkv, DenseLinear) for layer in decoder.layers)
    assert not any(isinstance(layer.down, DenseLinear) for layer in decoder.layers)


def test_a_block_checkpoint_may_be_brought_into_fp8_by_channel_and_into_nothing_else(tmp_path: Path) -> None:
    exact, ids = write(tmp_path, "block"), torch.randint(0, 64, (20,))
    stored = Checkpoint(tmp_path).config.stored_weights
    assert chosen("fp8", stored) is of_name("fp8")
    with pytest.raises(ConfigError, match="quantization int8 needs a checkpoint that is stored so"):
        chosen("int8", stored)
    with pytest.raises(ConfigError, match="the checkpoint's weights are int8; leave --quantization out"):
        chosen("fp8", StoredWeights(of_name("int8")))
    model = load_model(Checkpoint(tmp_path), "bfloat16", str(DEVICE), quantization=of_name("fp8"))
    assert distance(fused(model, ids, torch.bfloat16, quantization=of_name("fp8")), plain(exact, ids)) < 0.4


def test_what_modelopt_says_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    exact = write(tmp_path, "modelopt", ("down_proj",))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*.down_proj"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": said}))
    decoder = FusedDecoder(kept_model(tmp_path, "modelopt"), kernels_for(DEVICE), of_name("fp8"))
    assert all(isinstance(layer.down, DenseLinear) for layer in decoder.layers)
    assert not any(isinstance(layer.out, DenseLinear) for layer in decoder.layers)
    loaded = load_model(Checkpoint(tmp_path), "float32")
    assert all(torch.equal(loaded.places()[name], place) for name, place in exact.places().items())


def changed(case: str, **changes: Any) -> dict[str, Any]:
    """weights, inputs: of the group's; else of the configuration's."""
    config = json.loads(json.dumps(CONFIGS[case]))
    group = config["config_groups"]["group_0"]
    group["weights"] |= changes.pop("weights", {})
    if "inputs" in changes:
        inputs = changes.pop("inputs")
        group["input_activations"] = inputs and {**(group["input_activations"] or {}), **inputs}
    return {**config, **changes}


TWO = changed("fp8-channel")
TWO["config_groups"]["group_1"] = CONFIGS["int8-channel"]["config_groups"]["group_0"]
NVFP4 = changed(
    "int4-group", format="nvfp4-pack-quantized", weights={"type": "float", "strategy": "tensor_group", "group_size": 16}
)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (NVFP4, r"nvfp4-pack-quantized, float 4 by tensor_group 16\) are not read, only"),
        (changed("int8-channel", inputs={"symmetric": False}), "activations with zero points are not computed"),
        (changed("fp8-channel", sparsity_config={"format": "sparse-24-bitmask"}), r"sparse weights \(sparse-24-bitm"),
        (changed("int4-group", weights={"actorder": "group"}), "actorder 'group' are not read; quantise with actorder"),
        (changed("int4-group", weights={"group_size": 64}), "int 4 by group 64"),
        (changed("int4-group", weights={"num_bits": 8}), "int 8 by group 128"),
        (changed("int8-channel", inputs=None), r"int-quantized, int 8 by channel\) are not read"),
        (changed("int4-group", inputs={"type": "int", "num_bits": 8}), "activations int 8"),
        (changed("fp8-block", weights={"block_structure": [64, 64]}), "float 8 by block"),
        (changed("fp8-channel", weights={"strategy": "group", "group_size": 32}), "float 8 by group 32"),
        (changed("fp8-channel", transform_config={"config_groups": {"R1": {}}}), "transforms of activations"),
        (TWO, "weights of 2 schemes; one for all is read"),
        ({**QWEN, "weight_block_size": [64, 64]}, r"fp8 weights \(blocks of \[64, 64\]\) are not read"),
        ({**QWEN, "fmt": "e5m2"}, "'e5m2'; only e4m3 is read"),
        ({**MODELOPT, "quant_algo": "NVFP4"}, r"modelopt weights \(NVFP4\) are not read, only fp8"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A8_AWQ"}}, r"\(W4A8_AWQ\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_forms_that_are_not_read_are_refused_by_name(declared: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        declared_by(declared)


@pytest.mark.parametrize("order", ["static", "weight", None])
def test_an_order_of_columns_that_moves_none_is_no_matter(order: str | None) -> None:
    assert declared_by(changed("int4-group", weights={"actorder": order})).format is of_name("w4a16")


@pytest.mark.parametrize("config", [{"format": "dense"}, {}, None])
def test_a_sparsity_that_is_none_is_no_matter(config: dict[str, Any] | None) -> None:
    assert declared_by(changed("fp8-channel", sparsity_config=config)).format is of_name("fp8")


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("layout", "edit", "message"),
    [
        ("block", lambda t: t.pop(f"{Q}.weight_scale_inv"), "q_proj.weight is FP8 and has no scale"),
        ("block", lambda t: t.update({f"{Q}.weight_scale_inv": torch.ones(2, 1)}), r"is \[2, 1\], expected \[1, 1\]"),
        ("block", lambda t: t[f"{Q}.weight_scale_inv"].fill_(float("nan")), "weight_scale_inv holds NaN"),
        ("channel", lambda t: t.update({f"{Q}.weight": torch.zeros(128, 128)}), "q_proj.weight_scale scales nothing"),
        ("int8", lambda t: t.pop(f"{Q}.weight_scale"), "q_proj.weight_scale is missing"),
        ("int8", lambda t: t.pop(f"{Q}.weight"), "q_proj.weight is missing"),
        ("int8", lambda t: t.update({f"{Q}.weight_scale": torch.ones(3, 1)}), r"is \[3, 1\], expected \[128, 1\]"),
        ("int4", lambda t: t.pop(f"{Q}.weight_shape"), "q_proj.weight_shape is missing"),
        ("int4", lambda t: t[f"{Q}.weight_shape"].fill_(64), r"weight_shape says \[64, 64\] of a matrix"),
        ("int4", lambda t: t.update({f"{Q}.weight_scale": torch.ones(128, 2)}), r"expected \[128, 1\]"),
        ("int4", lambda t: t.update({f"{Q}.weight_zero_point": torch.ones(8, 1).int()}), r"expected \[16, 1\]"),
    ],
)
def test_what_does_not_fit_together_is_refused_naming_the_tensor(
    layout: str, edit: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, layout)
    change(tmp_path, edit)
    for quantization in (NONE, stored_format(layout)):
        with pytest.raises(CorruptCheckpoint, match=message):
            load_model(Checkpoint(tmp_path), "bfloat16", str(DEVICE), quantization=quantization)


def test_columns_in_the_order_of_their_activations_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "int4")
    change(tmp_path, lambda t: t.update({f"{Q}.weight_g_idx": torch.zeros(128, dtype=torch.int32)}))
    with pytest.raises(UnsupportedModel, match="weight_g_idx orders columns by activation"):
        load_model(Checkpoint(tmp_path), "float32")


def test_scales_that_float16_does_not_hold_are_refused_where_the_kernels_would_read_them(tmp_path: Path) -> None:
    write(tmp_path, "int4")
    change(tmp_path, lambda t: t[f"{Q}.weight_scale"][0].fill_(1e-9))
    load_model(Checkpoint(tmp_path), "float32")
    with pytest.raises(UnsupportedModel, match="leave float16's range; serve it with --quantization none"):
        kept_model(tmp_path, "int4")


@EVERY
def test_random_weights_for_measuring_have_the_spread_of_trained_ones(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    model = dummy_model(Checkpoint(tmp_path).config, "bfloat16", str(DEVICE), quantization=stored_format(layout))
    decoder = FusedDecoder(model, kernels_for(DEVICE), stored_format(layout))
    gate_up = decoder.layers[0].gate_up
    rows = gate_up.many(gate_up.operand(torch.eye(128, device=DEVICE, dtype=torch.bfloat16)))
    assert rows.float().std().item() == pytest.approx(0.02, rel=0.1)
