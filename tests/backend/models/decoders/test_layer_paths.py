"""Each road through a layer gives what the layer is defined to, whatever it leaves to its successor."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels import reference
from backend.models.decoders.layer_paths import (
    FewRows,
    FusedLayer,
    InvariantRows,
    ManyRows,
    ManyRowsFp8,
    NarrowRows,
    Road,
)
from backend.models.decoders.paged_decoder import Hidden, Weight

WIDTH, HEADS, INNER, EPS = 64, 96, 160, 1e-5
ONE = torch.ones(())
ROADS: dict[str, tuple[Road, int, bool]] = {  # rows, FP8 weights
    "few": (FewRows(reference, EPS), 1, False),
    "few, fp8": (FewRows(reference, EPS), 1, True),
    "narrow": (NarrowRows(reference, EPS, fp8=False), 5, False),
    "narrow, fp8": (NarrowRows(reference, EPS, fp8=True), 5, True),
    "many": (ManyRows(reference, EPS), 40, False),
    "many, fp8": (ManyRowsFp8(reference, EPS, ONE, whole_qkv=False), 40, True),
    "many, fp8, whole qkv": (ManyRowsFp8(reference, EPS, ONE, whole_qkv=True), 40, True),
    "invariant": (InvariantRows(reference, EPS), 3, False),
}


def layer_of(*, fp8: bool, bias: bool) -> FusedLayer:
    def weight(outputs: int, width: int) -> Weight:
        data = torch.randn(outputs, width) / width**0.5
        return Weight(*reference.quantize_rows(data)) if fp8 else Weight(data)

    return FusedLayer(
        qkv=weight(HEADS, WIDTH), qkv_bias=torch.randn(HEADS) if bias else None, q_norm=None, k_norm=None,
        out=weight(WIDTH, WIDTH), gate_up=weight(2 * INNER, WIDTH), down=weight(WIDTH, INNER),
        input_norm=torch.rand(WIDTH) + 0.5, post_norm=torch.rand(WIDTH) + 0.5,
    )  # fmt: skip


def plain(weight: Weight) -> Tensor:
    return weight.data.float() * (1 if weight.scale is None else weight.scale)


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


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", ROADS)
def test_both_halves_are_the_layers_and_the_next_layer_takes_what_is_left_over(name: str, bias: bool) -> None:
    road, rows, fp8 = ROADS[name]
    near = 0.06 if fp8 else 1e-5
    layer, x, attended = layer_of(fp8=fp8, bias=bias), torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)

    qkv, scales, residual = road.to_attention(layer, Hidden(x))
    expected = F.linear(reference.rms_norm(x, layer.input_norm, EPS), plain(layer.qkv), layer.qkv_bias)
    found = qkv.float() if scales is None else qkv.float() * scales[0] * scales[1].T
    assert distance(found, expected) < near
    assert torch.equal(residual, x)

    hidden = road.from_attention(layer, residual.clone(), attended)
    middle = x + F.linear(attended, plain(layer.out))
    gated = reference.silu_mul(F.linear(reference.rms_norm(middle, layer.post_norm, EPS), plain(layer.gate_up)))
    left = middle + F.linear(gated, plain(layer.down))
    assert distance(whole(hidden), left) < near

    _, _, following = road.to_attention(layer, hidden)
    assert distance(following, left) < near


@pytest.mark.parametrize(
    ("whole_qkv", "bias", "lacks"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_many_rows_in_fp8_leave_qkv_unscaled_only_where_its_reader_can_scale_it(
    whole_qkv: bool, bias: bool, lacks: bool
) -> None:
    road, layer = ManyRowsFp8(reference, EPS, ONE, whole_qkv), layer_of(fp8=True, bias=bias)
    assert (road.to_attention(layer, Hidden(torch.randn(40, WIDTH)))[1] is not None) is lacks
