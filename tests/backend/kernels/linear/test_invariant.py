import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.linear.invariant import invariant_linear


@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 48, 33), (3, 130, 64), (65, 256, 40), (130, 96, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_its_torch_twin_at_any_size(
    rows: int, width: int, outputs: int, biased: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = (
        torch.randn(rows, width, device=device, dtype=dtype),
        torch.randn(outputs, width, device=device).to(dtype),
    )
    bias = torch.randn(outputs, device=device, dtype=dtype) if biased else None
    exact = reference.invariant_linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = (invariant_linear(x, weight, bias).double() - exact).norm() / exact.norm()
    assert error < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]


def test_a_row_has_the_same_bits_alone_and_anywhere_among_others(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(150, 300, device=device, dtype=dtype)
    weight = torch.randn(70, 300, device=device, dtype=dtype)
    together = invariant_linear(x, weight)
    for first, last in ((0, 1), (7, 8), (63, 65), (149, 150), (20, 120)):
        assert torch.equal(invariant_linear(x[first:last].contiguous(), weight), together[first:last])


def test_no_rows_and_shapes_that_do_not_fit(device: torch.device) -> None:
    weight = torch.randn(4, 8, device=device)
    assert invariant_linear(torch.empty(0, 8, device=device), weight).shape == (0, 4)
    with pytest.raises(KernelArgumentError, match="takes 8 inputs, x has 7"):
        invariant_linear(torch.randn(2, 7, device=device), weight)
    with pytest.raises(KernelArgumentError, match=r"bias must be \[4\]"):
        invariant_linear(torch.randn(2, 8, device=device), weight, torch.randn(5, device=device))
