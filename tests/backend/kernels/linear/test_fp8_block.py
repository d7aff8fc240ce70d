"""FP8 in blocks: the kernels against their twins, and against the numbers and scales multiplied out in float64."""

import pytest
import torch

from backend.kernels.launching import tuning
from backend.kernels.launching.launch import FP8, KernelArgumentError
from backend.kernels.launching.tuning import Choice, Choices
from backend.kernels.linear import fp8_block, fp8_block_reference
from backend.kernels.linear.fp8_block import quantize_groups

BOTH = pytest.mark.parametrize("module", [fp8_block, fp8_block_reference], ids=["kernel", "twin"])
# Of ‖out - exact‖ / ‖exact‖: bfloat16 rounds once, to the nearest on a card, towards zero in the interpreter.
ROUNDED = 4e-3 if torch.cuda.is_available() else 8e-3
# Hopper's FP8 units add up a group of 128 columns in some 14 bits (DeepSeek-AI 2024, section 3.5.2).
SUMMED = 2e-3 if torch.cuda.is_available() else 2e-6


def random_weight(outputs, width, device, span=128):
    """(weight, scale, exact [outputs, width] float64); scales of very different sizes."""
    weight = torch.randn(outputs, width, device=device).to(FP8)
    scale = torch.rand(-(-outputs // span), width // 128, device=device) * 10.0 ** torch.randint(
        -3, 1, (-(-outputs // span), width // 128), device=device
    )
    exact = weight.double() * scale.double().repeat_interleave(span, 0)[:outputs].repeat_interleave(128, 1)
    return weight, scale, exact


def random_rows(rows, width, device):
    """(x, its scale, exact)."""
    x, scale = quantize_groups(torch.randn(rows, width, device=device) * 3)
    return x, scale, x.double() * scale.double().t().repeat_interleave(128, 1)


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@BOTH
@pytest.mark.parametrize(
    ("rows", "outputs", "width", "span"),
    [(1, 48, 256, 16), (3, 70, 384, 2), (20, 160, 128, 128), (70, 48, 256, 16), (130, 70, 128, 2)],
)
def test_a_product_is_that_of_the_numbers_and_scales(module, rows, outputs, width, span, device):
    weight, scale, exact = random_weight(outputs, width, device, span)
    x, x_scale, exact_x = random_rows(rows, width, device)
    product = exact_x @ exact.t()
    assert error(module.fp8_block_linear(x, x_scale, weight, scale, span), product) < ROUNDED
    assert error(module.fp8_block_parts(x, x_scale, weight, scale, span).sum(0), product) < SUMMED
    found = fp8_block.fp8_block_linear(x, x_scale, weight, scale, span, batch_invariant=True)
    assert error(found, product) < ROUNDED


@BOTH
@pytest.mark.parametrize("rows", [1, 20])
def test_a_bias_is_added_and_a_gate_multiplies(module, rows, device):
    weight, scale, exact = random_weight(160, 256, device, 16)
    x, x_scale, exact_x = random_rows(rows, 256, device)
    bias = torch.randn(160, device=device).bfloat16()
    product = exact_x @ exact.t()
    found = module.fp8_block_linear(x, x_scale, weight, scale, 16, bias)
    assert error(found, product + bias.double()) < ROUNDED
    gate, up = product.chunk(2, -1)
    found = module.fp8_block_linear(x, x_scale, weight, scale, 16, gated=True)
    assert error(found, torch.nn.functional.silu(gate) * up) < ROUNDED + SUMMED


@pytest.mark.parametrize("rows", [5, 50])
@pytest.mark.parametrize("changes", [{"SPLITS": 2}, {"SPLITS": 4}, {"BLOCK_M": 16, "STRIP": 2}], ids=str)
def test_every_form_of_the_kernel_gives_the_same(monkeypatch, changes, rows, device):
    weight, scale, exact = random_weight(100, 512, device)
    x, x_scale, exact_x = random_rows(rows, 512, device)
    choice = Choice.of(4, 2, **({"BLOCK_M": 32, "BLOCK_N": 64, "SPLITS": 1, "STRIP": 8} | changes))

    class Forced(dict[str, Choice]):
        def get(self, key, default=None):
            return choice

    monkeypatch.setattr(tuning, "_active", Choices("test", known=Forced()))
    product = exact_x @ exact.t()
    assert error(fp8_block.fp8_block_parts(x, x_scale, weight, scale, 128).sum(0), product) < SUMMED


def test_each_row_has_the_same_bits_alone_and_anywhere_among_others(device):
    weight, scale, _ = random_weight(70, 256, device, 2)
    x, x_scale, _ = random_rows(140, 256, device)
    together = fp8_block.fp8_block_linear(x, x_scale, weight, scale, 2, batch_invariant=True)
    for first, last in ((0, 1), (7, 9), (63, 66), (20, 90)):
        mine = x_scale[:, first:last].contiguous()
        alone = fp8_block.fp8_block_linear(x[first:last], mine, weight, scale, 2, batch_invariant=True)
        assert torch.equal(alone, together[first:last])


def test_a_row_that_is_no_number_leaves_the_others_alone(device):
    weight, scale, _ = random_weight(40, 128, device)
    x, x_scale, _ = random_rows(20, 128, device)
    whole = fp8_block.fp8_block_linear(x, x_scale, weight, scale, 128)
    x_scale[:, 7] = float("nan")
    again = fp8_block.fp8_block_linear(x, x_scale, weight, scale, 128)
    assert again[7].isnan().all()
    assert torch.equal(torch.cat((again[:7], again[8:])), torch.cat((whole[:7], whole[8:])))


@pytest.mark.parametrize(("rows", "width"), [(1, 128), (5, 384), (3, 2176)])
def test_quantising_norm_and_gate_are_their_twins(rows, width, dtype, device):
    x = torch.randn(rows, 2 * width, device=device, dtype=dtype)
    x[0, 3] = 100.0
    mine, residual = x[:, :width].contiguous(), torch.randn(rows, width, device=device, dtype=dtype)
    weight = torch.rand(width, device=device, dtype=dtype) + 0.5
    parts = torch.randn(3, rows, width, device=device)
    for call in (
        lambda module: module.quantize_groups(mine),
        lambda module: module.silu_mul_groups(x),
        lambda module: module.rms_norm_groups(mine, weight, 1e-5),
        lambda module: module.add_rms_norm_groups(mine, residual, weight, 1e-5),
        lambda module: module.add_rms_norm_groups(parts, residual, weight, 1e-5),
    ):
        found, wanted = call(fp8_block), call(fp8_block_reference)
        assert found[0].shape == wanted[0].shape == (rows, width)
        assert found[1].shape == (width // 128, rows)
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=0)
        found_x, wanted_x = (
            q.float() * scale.t().repeat_interleave(128, 1) for q, scale in ((found[0], found[1]), wanted[:2])
        )
        assert error(found_x, wanted_x.double()) < 1e-2  # a rounding that falls the other way now and then
        assert (found[0].float() == wanted[0].float()).float().mean() > 0.99
        if len(found) == 3:
            torch.testing.assert_close(found[2], wanted[2])


def test_a_group_is_quantised_by_its_own_largest_value_and_no_other(device):
    x = torch.randn(2, 384, device=device)
    before = quantize_groups(x)
    x[1, 200] = 1e4
    after = quantize_groups(x)
    same = torch.ones(3, 2, dtype=torch.bool, device=device)
    same[1, 1] = False
    assert torch.equal(before[1] == after[1], same)
    assert torch.equal(before[0][0].float(), after[0][0].float())
    assert torch.equal(before[0][1, :128].float(), after[0][1, :128].float())


def test_zeros_stay_zeros(device):
    q, scale = quantize_groups(torch.zeros(2, 256, device=device))
    assert (q.float() == 0).all()
    assert scale.isfinite().all()


def test_no_rows_are_no_work(device):
    weight, scale, _ = random_weight(16, 128, device)
    x, x_scale = quantize_groups(torch.empty(0, 128, device=device))
    assert fp8_block.fp8_block_linear(x, x_scale, weight, scale, 128).shape == (0, 16)
    assert fp8_block.fp8_block_parts(x, x_scale, weight, scale, 128).shape[1:] == (0, 16)


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, s, w, t: (x.float(), s, w, t, 128), "x is torch.float32"),
        (lambda x, s, w, t: (x[:, :128].contiguous(), s, w, t, 128), "128 wide, the weight 256"),
        (lambda x, s, w, t: (x, s.t().contiguous(), w, t, 128), r"x_scale must be contiguous float32 \[2, 3\]"),
        (lambda x, s, w, t: (x, s, w, t, 64), r"weight_scale must be contiguous float32 \[4, 2\]"),
        (lambda x, s, w, t: (x, s, w, t, 48), "a scale for 48 outputs"),
        (lambda x, s, w, t: (x.t(), s, w, t, 128), "x must be a contiguous matrix"),
        (lambda x, s, w, t: (x, s, w, t, 128, torch.zeros(7)), r"bias must be \[200\]"),
    ],
)
def test_what_does_not_fit_is_refused(module, change, message, device):
    weight, scale, _ = random_weight(200, 256, device)
    x, x_scale, _ = random_rows(3, 256, device)
    with pytest.raises(KernelArgumentError, match=message):
        module.fp8_block_linear(*change(x, x_scale, weight, scale))


