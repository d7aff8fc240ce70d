"""INT8 by rows: the kernels against their twins, and against the numbers and scales multiplied out in float64."""

import pytest
import torch

from backend.kernels.launching import tuning
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.launching.tuning import Choice, Choices
from backend.kernels.linear import int8, int8_reference

BOTH = pytest.mark.parametrize("module", [int8, int8_reference], ids=["kernel", "twin"])
# Of ‖out - exact‖ / ‖exact‖: bfloat16 rounds once, to the nearest on a card, towards zero in the interpreter.
ROUNDED = 4e-3 if torch.cuda.is_available() else 8e-3


def random_matrix(rows, width, device):
    """(int8, scale [rows, 1], exact float64); full of the largest numbers, where a narrow sum would overflow."""
    data = torch.randint(-127, 128, (rows, width), device=device)
    data[torch.rand(rows, width, device=device) < 0.5] = 127
    scale = (torch.rand(rows, 1, device=device) + 0.5) / 100
    return data.to(torch.int8), scale, data.double() * scale.double()


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@BOTH
@pytest.mark.parametrize("rows", [1, 3, 20, 140])
@pytest.mark.parametrize(("outputs", "width"), [(48, 256), (70, 96), (33, 1024)])
def test_a_product_is_that_of_the_numbers_and_scales(module, rows, outputs, width, device):
    weight, scale, exact = random_matrix(outputs, width, device)
    x, x_scale, exact_x = random_matrix(rows, width, device)
    product = exact_x @ exact.t()
    assert error(module.int8_linear(x, x_scale, weight, scale), product) < ROUNDED
    assert error(module.int8_parts(x, x_scale, weight, scale).sum(0), product) < 1e-6


@BOTH
@pytest.mark.parametrize("rows", [1, 20])
def test_a_bias_is_added_and_a_gate_multiplies(module, rows, device):
    weight, scale, exact = random_matrix(48, 128, device)
    x, x_scale, exact_x = random_matrix(rows, 128, device)
    bias = torch.randn(48, device=device).bfloat16()
    product = exact_x @ exact.t()
    assert error(module.int8_linear(x, x_scale, weight, scale, bias), product + bias.double()) < ROUNDED
    gate, up = product.chunk(2, -1)
    gated = torch.nn.functional.silu(gate) * up
    assert error(module.int8_linear(x, x_scale, weight, scale, gated=True), gated) < ROUNDED


def test_sums_are_exact_whatever_the_tiles_and_a_row_has_the_same_bits_in_any_company(monkeypatch, device):
    weight, scale, _ = random_matrix(70, 512, device)
    x, x_scale, _ = random_matrix(150, 512, device)
    together = int8.int8_linear(x, x_scale, weight, scale)
    for first, last in ((0, 1), (7, 9), (63, 66), (149, 150), (20, 110)):
        mine = int8.int8_linear(x[first:last], x_scale[first:last], weight, scale)
        assert torch.equal(mine, together[first:last])
    choice = Choice.of(4, 2, BLOCK_M=16, BLOCK_N=32, BLOCK_K=64, SPLITS=1)

    class Forced(dict[str, Choice]):
        def get(self, key, default=None):
            return choice

    monkeypatch.setattr(tuning, "_active", Choices("test", known=Forced()))
    assert torch.equal(int8.int8_linear(x, x_scale, weight, scale), together)
    assert torch.equal(int8.int8_parts(x, x_scale, weight, scale), int8_reference.int8_parts(x, x_scale, weight, scale))


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (5, 300), (2, 9000)])
def test_quantising_is_its_twin_and_takes_the_nearest_number(rows, width, dtype, device):
    x = torch.randn(rows, width, device=device, dtype=dtype)
    x[0, 3] = 100.0
    (found, found_scale), (wanted, wanted_scale) = int8.quantize_int8(x), int8_reference.quantize_int8(x)
    torch.testing.assert_close(found_scale, wanted_scale, rtol=1e-6, atol=0)
    apart = (found.int() - wanted.int()).abs()
    assert apart.max() <= 1 and apart.float().mean() < 1e-2  # a tie whose division rounds otherwise
    assert ((found.double() * found_scale - x.double()).abs() <= found_scale * 0.5001).all()
    assert (found.abs().amax(1) == 127).all()


def test_zeros_stay_zeros_and_no_rows_are_no_work(device):
    q, scale = int8.quantize_int8(torch.zeros(2, 64, device=device))
    assert (q == 0).all()
    assert scale.isfinite().all()
    weight, weight_scale, _ = random_matrix(16, 64, device)
    x, x_scale = int8.quantize_int8(torch.empty(0, 64, device=device))
    assert int8.int8_linear(x, x_scale, weight, weight_scale).shape == (0, 16)


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, s, w, t: (x.float(), s, w, t), "x is torch.float32"),
        (lambda x, s, w, t: (x[:, :64].contiguous(), s, w, t), "64 wide, the weight 128"),
        (lambda x, s, w, t: (x, s.view(-1), w, t), r"x_scale must be contiguous float32 \[3, 1\]"),
        (lambda x, s, w, t: (x, s, w, t.double()), r"weight_scale must be contiguous float32 \[16, 1\]"),
        (lambda x, s, w, t: (x.t(), s, w, t), "x must be a contiguous matrix"),
        (lambda x, s, w, t: (x, s, w, t, torch.zeros(7)), r"bias must be \[16\]"),
    ],
)
def test_what_does_not_fit_is_refused(module, change, message, device):
    weight, scale, _ = random_matrix(16, 128, device)
    x, x_scale, _ = random_matrix(3, 128, device)
    with pytest.raises(KernelArgumentError, match=message):
        module.int8_linear(*change(x, x_scale, weight, scale))


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (896, 896), (128, 160)], ids=str)
def test_choices_divide_the_columns(shape, parts):
    outputs, width = shape
    for padded in (8, 16, 64, 128, 8192):
        found = [int8.default_choice(padded, outputs, width, gated=False, parts=parts)]
        found += int8.candidates(padded, outputs, width, gated=False, parts=parts)
        for choice in found:
            assert width % (dict(choice.blocks)["SPLITS"] * dict(choice.blocks)["BLOCK_K"]) == 0
