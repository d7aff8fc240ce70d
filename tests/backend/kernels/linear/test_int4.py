import pytest
import torch
from torch import Tensor

from backend.kernels.launching import tuning
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.launching.tuning import Choice, Choices
from backend.kernels.linear import int4, int4_reference
from tests.backend.kernels.conftest import INTERPRETED

HALVES = [torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
BOTH = pytest.mark.parametrize("module", [int4, int4_reference], ids=["kernel", "twin"])


@pytest.fixture(params=HALVES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def half(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def random_weight(outputs: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """words, groups, and the weight in float64; zeros from 0 to 16."""
    numbers = torch.randint(0, 16, (outputs, width), device=device)
    scales = ((torch.rand(outputs, width // 128, device=device) + 0.5) / 50).half()
    zeros = torch.randint(0, 17, scales.shape, device=device)
    wide_scale, wide_zero = (part.repeat_interleave(128, 1) for part in (scales.double(), zeros))
    return *int4_reference.pack(numbers, scales, zeros), (numbers - wide_zero).double() * wide_scale


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@BOTH
@pytest.mark.parametrize("outputs", [8, 40])
def test_a_weight_that_is_packed_and_written_out_is_the_weight(module, outputs, device, half):
    words, groups, exact = random_weight(outputs, 384, device)
    assert torch.equal(module.int4_dense(words, groups, half), exact.to(half))


@BOTH
@pytest.mark.parametrize("rows", [1, 3, 17, 100])
def test_the_product_is_that_of_float64(module, rows, device, half):
    words, groups, exact = random_weight(72, 256, device)
    x = torch.randn(rows, 256, device=device).to(half)
    expected = x.double() @ exact.t()
    assert error(module.int4_linear(x, words, groups), expected) < TOLERANCE[half]
    parts = module.int4_parts(x, words, groups)
    assert parts.dtype == torch.float32
    assert error(parts.sum(0), expected) < 1e-5  # nothing is rounded but the sums


@BOTH
@pytest.mark.parametrize("rows", [1, 20])
def test_a_bias_is_added_and_a_gate_multiplies(module, rows, device, half):
    words, groups, exact = random_weight(48, 256, device)
    x, bias = torch.randn(rows, 256, device=device).to(half), torch.randn(48, device=device).to(half)
    product = x.double() @ exact.t()
    assert error(module.int4_linear(x, words, groups, bias=bias), product + bias.double()) < TOLERANCE[half]
    gate, up = product.chunk(2, -1)
    gated = torch.nn.functional.silu(gate) * up
    assert error(module.int4_linear(x, words, groups, gated=True), gated) < 2 * TOLERANCE[half]


@pytest.mark.parametrize("rows", [5, 70])
@pytest.mark.parametrize("changes", [{"SPLITS": 2}, {"SPLITS": 4}, {"UNROLL": 2}, {"FOLD": 1}], ids=str)
def test_every_form_of_the_kernel_gives_the_same(monkeypatch, changes, rows, device, half):
    words, groups, exact = random_weight(32, 512, device)
    x, bias = torch.randn(rows, 512, device=device).to(half), torch.randn(32, device=device).to(half)
    blocks = {
        "BLOCK_M": min(64, max(8, 1 << (rows - 1).bit_length())),
        "BLOCK_N": 64,
        "SPLITS": 1,
        "UNROLL": 1,
        "FOLD": 0,
    }
    choice = Choice.of(4, 2, **(blocks | changes))

    class Forced(dict[str, Choice]):
        def get(self, key, default=None):
            return choice

    monkeypatch.setattr(tuning, "_active", Choices("test", known=Forced()))
    product = x.double() @ exact.t()
    bound = TOLERANCE[half] * (2 if "FOLD" in changes else 1)
    assert error(int4.int4_linear(x, words, groups, bias=bias), product + bias.double()) < bound
    assert error(int4.int4_parts(x, words, groups).sum(0), product) < bound


def test_each_row_is_its_own(device, half):
    words, groups, _ = random_weight(40, 128, device)
    x = torch.randn(20, 128, device=device).to(half)
    whole = int4.int4_linear(x, words, groups)
    x[7] = float("nan")
    again = int4.int4_linear(x, words, groups)
    assert again[7].isnan().all()
    assert torch.equal(torch.cat((again[:7], again[8:])), torch.cat((whole[:7], whole[8:])))


def test_no_rows_are_no_work(device, half):
    words, groups, _ = random_weight(16, 128, device)
    none = torch.empty(0, 128, dtype=half, device=device)
    assert int4.int4_linear(none, words, groups).shape == (0, 16)
    assert int4.int4_parts(none, words, groups).shape[1:] == (0, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, g: (x.float(), w, g), "go with float16 and bfloat16"),
        (lambda x, w, g: (x[:, :100].contiguous(), w, g), "no multiple of 128"),
        (lambda x, w, g: (x[:, :128].contiguous(), w, g), "128 wide, the weight 256"),
        (lambda x, w, g: (x, w.long(), g), "words are contiguous int32"),
        (lambda x, w, g: (x, w, g[:, :8].contiguous()), r"groups must be \[2, 16\]"),
        (lambda x, w, g: (x.t(), w, g), "x must be a contiguous matrix"),
        (lambda x, w, g: (torch.zeros(257, 256, dtype=x.dtype, device=x.device), w, g), "257 rows; 256 at most"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, device):
    words, groups, _ = random_weight(16, 256, device)
    arguments = change(torch.zeros(2, 256, dtype=torch.float16, device=device), words, groups)
    with pytest.raises(KernelArgumentError, match=message):
        int4.int4_linear(*arguments)


def test_a_gated_weight_has_no_bias_and_an_even_number_of_rows(device):
    x = torch.zeros(2, 128, dtype=torch.float16, device=device)
    words, groups, _ = random_weight(17, 128, device)
    with pytest.raises(KernelArgumentError, match="as many rows of up as of gate"):
        int4.int4_linear(x, words, groups, gated=True)
    with pytest.raises(KernelArgumentError, match="has no bias"):
        int4.int4_linear(x, words, groups, gated=True, bias=x[0])


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (896, 896), (128, 4864)], ids=str)
def test_choices_divide_the_groups_of_columns(shape, parts):
    outputs, width = shape
    for padded in (8, 16, 32, 64, 128, 256):
        found = [int4.default_choice(padded, outputs, width, gated=False, parts=parts)]
        found += int4.candidates(padded, outputs, width, gated=False, parts=parts)
        for choice in found:
            blocks = dict(choice.blocks)
            assert (width // 128) % (blocks["SPLITS"] * blocks["UNROLL"]) == 0
