import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.linear.silu_mul import silu_mul, silu_mul_fp8


def exact(gate_up):
    gate, up = gate_up.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


@pytest.mark.parametrize("width", [1, 96, 1536, 3000])
def test_gate_times_up_of_any_width_is_that_of_float64(width, dtype, device):
    gate_up = (3 * torch.randn(3, 2 * width, device=device)).to(dtype)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    expected = exact(gate_up)
    assert (silu_mul(gate_up).double() - expected).norm() <= tolerance * expected.norm()
    assert (reference.silu_mul(gate_up).double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("width", [1, 96, 9001])
def test_the_quantised_form_is_the_plain_one_rounded_to_fp8(width, dtype, device):
    gate_up = (3 * torch.randn(2, 2 * width, device=device)).to(dtype)
    quantised, scale = silu_mul_fp8(gate_up)
    expected = exact(gate_up)
    error = (quantised.double() * scale.double() - expected).abs()
    assert (error <= expected.abs() / 16 * 1.0001 + scale.double() * 2**-9).all()
    twin, twin_scale = reference.silu_mul_fp8(gate_up)
    assert torch.allclose(scale, twin_scale, rtol=1e-5)
    assert ((quantised.float() - twin.float()).norm() / twin.float().norm()) < 0.02


def test_a_gate_far_below_zero_closes_instead_of_giving_nan(device):
    gate_up = torch.tensor([[-1e4, 1e4, 2.0, 3.0]], device=device)
    assert torch.equal(silu_mul(gate_up), torch.tensor([[0.0, 3e4]], device=device))


def test_no_tokens_give_no_rows(device):
    assert silu_mul(torch.empty(0, 8, device=device)).shape == (0, 4)


def test_an_odd_width_is_refused(device):
    with pytest.raises(KernelArgumentError, match="odd"):
        silu_mul(torch.ones(2, 7, device=device))
