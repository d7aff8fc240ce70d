"""Each path through a layer gives what the layer is defined to, whatever it leaves to its successor."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels import reference
from backend.kernels.linear.int4_reference import pack
from backend.models.decoders.layer_paths import (
    FusedLayer,
    InvariantRows,
    LayerPath,
    ManyRows,
    NarrowRows,
    OneRow,
)
from backend.quantization.fp8 import Fp8Linear
from backend.quantization.int4 import Int4Linear
from backend.quantization.linear import DenseLinear, Hidden, Linear

WIDTH, HEADS, INNER, EPS = 64, 96, 160, 1e-5
PATHS: dict[str, tuple[LayerPath, int, bool]] = {  # rows, FP8 weights
    "one": (OneRow(EPS), 1, False),
    "one, fp8": (OneRow(EPS), 1, True),
    "narrow": (NarrowRows(EPS), 5, False),
    "narrow, fp8": (NarrowRows(EPS), 5, True),
    "many": (ManyRows(EPS), 40, False),
    "many, fp8": (ManyRows(EPS, whole_qkv=False), 40, True),
    "many, fp8, whole qkv": (ManyRows(EPS, whole_qkv=True), 40, True),
    "invariant": (InvariantRows(EPS), 3, False),
}


def layer_of(*, fp8: bool, bias: bool, mixed: bool = False) -> FusedLayer:
    """mixed: output and down projections are in the other format, and all that is not FP8 is in bfloat16."""
    dtype = torch.bfloat16 if mixed else torch.float32

    def weight(outputs: int, width: int, fp8: bool) -> Linear:
        data = torch.randn(outputs, width) / width**0.5
        return Fp8Linear(reference, *reference.quantize_rows(data)) if fp8 else DenseLinear(reference, data.to(dtype))

    return FusedLayer(
        qkv=weight(HEADS, WIDTH, fp8),
        qkv_bias=torch.randn(HEADS).to(dtype) if bias else None,
        q_norm=None,
        k_norm=None,
        out=weight(WIDTH, WIDTH, fp8 != mixed),
        gate_up=weight(2 * INNER, WIDTH, fp8),
        down=weight(WIDTH, INNER, fp8 != mixed),
        input_norm=(torch.rand(WIDTH) + 0.5).to(dtype),
        post_norm=(torch.rand(WIDTH) + 0.5).to(dtype),
    )


def plain(weight: Linear) -> Tensor:
    if isinstance(weight, Fp8Linear):
        return weight.data.float() * weight.scale
    assert isinstance(weight, DenseLinear)
    return weight.data.float()


def whole(hidden: Hidden) -> Tensor:
    """The sum that a `Hidden` stands for."""
    added = torch.zeros(()) if hidden.added is None else hidden.added.float()
    if added.dim() == 3:
        added = added.sum(0)
    if hidden.scales is not None:
        added = added * hidden.scales[0] * hidden.scales[1].T
    return hidden.residual.float() + added


def distance(mine: Tensor, other: Tensor) -> float:
    return float((mine.double() - other.double()).norm() / other.double().norm())


def test_a_projection_of_four_bits_is_left_in_parts_where_attention_does_not_read_it() -> None:
    numbers, width = torch.randint(0, 16, (HEADS, 128)), 128
    ones = torch.ones(HEADS, 1)
    qkv = Int4Linear(reference, *pack(numbers, ones / 64, 8 * ones))
    x = torch.randn(17, width).to(torch.bfloat16)
    layer = replace(layer_of(fp8=False, bias=False), qkv=qkv, input_norm=torch.ones(width))
    expected = F.linear(reference.rms_norm(x, layer.input_norm, EPS).float(), (numbers - 8.0) / 64)
    for path, rows, biased, dims in (
        (NarrowRows(EPS), 1, False, 3),
        (NarrowRows(EPS), 16, False, 3),
        (NarrowRows(EPS), 17, False, 2),
        (NarrowRows(EPS), 1, True, 2),
        (NarrowRows(EPS, whole_qkv=True), 1, False, 2),
    ):
        bias = torch.ones(HEADS) if biased else None
        found, scales, _ = path.to_attention(replace(layer, qkv_bias=bias), Hidden(x[:rows]))
        assert scales is None
        assert found.dim() == dims
        summed = found.sum(0) if dims == 3 else found
        assert distance(summed, expected[:rows] + biased) < 0.01


# FP8 weights have no product that is independent of the batch, so that path has one format alone.
@pytest.mark.parametrize(
    ("name", "mixed"), [(name, mixed) for name in PATHS for mixed in (False, True)[: 1 + (name != "invariant")]]
)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_both_halves_are_the_layers_and_the_next_layer_takes_what_is_left_over(
    name: str, bias: bool, mixed: bool
) -> None:
    path, rows, fp8 = PATHS[name]
    near = 0.06 if fp8 or mixed else 1e-5
    layer = layer_of(fp8=fp8, bias=bias, mixed=mixed)
    x, attended = torch.randn(2, rows, WIDTH).to(layer.input_norm.dtype)

    qkv, scales, residual = path.to_attention(layer, Hidden(x))
    bias_of_qkv = None if layer.qkv_bias is None else layer.qkv_bias.float()
    expected = F.linear(reference.rms_norm(x, layer.input_norm, EPS).float(), plain(layer.qkv), bias_of_qkv)
    found = qkv.float() if scales is None else qkv.float() * scales[0] * scales[1].T
    assert distance(found, expected) < near
    assert torch.equal(residual, x)

    hidden = path.from_attention(layer, residual.clone(), attended)
    middle = x.float() + F.linear(attended.float(), plain(layer.out))
    gated = reference.silu_mul(F.linear(reference.rms_norm(middle, layer.post_norm, EPS), plain(layer.gate_up)))
    left = middle + F.linear(gated, plain(layer.down))
    assert distance(whole(hidden), left) < near

    _, _, following = path.to_attention(layer, hidden)
    assert distance(following, left) < near


@pytest.mark.parametrize(
    ("whole_qkv", "bias", "lacks"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_many_rows_in_fp8_leave_qkv_unscaled_only_where_its_reader_can_scale_it(
    whole_qkv: bool, bias: bool, lacks: bool
) -> None:
    path, layer = ManyRows(EPS, whole_qkv), layer_of(fp8=True, bias=bias)
    assert (path.to_attention(layer, Hidden(torch.randn(40, WIDTH)))[1] is not None) is lacks
