import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.logprobs import token_logprobs


@pytest.mark.parametrize("vocab", [1, 100, 4099, 9000])
@pytest.mark.parametrize("chosen", [1, 21])
def test_log_probabilities_are_those_of_float64(vocab, chosen, dtype, device):
    logits = (5 * torch.randn(3, vocab, device=device)).to(dtype)
    tokens = torch.randint(0, vocab, (3, chosen), device=device)
    expected = logits.double().log_softmax(-1).gather(1, tokens)
    for function in (token_logprobs, reference.token_logprobs):
        assert torch.allclose(function(logits, tokens).double(), expected, atol=2e-5)


def test_forbidden_and_unknown_tokens_have_probability_zero(device):
    logits = torch.tensor([[0.0, float("-inf"), 0.0]], device=device)
    tokens = torch.tensor([[0, 1, -1, 3]], device=device)
    expected = torch.tensor([[-0.6931472, *3 * [float("-inf")]]], device=device)
    for function in (token_logprobs, reference.token_logprobs):
        assert torch.allclose(function(logits, tokens), expected)


def test_huge_logits_do_not_overflow(device):
    logits = torch.tensor([[1e30, 0.0], [-1e20, -1e20]], device=device)
    tokens = torch.zeros(2, 1, dtype=torch.int64, device=device)
    assert torch.allclose(
        token_logprobs(logits, tokens)[:, 0], torch.tensor([0.0, -0.6931472], device=device), atol=1e-6
    )


def test_tokens_of_another_batch_are_refused(device):
    with pytest.raises(KernelArgumentError):
        token_logprobs(torch.zeros(2, 8, device=device), torch.zeros(3, 1, dtype=torch.int64, device=device))
