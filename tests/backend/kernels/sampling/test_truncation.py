import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.truncation import sampling_threshold


def thresholds(function, logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    def per_row(value, dtype=torch.float32):
        value = torch.as_tensor(value, dtype=dtype, device=logits.device)
        return value.expand(len(logits)).contiguous()

    return function(logits, per_row(temperature), per_row(top_k, torch.int32), per_row(top_p), per_row(min_p))


def kept(function, logits, **options):
    return logits.float() >= thresholds(function, logits, **options)[:, None]


def softmax(logits, temperature=1.0):
    return (logits.double() / temperature).softmax(-1)


@pytest.mark.parametrize("vocab", [2, 100, 4097, 10000])
@pytest.mark.parametrize("top_k", [1, 2, 50, 99999])
def test_top_k_keeps_the_k_largest(vocab, top_k, device):
    logits = torch.randn(3, vocab, device=device)
    mask = kept(sampling_threshold, logits, top_k=top_k)
    expected = logits >= logits.topk(min(top_k, vocab)).values[:, -1:]
    assert torch.equal(mask, expected)


def test_tokens_that_tie_with_the_kth_are_kept(dtype, device):
    logits = torch.tensor([[5.0, 3.0, 3.0, 3.0, 1.0, -2.0]], device=device).to(dtype)
    for top_k, count in ((1, 1), (2, 4), (4, 4), (5, 5)):
        assert kept(sampling_threshold, logits, top_k=top_k).sum() == count
        assert kept(reference.sampling_threshold, logits, top_k=top_k).sum() == count


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p, temperature, device):
    logits = 2 * torch.randn(4, 3000, device=device)
    mask = kept(sampling_threshold, logits, top_p=top_p, temperature=temperature)
    p = softmax(logits, temperature)
    mass = (p * mask).sum(-1)
    smallest_kept = p.masked_fill(~mask, 2).amin(-1)
    assert (mass >= top_p - 1e-5).all()
    assert (mass - smallest_kept <= top_p + 1e-5).all()
    assert mask.any(-1).all()


def test_min_p_keeps_what_has_a_share_of_the_largest_probability(device):
    logits = torch.randn(4, 900, device=device)
    mask = kept(sampling_threshold, logits, min_p=0.2, temperature=0.7)
    p = softmax(logits, 0.7)
    clear = (p / p.amax(-1, keepdim=True) - 0.2).abs() > 1e-5
    assert torch.equal(mask & clear, (p >= 0.2 * p.amax(-1, keepdim=True)) & clear)


def test_top_p_counts_only_the_mass_that_top_k_left(device):
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], device=device).log()
    assert kept(sampling_threshold, logits, top_k=2, top_p=0.6).sum() == 2  # of .57 and .43
    assert kept(sampling_threshold, logits, top_k=2, top_p=0.5).sum() == 1
    assert kept(sampling_threshold, logits, top_k=3, top_p=0.99, min_p=0.7).sum() == 2


@pytest.mark.parametrize("options", [{"top_k": 7}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.7, "min_p": 0.05}])
def test_kernel_and_twin_keep_the_same_tokens(options, dtype, device):
    logits = (3 * torch.randn(6, 5000, device=device)).to(dtype)
    mine = kept(sampling_threshold, logits, temperature=0.8, **options)
    other = kept(reference.sampling_threshold, logits, temperature=0.8, **options)
    # a token whose inclusion hangs on the last bit of a float32 sum may go either way
    assert ((mine ^ other).sum(-1) <= (0 if "top_p" not in options else 1)).all()


def test_each_row_has_its_own_options(device):
    logits = torch.randn(1, 500, device=device).expand(4, -1).contiguous()
    counts = kept(sampling_threshold, logits, top_k=[3, 0, 500, 1], top_p=[1.0, 1.0, 1.0, 0.5]).sum(-1)
    assert counts.tolist() == [3, 500, 500, 1]


def test_a_greedy_row_is_not_truncated(device):
    assert thresholds(sampling_threshold, torch.randn(2, 50, device=device), temperature=0.0, top_k=3).isneginf().all()


def test_negative_equal_and_infinite_logits_are_ordered_as_numbers(device):
    logits = torch.tensor([[-1.0, -2.0, -0.0, 0.0, float("-inf"), -1e30, 1e-40]], device=device)
    for top_k, tokens in ((1, {6}), (2, {6, 2, 3}), (4, {6, 2, 3, 0}), (6, {6, 2, 3, 0, 1, 5})):
        mask = kept(sampling_threshold, logits, top_k=top_k)
        assert set(mask[0].nonzero()[:, 0].tolist()) == tokens


def test_a_row_with_one_finite_logit_keeps_it(device):
    logits = torch.full((1, 64), float("-inf"), device=device)
    logits[0, 9] = 3.0
    for options in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.5}):
        mask = kept(sampling_threshold, logits, **options)
        assert mask[0, 9]


def test_a_row_of_nothing_ends_and_harms_no_other(device):
    logits = torch.randn(2, 64, device=device)
    logits[0] = float("nan")
    assert kept(sampling_threshold, logits, top_k=4, top_p=0.9)[1].sum() <= 4


def test_options_of_another_length_are_refused(device):
    ones = torch.ones(2, device=device)
    with pytest.raises(KernelArgumentError):
        sampling_threshold(torch.zeros(3, 8, device=device), ones, ones.int(), ones, ones)
