"""AWQ and GPTQ checkpoints give the logits of the weights that their numbers, zeros and scales say."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.loader import dummy_model, load_model
from backend.quantization import declared_by, of_name
from backend.quantization.awq import ORDER
from backend.quantization.int4 import Int4Linear
from backend.quantization.linear import DenseLinear
from backend.quantization.none import NONE
from tests.backend.models.decoders.test_fused_decoder import DEVICE, distance, fused, plain
from tests.backend.tiny import tiny_model, write_folder

SHAPE: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
CONFIGS: dict[str, dict[str, Any]] = {"awq": AWQ, "gptq": GPTQ, "gptq_v2": {**GPTQ, "checkpoint_format": "gptq_v2"}}
LAYOUTS = pytest.mark.parametrize("layout", CONFIGS)
Q = "model.layers.1.self_attn.q_proj"


def quantised(weight: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(numbers [out, in], zeros and scales [out, groups]) near a weight; zeros of 1 to 15, as both formats have."""
    out, width = weight.shape
    zeros = torch.randint(1, 16, (out, width // 128), generator=torch.Generator().manual_seed(seed))
    scales = (weight.view(out, -1, 128).abs().amax(-1) / 6).half()
    steps = (weight / scales.float().repeat_interleave(128, 1)).round()
    return (steps + zeros.repeat_interleave(128, 1)).clamp(0, 15).long(), zeros, scales


def words_of(numbers: Tensor, order: tuple[int, ...]) -> Tensor:
    """Eight neighbours along the last dimension in a word, `order[i]` of them in bits 4 i to 4 i + 3."""
    grouped = numbers.unflatten(-1, (-1, 8)).long()
    packed = sum(grouped[..., place] << (4 * i) for i, place in enumerate(order))
    assert isinstance(packed, Tensor)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).contiguous()


def stored_parts(layout: str, numbers: Tensor, zeros: Tensor, scales: Tensor) -> dict[str, Tensor]:
    if layout == "awq":
        parts = {"qweight": words_of(numbers.t(), ORDER), "qzeros": words_of(zeros.t(), ORDER)}
        return parts | {"scales": scales.t().contiguous()}
    straight = tuple(range(8))
    return {
        "qweight": words_of(numbers, straight).t().contiguous(),
        "qzeros": words_of(zeros.t() - (0 if layout == "gptq_v2" else 1), straight),
        "scales": scales.t().contiguous(),
        "g_idx": torch.arange(numbers.shape[1], dtype=torch.int32) // 128,
    }


def write(folder: Path, layout: str, kept: tuple[str, ...] = (), **declared: Any) -> Decoder:
    """A checkpoint, and the model of its weights written out. kept: modules that are not quantised."""
    model = tiny_model(5, **SHAPE)
    write_folder(folder, model, quantization_config={**CONFIGS[layout], **declared})
    tensors: dict[str, Tensor] = {}
    for i, (name, tensor) in enumerate(load_file(folder / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if not module.endswith(MODULES) or any(part in module for part in kept):
            tensors[name] = tensor
            continue
        numbers, zeros, scales = quantised(tensor, i)
        tensors |= {f"{module}.{p}": part for p, part in stored_parts(layout, numbers, zeros, scales).items()}
        exact = (numbers - zeros.repeat_interleave(128, 1)) * scales.float().repeat_interleave(128, 1)
        model.places()[name].copy_(exact)
    save_file(tensors, folder / "model.safetensors")
    return model


def packed_model(folder: Path, dtype: str, layout: str) -> Decoder:
    name = layout.partition("_")[0]
    return load_model(Checkpoint(folder), dtype, str(DEVICE), quantization=of_name(name))


@LAYOUTS
def test_on_the_cpu_weights_are_those_that_the_file_says_to_the_bit(layout: str, tmp_path: Path) -> None:
    exact = write(tmp_path, layout)
    loaded = load_model(Checkpoint(tmp_path), "float32")
    for name, place in exact.places().items():
        assert torch.equal(loaded.places()[name], place), name


@LAYOUTS
@pytest.mark.parametrize("step", [1, 5, 64])
def test_logits_of_packed_weights_are_those_of_the_same_weights_written_out(
    layout: str, step: int, tmp_path: Path
) -> None:
    exact, ids = write(tmp_path, layout), torch.randint(0, 64, (40,))
    model = packed_model(tmp_path, "bfloat16", layout)
    found = fused(model, ids, torch.bfloat16, step=step, quantization=of_name(layout.partition("_")[0]))
    written_out = fused(exact, ids, torch.bfloat16, step=step)
    wanted = plain(exact, ids)
    assert distance(found, wanted) < 1.5 * distance(written_out, wanted) + 1e-3


@LAYOUTS
def test_packed_weights_take_a_quarter_and_nothing_dense_is_left(layout: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    model = packed_model(tmp_path, "bfloat16", layout)
    decoder = FusedDecoder(model, kernels_for(DEVICE), of_name(layout.partition("_")[0]))
    held = sum(t.numel() * t.element_size() for layer in decoder.layers for t in layer.gate_up.tensors())
    numbers = 2 * SHAPE["hidden_size"] * 2 * SHAPE["intermediate_size"]
    assert held == numbers // 2 + 4 * numbers // 128
    assert all(parameter.is_meta for layer in model.layers for parameter in (layer.qkv, layer.down))
    assert len({id(t) for t in decoder.weights()}) == len(decoder.weights())


def test_modules_that_the_checkpoint_keeps_are_multiplied_as_they_are(tmp_path: Path) -> None:
    kept = ("down_proj", "layers.0.self_attn")
    exact = write(tmp_path, "awq", kept, modules_to_not_convert=["mlp.down_proj", "model.layers.0.self_attn"])
    model, ids = packed_model(tmp_path, "bfloat16", "awq"), torch.randint(0, 64, (20,))
    found = fused(model, ids, torch.bfloat16, quantization=of_name("awq"))
    assert (
        distance(found, plain(exact, ids)) < 1.5 * distance(fused(exact, ids, torch.bfloat16), plain(exact, ids)) + 1e-3
    )
    layers = FusedDecoder(packed_model(tmp_path, "bfloat16", "awq"), kernels_for(DEVICE), of_name("awq")).layers
    assert [type(layer.out) for layer in layers] == [DenseLinear, Int4Linear]
    assert all(isinstance(layer.down, DenseLinear) and isinstance(layer.gate_up, Int4Linear) for layer in layers)


def test_modules_that_share_a_matrix_are_kept_together_or_not_at_all(tmp_path: Path) -> None:
    exact = write(tmp_path, "awq", ("k_proj",), modules_to_not_convert=["self_attn.k_proj"])
    with pytest.raises(UnsupportedModel, match=r"keeps self_attn.k_proj in .* serve it with --quantization none"):
        packed_model(tmp_path, "bfloat16", "awq")
    loaded = load_model(Checkpoint(tmp_path), "float32", quantization=NONE)
    assert all(torch.equal(loaded.places()[name], place) for name, place in exact.places().items())


def test_only_modules_that_a_gptq_file_lists_are_quantised(tmp_path: Path) -> None:
    listed = [["mlp.up_proj", "mlp.gate_proj"], ["mlp.down_proj"]]
    write(tmp_path, "gptq", ("self_attn",), modules_in_block_to_quantize=listed)
    layers = FusedDecoder(packed_model(tmp_path, "bfloat16", "gptq"), kernels_for(DEVICE), of_name("gptq")).layers
    assert all(isinstance(layer.qkv, DenseLinear) and isinstance(layer.down, Int4Linear) for layer in layers)


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("layout", "edit", "message"),
    [
        ("awq", lambda t: t.pop(f"{Q}.scales"), "q_proj.scales is missing"),
        ("gptq", lambda t: t.pop(f"{Q}.qweight"), "q_proj.qweight is missing"),
        ("awq", lambda t: t.update({f"{Q}.qzeros": t[f"{Q}.qzeros"][:, :3]}), r"q_proj.qzeros is \[1, 3\], expected"),
        ("gptq", lambda t: t.update({f"{Q}.scales": t[f"{Q}.scales"].repeat(2, 1)}), r"scales is \[2, 128\], expected"),
        ("awq", lambda t: t[f"{Q}.scales"].fill_(float("inf")), "q_proj.scales holds NaN"),
        ("awq", lambda t: t.update({f"{Q}.g_idx": torch.zeros(128, dtype=torch.int32)}), "has no place in an AWQ"),
        ("awq", lambda t: t.update({f"{Q}.weight": torch.zeros(128, 128)}), "q_proj.weight"),
        (
            "awq",
            lambda t: t.update({"model.norm.qweight": torch.zeros(1, dtype=torch.int32)}),
            "norm.qzeros is missing",
        ),
        ("gptq", lambda t: [t.pop(n) for n in list(t) if n.startswith(f"{Q}.")], "1 tensors are missing"),
    ],
)
def test_what_does_not_fit_together_is_refused_naming_the_tensor(
    layout: str, edit: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, layout)
    change(tmp_path, edit)
    for quantization in (NONE, of_name(layout)):
        with pytest.raises(CorruptCheckpoint, match=message):
            load_model(Checkpoint(tmp_path), "bfloat16", str(DEVICE), quantization=quantization)


def test_a_module_in_a_float_type_that_should_be_quantised_is_refused_where_it_would_be_packed(tmp_path: Path) -> None:
    write(tmp_path, "awq", ("down_proj",))
    with pytest.raises(CorruptCheckpoint, match=r"says that .*down_proj.weight is quantised, and the file has it in a"):
        packed_model(tmp_path, "bfloat16", "awq")


def test_columns_in_the_order_of_their_activations_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    change(tmp_path, lambda t: t.update({f"{Q}.g_idx": t[f"{Q}.g_idx"] + (torch.arange(128) == 5).int()}))
    with pytest.raises(UnsupportedModel, match=r"g_idx reorders columns \(desc_act\)"):
        load_model(Checkpoint(tmp_path), "float32")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (AWQ | {"bits": 8}, "awq weights of 8 bits in groups of 128; only 4 bits"),
        (AWQ | {"group_size": 64}, "in groups of 64"),
        (AWQ | {"zero_point": False}, "without zero points"),
        (AWQ | {"version": "GEMV"}, "layout 'gemv'"),
        (GPTQ | {"bits": 3}, "gptq weights of 3 bits"),
        (GPTQ | {"group_size": -1}, "in groups of -1"),
        (GPTQ | {"desc_act": True}, "desc_act are not read; quantise with desc_act: false"),
        (GPTQ | {"lm_head": True}, "with lm_head are not read"),
        (GPTQ | {"dynamic": {"-:k_proj": {}}}, "with dynamic are not read"),
        (GPTQ | {"checkpoint_format": "marlin"}, "layout 'marlin'"),
    ],
    ids=str,
)
def test_forms_that_are_not_read_are_refused_by_name(declared: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        declared_by(declared)


def test_random_weights_for_measuring_have_the_spread_of_trained_ones(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    config = Checkpoint(tmp_path).config
    model = dummy_model(config, "bfloat16", str(DEVICE), quantization=of_name("awq"))
    decoder = FusedDecoder(model, kernels_for(DEVICE), of_name("awq"))
    gate_up = decoder.layers[0].gate_up
    assert isinstance(gate_up, Int4Linear)
    x = torch.eye(128, dtype=torch.bfloat16, device=DEVICE)
    assert 0.018 < float(gate_up.product(x, 0, 128).float().std()) < 0.022
