"""The library's FP8 products against their twins: on a GPU, since a CPU has no such units."""

import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import FP8
from backend.kernels.linear.fp8 import fp8_linear, fp8_product
from backend.kernels.linear.quant import quantize_rows
from backend.kernels.linear.rms_norm import add_rms_norm, add_rms_norm_fp8

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="FP8 products run on a GPU")


def operands(rows, outputs, width, device):
    x, weight = torch.randn(rows, width, device=device), torch.randn(outputs, width, device=device) / width**0.5
    return x, weight, quantize_rows(x), quantize_rows(weight)


def error(mine, other):
    return float((mine.double() - other.double()).norm() / other.double().norm())


@needs_gpu
@pytest.mark.parametrize("rows", [1, 2, 17, 128, 300])
@pytest.mark.parametrize("outputs,width", [(64, 64), (4096, 1024), (48, 4096)])
def test_both_products_match_their_twins_and_come_near_the_exact_one(rows, outputs, width, device):
    x, weight, (x8, x_scale), (w8, w_scale) = operands(rows, outputs, width, device)
    one = torch.ones((), device=device)
    scaled = fp8_linear(x8, x_scale, w8, w_scale)
    product = fp8_product(x8, w8, one)
    assert error(scaled, reference.fp8_linear(x8, x_scale, w8, w_scale)) < 1e-2
    assert error(product, reference.fp8_product(x8, w8, one)) < 1e-2
    assert error(product.float() * (x_scale * w_scale.t()), scaled) < 1e-2
    assert error(scaled, x @ weight.t()) < 0.06


@pytest.mark.parametrize("width", [48, 4096])
def test_an_unscaled_product_gets_its_scales_on_the_way_into_the_residual(width, device):
    product = 100 * torch.randn(5, width, device=device)
    residual, weight = torch.randn(5, width, device=device), torch.rand(width, device=device) + 0.5
    scales = torch.rand(5, 1, device=device) / 50, torch.rand(width, 1, device=device)
    expected = torch.nn.functional.rms_norm(product * scales[0] * scales[1].t() + residual, (width,), weight, 1e-5)
    for function in (add_rms_norm, reference.add_rms_norm):
        normalised, total = function(product, residual, weight, 1e-5, scales=scales)
        assert error(normalised, expected) < 1e-5
        assert error(total, product * scales[0] * scales[1].t() + residual) < 1e-6
    for function in (add_rms_norm_fp8, reference.add_rms_norm_fp8):
        quantised, scale, _ = function(product, residual, weight, 1e-5, scales=scales)
        assert quantised.dtype == FP8
        assert error(quantised.float() * scale, expected) < 0.05