def test_a_gated_weight_has_no_bias_and_an_even_number_of_rows(device):
    weight, scale, _ = random_weight(17, 128, device)
    x, x_scale, _ = random_rows(2, 128, device)
    with pytest.raises(KernelArgumentError, match="as many rows of up as of gate"):
        fp8_block.fp8_block_linear(x, x_scale, weight, scale, 128, gated=True)
    with pytest.raises(KernelArgumentError, match="has no bias"):
        fp8_block.fp8_block_linear(x, x_scale, weight, scale, 128, torch.zeros(8), gated=True)
    with pytest.raises(KernelArgumentError, match="no multiple of 128"):
        fp8_block.silu_mul_groups(torch.zeros(2, 192, device=device))


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (896, 896), (128, 4864)], ids=str)
def test_choices_divide_the_groups_of_columns(shape, parts):
    outputs, groups = shape[0], shape[1] // 128
    for padded in (8, 16, 32, 64, 128, 256, 8192):
        found = [fp8_block.default_choice(padded, outputs, groups, gated=False, parts=parts)]
        found += fp8_block.candidates(padded, outputs, groups, gated=False, parts=parts)
        assert all(groups % dict(choice.blocks)["SPLITS"] == 0 for choice in found)


def test_it_is_the_arithmetic_that_transformers_documents(device):
    """Weights times scales by block, activations quantised by token and group (`FP8Linear`): no twin of ours in it."""
    weight, scale, exact = random_weight(256, 256, device)
    x = torch.randn(9, 256, device=device)
    groups = x.view(9, 2, 128)
    step = groups.abs().amax(-1, keepdim=True) / 448
    theirs = ((groups / step).to(FP8).float() * step).view(9, 256).double() @ exact.t()
    assert error(fp8_block.fp8_block_linear(*quantize_groups(x), weight, scale, 128), theirs) < ROUNDED
