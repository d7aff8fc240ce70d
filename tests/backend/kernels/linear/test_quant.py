import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import FP8, FP8_MAX, KernelArgumentError
from backend.kernels.linear.quant import quantize_rows


@pytest.mark.parametrize("width", [1, 17, 128, 9000])
def test_each_row_spans_the_whole_range_of_the_format(width, dtype, device):
    x = (torch.randn(3, width, device=device) * torch.tensor([[1e-3], [1.0], [100.0]], device=device)).to(dtype)
    quantised, scale = quantize_rows(x)
    assert quantised.dtype == FP8
    assert torch.equal(quantised.float().abs().amax(1), torch.full((3,), FP8_MAX, device=device))
    assert torch.allclose(scale[:, 0] * FP8_MAX, x.float().abs().amax(1), rtol=1e-6)


def test_no_value_is_off_by_more_than_half_a_step_of_its_binade(dtype, device):
    x = torch.randn(4, 700, device=device).to(dtype)
    quantised, scale = quantize_rows(x)
    error = (quantised.double() * scale.double() - x.double()).abs()
    assert (error <= x.double().abs() / 16 * 1.0001 + scale.double() * 2**-10).all()


def test_kernel_and_twin_agree_bit_for_bit_on_the_interpreter_and_nearly_on_a_card(dtype, device):
    x = torch.randn(5, 333, device=device).to(dtype)
    for mine, other in zip(quantize_rows(x), reference.quantize_rows(x), strict=True):
        assert ((mine.float() - other.float()).norm() / other.float().norm()) < (1e-7 if device.type == "cpu" else 2e-3)


def test_zeros_quantise_to_zeros(device):
    quantised, scale = quantize_rows(torch.zeros(2, 40, device=device))
    assert quantised.float().eq(0).all()
    assert scale.gt(0).all()


def test_a_row_does_not_see_its_neighbours_outlier(device):
    x = torch.randn(2, 64, device=device)
    alone = quantize_rows(x[:1].clone())
    x[1, 5] = 1e6
    together = quantize_rows(x)
    assert torch.equal(together[0][:1].view(torch.uint8), alone[0].view(torch.uint8))
    assert torch.equal(together[1][:1], alone[1])


def test_what_is_not_a_contiguous_matrix_is_refused(device):
    with pytest.raises(KernelArgumentError):
        quantize_rows(torch.ones(8, device=device))
    with pytest.raises(KernelArgumentError):
        quantize_rows(torch.ones(8, 8, device=device)[:, ::2])
