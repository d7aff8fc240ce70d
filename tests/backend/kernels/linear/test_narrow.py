import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching import tuning
from backend.kernels.launching.launch import FP8, KernelArgumentError
from backend.kernels.launching.tuning import Choices
from backend.kernels.linear.narrow import candidates, default_choice, narrow_linear, narrow_parts
from tests.backend.kernels.conftest import INTERPRETED

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
ROWS = (1, 2, 8, 9, 24, 64)


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


def operands(rows, outputs, width, dtype, device):
    x, weight = torch.randn(rows, width, device=device), torch.randn(outputs, width, device=device) / width**0.5
    return x.to(dtype), weight.to(dtype)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", [(64, 128), (40, 96), (1, 16), (200, 1024)], ids=str)
def test_the_product_is_that_of_float64(rows, shape, dtype, device):
    x, weight = operands(rows, *shape, dtype, device)
    exact = x.double() @ weight.double().t()
    assert error(narrow_linear(x, weight), exact) < TOLERANCE[dtype]
    assert error(reference.narrow_linear(x, weight), exact) < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [3, 32])
def test_a_bias_is_added(rows, dtype, device):
    x, weight = operands(rows, 72, 64, dtype, device)
    bias = torch.randn(72, device=device).to(dtype)
    exact = x.double() @ weight.double().t() + bias.double()
    for function in (narrow_linear, reference.narrow_linear):
        assert error(function(x, weight, bias=bias), exact) < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [1, 8, 17])
@pytest.mark.parametrize("width", [32, 512])
def test_gate_and_up_in_one_weight(rows, width, dtype, device):
    x, weight = operands(rows, 2 * 48, width, dtype, device)
    gate, up = (x.double() @ weight.double().t()).chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    assert error(narrow_linear(x, weight, gated=True), exact) < 2 * TOLERANCE[dtype]
    assert error(reference.narrow_linear(x, weight, gated=True), exact) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("gated", [False, True])
def test_scales_by_row_and_column_come_before_the_gate(gated, dtype, device):
    x, weight = operands(6, 96, 64, dtype, device)
    scales = torch.rand(6, 1, device=device) + 0.5, torch.rand(96, 1, device=device) + 0.5
    product = (x.double() * scales[0]) @ (weight.double() * scales[1]).t()
    gate, up = product.chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up if gated else product
    for function in (narrow_linear, reference.narrow_linear):
        assert error(function(x, weight, scales=scales, gated=gated), exact) < 2 * TOLERANCE[dtype]
    for function in (narrow_parts, reference.narrow_parts):
        assert error(function(x, weight, scales=scales).sum(0), product) < TOLERANCE[dtype]


@pytest.mark.skipif(INTERPRETED, reason="FP8 products run on a GPU")
@pytest.mark.parametrize("rows", [2, 16, 32])
def test_an_fp8_product_gets_its_scales(rows, device):
    x, weight = operands(rows, 256, 1024, torch.float32, device)
    scales = torch.rand(rows, 1, device=device) / 50, torch.rand(256, 1, device=device) / 500
    x, weight = (x * 50).to(FP8), (weight * 500).to(FP8)
    exact = (x.double() * scales[0]) @ (weight.double() * scales[1]).t()
    found = narrow_linear(x, weight, scales=scales)
    assert found.dtype == torch.bfloat16
    assert error(found, exact) < 1e-2
    assert error(narrow_parts(x, weight, scales=scales).sum(0), exact) < 1e-2
    gated = narrow_linear(x, weight, scales=scales, gated=True)
    assert error(gated, torch.nn.functional.silu(exact[:, :128]) * exact[:, 128:]) < 2e-2


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
def test_columns_in_parts_add_up_to_the_product(monkeypatch, splits, dtype, device):
    x, weight = operands(5, 80, 512, dtype, device)
    expected = x.double() @ weight.double().t()
    key = f"narrow_linear[m8 n80 k512 parts {str(dtype).removeprefix('torch.')}]"
    choice = tuning.Choice.of(1, 2, BLOCK_N=16, BLOCK_K=32, SPLITS=splits, PREFETCH=1024)
    monkeypatch.setattr(tuning, "_active", Choices("test", known={key: choice}))
    parts = narrow_parts(x, weight)
    assert parts.dtype == torch.float32
    assert parts.shape == (splits, 5, 80)
    assert error(parts.sum(0), expected) < TOLERANCE[dtype]
    half = x[:, : 512 // splits].double() @ weight[:, : 512 // splits].double().t()
    assert error(parts[0], half) < TOLERANCE[dtype]


def test_parts_without_a_tuned_choice_add_up_too(dtype, device):
    x, weight = operands(9, 144, 1024, dtype, device)
    found = narrow_parts(x, weight)
    assert len(found) > 1
    assert error(found.sum(0), x.double() @ weight.double().t()) < TOLERANCE[dtype]
    assert reference.narrow_parts(x, weight).shape == (1, 9, 144)


def test_each_row_is_its_own(dtype, device):
    x, weight = operands(20, 64, 64, dtype, device)
    whole = narrow_linear(x, weight)
    x[7] = float("nan")
    again = narrow_linear(x, weight)
    assert again[7].isnan().all()
    assert torch.equal(again[:7], whole[:7])
    assert torch.equal(again[8:], whole[8:])


def test_no_rows_are_no_work(device):
    assert narrow_linear(torch.empty(0, 32, device=device), torch.empty(8, 32, device=device)).shape == (0, 8)


def test_what_does_not_fit_is_refused(device):
    x, weight = torch.empty(2, 32, device=device), torch.empty(8, 32, device=device)
    for operands in ((torch.empty(65, 32), weight), (x, torch.empty(8, 64)), (x, weight.half()), (x.t(), weight)):
        for function in (narrow_linear, narrow_parts):
            with pytest.raises(KernelArgumentError):
                function(*operands)
    with pytest.raises(KernelArgumentError, match="has no bias"):
        narrow_linear(x, weight, gated=True, bias=torch.empty(4))
    with pytest.raises(KernelArgumentError, match="one a row and column"):
        narrow_parts(x, weight, scales=(torch.ones(2, 1), torch.ones(9, 1)))
    with pytest.raises(KernelArgumentError, match="tensor cores"):
        narrow_linear(torch.empty(2, 24), torch.empty(8, 24))


@pytest.mark.parametrize("item_size", [1, 2, 4])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 3072), (6144, 4096), (4096, 14336), (576, 96)], ids=str)
def test_choices_divide_the_columns(shape, parts, item_size):
    outputs, width = shape
    for block_m in (8, 16, 32, 64):
        found = [default_choice(block_m, outputs, width, item_size, gated=not parts, parts=parts)]
        found += candidates(block_m, outputs, width, item_size, parts=parts)
        for choice in found:
            blocks = dict(choice.blocks)
            assert width % (blocks["SPLITS"] * blocks["BLOCK_K"]) == 0
            assert parts or blocks["SPLITS"] == 1
