import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling import token_mask


def packed(allowed):
    """Bits of a boolean matrix, built word by word."""
    words = torch.zeros(len(allowed), (allowed.shape[1] + 31) // 32, dtype=torch.int64)
    for row, token in allowed.cpu().nonzero().tolist():
        words[row, token // 32] |= 1 << (token % 32)
    return torch.where(words >= 2**31, words - 2**32, words).int().to(allowed.device)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 2100])
def test_forbidden_tokens_become_minus_infinity_and_no_others_change(vocab, dtype, device):
    allowed = torch.rand(3, vocab, device=device) < 0.5
    logits = torch.randn(5, vocab, device=device).to(dtype)
    rows = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    expected = logits.clone()
    expected[rows.long()] = expected[rows.long()].masked_fill(~allowed, float("-inf"))
    for module in (token_mask, reference):
        out = logits.clone()
        module.apply_bitmask(out, packed(allowed), rows)
        assert torch.equal(out, expected)


def test_a_mask_for_no_row_does_nothing(device):
    logits = torch.randn(2, 40, device=device)
    before = logits.clone()
    nothing_allowed = torch.zeros(1, 2, dtype=torch.int32, device=device)
    for module in (token_mask, reference):
        module.apply_bitmask(logits, nothing_allowed, torch.tensor([-1], dtype=torch.int32, device=device))
        assert torch.equal(logits, before)


def test_too_few_words_are_refused(device):
    rows = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="bits"):
        token_mask.apply_bitmask(
            torch.zeros(1, 40, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device), rows
        )
    with pytest.raises(KernelArgumentError, match="int32"):
        token_mask.apply_bitmask(torch.zeros(1, 40, device=device), torch.zeros(1, 2, device=device), rows)
