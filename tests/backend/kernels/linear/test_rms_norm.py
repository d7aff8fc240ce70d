import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import FP8, KernelArgumentError
from backend.kernels.linear.rms_norm import add_rms_norm, add_rms_norm_fp8, rms_norm, rms_norm_fp8

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
WIDTHS = [1, 80, 576, 4097]


def inputs(tokens, width, dtype, device):
    x, residual = torch.randn(2, tokens, width, device=device).to(dtype)
    return x, residual, (1 + torch.randn(width, device=device) / 4).to(dtype)


def exact(h, weight, eps):
    h = h.double()
    return h / (h.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def error(out, expected):
    return ((out.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_width_are_normalised_as_in_float64(width, dtype, device):
    x, _, weight = inputs(3, width, dtype, device)
    assert error(rms_norm(x, weight, 1e-5), exact(x, weight, 1e-5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_residual_is_added_first_and_handed_on(width, dtype, device):
    x, residual, weight = inputs(3, width, dtype, device)
    normalised, total = add_rms_norm(x, residual, weight, 1e-5)
    expected = x.double() + residual.double()
    assert error(normalised, exact(expected, weight, 1e-5)) < TOLERANCE[dtype]
    assert error(total, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_and_twin_agree_in_all_four_forms(width, dtype, device):
    x, residual, weight = inputs(2, width, dtype, device)
    for kernel, twin in (
        ([rms_norm(x, weight, 1e-6)], [reference.rms_norm(x, weight, 1e-6)]),
        (add_rms_norm(x, residual, weight, 1e-6), reference.add_rms_norm(x, residual, weight, 1e-6)),
        (rms_norm_fp8(x, weight, 1e-6), reference.rms_norm_fp8(x, weight, 1e-6)),
        (add_rms_norm_fp8(x, residual, weight, 1e-6), reference.add_rms_norm_fp8(x, residual, weight, 1e-6)),
    ):
        for mine, other in zip(kernel, twin, strict=True):
            assert mine.dtype == other.dtype
            assert mine.shape == other.shape
            # a float32 rounding may tip a value over to the neighbouring FP8 number, 1/8 away
            tolerance = 0.02 if mine.dtype == FP8 else TOLERANCE[dtype]
            assert error(mine, other.double()) < tolerance


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
def test_a_product_in_parts_is_summed_before_all_else(parts, scaled, dtype, device):
    _, residual, weight = inputs(3, 80, dtype, device)
    x = torch.randn(parts, 3, 80, device=device)
    scales = (torch.rand(3, 1, device=device), torch.rand(80, 1, device=device)) if scaled else None
    whole = x.double().sum(0) * (scales[0].double() * scales[1].double().t() if scales else 1)
    expected = whole + residual.double()
    for function in (add_rms_norm, reference.add_rms_norm):
        normalised, total = function(x, residual, weight, 1e-5, scales=scales)
        assert normalised.dtype == total.dtype == dtype
        assert error(normalised, exact(expected, weight, 1e-5)) < TOLERANCE[dtype]
        assert error(total, expected) < TOLERANCE[dtype]
    quantised, scale, total = add_rms_norm_fp8(x, residual, weight, 1e-5, scales=scales)
    assert error(quantised.double() * scale.double(), exact(expected, weight, 1e-5)) < 0.05
    assert error(total, expected) < TOLERANCE[dtype]


def test_parts_go_with_a_residual_and_in_float32(device):
    weight = torch.ones(80, device=device)
    with pytest.raises(KernelArgumentError, match="go with a residual"):
        rms_norm(torch.empty(2, 3, 80, device=device), weight, 1e-5)
    with pytest.raises(KernelArgumentError, match="in float32"):
        add_rms_norm(torch.empty(2, 3, 80, device=device).half(), torch.empty(3, 80, device=device), weight, 1e-5)


def test_a_quantised_row_times_its_scale_is_the_normalised_row(dtype, device):
    x, _, weight = inputs(4, 300, dtype, device)
    quantised, scale = rms_norm_fp8(x, weight, 1e-5)
    assert scale.shape == (4, 1)
    expected = exact(x, weight, 1e-5)
    assert ((quantised.double() * scale.double() - expected).abs() <= expected.abs() / 16 + scale * 2**-9).all()


def test_a_row_of_zeros_stays_zero_in_every_form(device):
    zeros, weight = torch.zeros(2, 64, device=device), torch.ones(64, device=device)
    assert rms_norm(zeros, weight, 1e-5).eq(0).all()
    quantised, scale = rms_norm_fp8(zeros, weight, 1e-5)
    assert quantised.float().eq(0).all()
    assert scale.isfinite().all()


def test_a_row_does_not_depend_on_its_neighbours(dtype, device):
    x, residual, weight = inputs(5, 96, dtype, device)
    together = add_rms_norm(x, residual, weight, 1e-5)[0]
    alone = add_rms_norm(x[2:3].clone(), residual[2:3].clone(), weight, 1e-5)[0]
    assert torch.equal(together[2:3], alone)


def test_no_tokens_give_no_rows(device):
    empty, weight = torch.empty(0, 8, device=device), torch.ones(8, device=device)
    assert rms_norm(empty, weight, 1e-5).shape == (0, 8)


@pytest.mark.parametrize(
    ("x", "residual", "weight"),
    [((2, 8), (2, 8), (7,)), ((2, 8), (3, 8), (8,)), ((8,), (8,), (8,))],
    ids=["weight of another width", "residual of another shape", "not a matrix"],
)
def test_shapes_that_do_not_fit_are_refused(x, residual, weight, device):
    with pytest.raises(KernelArgumentError):
        add_rms_norm(
            torch.ones(x, device=device), torch.ones(residual, device=device), torch.ones(weight, device=device), 1e-5
        )


def test_a_strided_matrix_is_refused_rather_than_misread(device):
    with pytest.raises(KernelArgumentError, match="contiguous"):
        rms_norm(torch.ones(8, 4, device=device).t(), torch.ones(8, device=device), 1e-5)
