import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.linear.invariant import invariant_linear, invariant_parts


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


@pytest.mark.parametrize(("width", "parts"), [(192, 4), (300, 2), (512, 8), (130, 1)])
def test_parts_are_products_of_their_columns_and_add_up(
    width: int, parts: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = (torch.randn(rows, width, device=device).to(dtype) for rows in (70, 40))
    found = invariant_parts(x, weight, parts)
    assert found.dtype == torch.float32 and found.shape == (parts, 70, 40)
    exact = x.double() @ weight.double().t()
    assert (found.double().sum(0) - exact).norm() / exact.norm() < {torch.float32: 1e-5}.get(dtype, 1e-2)
    step = width // parts
    for i, part in enumerate(found):
        columns = slice(i * step, (i + 1) * step)
        alone = invariant_parts(x[:, columns].contiguous(), weight[:, columns].contiguous(), 1)
        assert torch.equal(alone[0], part)


def test_bits_of_an_output_do_not_depend_on_the_others(dtype: torch.dtype, device: torch.device) -> None:
    """A rank has some of the outputs."""
    x, weight = (torch.randn(rows, 200, device=device).to(dtype) for rows in (9, 96))
    whole = invariant_linear(x, weight)
    for begin, end in ((0, 48), (48, 96), (24, 36), (95, 96)):
        assert torch.equal(invariant_linear(x, weight[begin:end].contiguous()), whole[:, begin:end])


def test_columns_that_do_not_divide_into_parts_are_refused(device: torch.device) -> None:
    x = torch.randn(2, 9, device=device)
    with pytest.raises(KernelArgumentError, match="9 columns do not divide into 2 parts"):
        invariant_parts(x, x, 2)
