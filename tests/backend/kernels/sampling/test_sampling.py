import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.sampling import gumbel, sample


def draw(function, logits, temperature=1.0, seeds=None, positions=None, threshold=None):
    rows, device = len(logits), logits.device
    seeds = torch.arange(rows, device=device) if seeds is None else seeds
    positions = torch.zeros(rows, dtype=torch.int32, device=device) if positions is None else positions
    return function(logits, torch.full((rows,), temperature, device=device), seeds, positions, threshold)


def random_seeds(rows, device):
    return torch.randint(-(2**63), 2**63 - 1, (rows,), device=device)


@pytest.mark.parametrize("vocab", [1, 3, 1000, 5003, 9001])
def test_temperature_zero_takes_the_largest_logit(vocab, dtype, device):
    logits = torch.randn(4, vocab, device=device).to(dtype)
    assert torch.equal(draw(sample, logits, 0.0), logits.float().argmax(-1))


def test_a_tie_goes_to_the_smaller_token_wherever_the_two_lie(device):
    for low, high in ((0, 8999), (5, 6), (2100, 6500), (2249, 2250), (7, 2257), (7, 6757)):
        logits = torch.zeros(1, 9000, device=device)
        logits[0, [low, high]] = 1.0
        assert draw(sample, logits, 0.0).item() == low


@pytest.mark.parametrize("vocab", [2, 1001, 9000])
def test_kernel_and_twin_draw_the_same_tokens(vocab, dtype, device):
    logits = (2 * torch.randn(8, vocab, device=device)).to(dtype)
    positions = torch.randint(0, 2**31 - 1, (8,), device=device, dtype=torch.int32)
    arguments = (logits, 0.7, random_seeds(8, device), positions)
    assert torch.equal(draw(sample, *arguments), draw(reference.sample, *arguments))


def test_the_noise_is_that_of_the_published_generator():
    """Known answers of Philox 4x32-10 for an all-zero and a pi-digit input (Random123, kat_vectors)."""
    words = reference._philox(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_tokens_are_drawn_as_often_as_the_softmax_says(device):
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -3.0], device=device)
    temperature, draws = 0.8, 4000
    tokens = draw(reference.sample, logits.expand(draws, -1).contiguous(), temperature, random_seeds(draws, device))
    expected = draws * (logits / temperature).softmax(0).cpu().numpy()
    observed = np.bincount(tokens.cpu().numpy(), minlength=6)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 30  # five degrees of freedom: exceeded by chance once in 70,000 runs


@triton.jit
def _noise(random_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, gumbel(tl.load(random_ptr + i).to(tl.uint32)))


def test_noise_follows_the_gumbel_quantiles_far_into_both_tails(device):
    """With a uniform number of 24 bits it would end at 17: a token of probability 1e-8 could never be drawn."""
    random = torch.tensor([0, 1, 1000, 4_000_000, 5_000_000, 2**31, 2**32 - 2**20, 2**32 - 1], device=device)
    u = (random.double() + 0.5) / 2**32
    expected = -torch.log(-torch.log1p(-u))
    kernel = torch.empty(8, device=device)
    _noise[(1,)](random, kernel, BLOCK=8)
    for noise in (kernel, reference._gumbel(random)):
        assert noise[0] > 22
        assert torch.allclose(noise[:7].double(), expected[:7], atol=2e-5)
        assert -4 < noise[7] < -2.7  # float32 has no number between 1 - 2**-24 and 1


def test_the_draw_depends_on_seed_and_position_not_on_row_or_company(device):
    logits = torch.randn(1, 3000, device=device).expand(8, -1).contiguous()
    seeds = random_seeds(8, device)
    positions = torch.arange(8, device=device, dtype=torch.int32)
    together = draw(sample, logits, 1.0, seeds, positions)
    for row in (0, 7):
        alone = draw(sample, logits[:1], 1.0, seeds[row : row + 1], positions[row : row + 1])
        assert alone.item() == together[row].item()
    assert len(draw(sample, logits, 1.0, seeds[:1].expand(8).contiguous(), positions).unique()) > 3
    assert len(draw(sample, logits, 1.0, seeds, positions * 0).unique()) > 3


def test_tokens_below_the_threshold_are_never_drawn(device):
    logits = torch.randn(8, 600, device=device)
    threshold = logits.topk(5).values[:, -1].contiguous()
    seeds = random_seeds(8, device)
    tokens = draw(sample, logits, 5.0, seeds, threshold=threshold)
    assert (logits.gather(1, tokens[:, None])[:, 0] >= threshold).all()
    assert torch.equal(tokens, draw(reference.sample, logits, 5.0, seeds, threshold=threshold))
    assert not torch.equal(tokens, draw(sample, logits, 5.0, seeds))


def test_forbidden_tokens_are_passed_over_and_rows_that_are_not_numbers_are_told(device):
    logits = torch.full((5, 9000), float("-inf"), device=device)
    logits[0, 17] = -5.0
    logits[1:4, :] = 0.0
    logits[1, 8999] = float("nan")
    logits[2, 3] = float("inf")
    logits[3, 30] = 100.0
    for temperature in (0.0, 1.0):
        assert draw(sample, logits, temperature).tolist() == [17, -1, -1, 30, -1]
        assert draw(reference.sample, logits, temperature).tolist() == [17, -1, -1, 30, -1]


def test_greedy_and_sampled_rows_share_a_batch(device):
    logits = torch.randn(2, 400, device=device)
    temperature = torch.tensor([0.0, 1.0], device=device)
    seeds, positions = random_seeds(2, device), torch.zeros(2, dtype=torch.int64, device=device)
    tokens = sample(logits, temperature, seeds, positions)
    assert tokens[0] == logits[0].argmax()
    assert torch.equal(tokens, reference.sample(logits, temperature, seeds, positions))


def test_rows_of_a_wider_buffer_are_read_through_their_stride(device):
    wide = torch.randn(3, 500, device=device)
    assert torch.equal(draw(sample, wide[:, :300], 0.0), wide[:, :300].argmax(-1))


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(2, 8), torch.ones(1), torch.zeros(2, dtype=torch.int64), torch.zeros(2)),
        (torch.zeros(2, 8), torch.ones(2), torch.zeros(2, dtype=torch.int32), torch.zeros(2)),
        (torch.zeros(8), torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.zeros(1)),
        (torch.zeros(2, 0), torch.ones(2), torch.zeros(2, dtype=torch.int64), torch.zeros(2)),
    ],
    ids=["a temperature short", "int32 seeds", "no rows", "no vocabulary"],
)
def test_arguments_that_do_not_fit_are_refused(arguments):
    with pytest.raises(KernelArgumentError):
        sample(*arguments)
