import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling import penalties

VOCAB = 1050  # neither a multiple of 32 nor of a block


class Case:
    def __init__(self, dtype, device, batch=4, table_rows=6):
        self.logits = torch.randn(batch, VOCAB, device=device).to(dtype)
        self.rows = torch.randperm(table_rows, device=device)[:batch].int()
        self.prompt_bits = torch.zeros(table_rows, (VOCAB + 31) // 32, dtype=torch.int32, device=device)
        self.prompts = torch.randint(0, VOCAB, (table_rows, 200), device=device)
        for row in range(table_rows):
            penalties.mark_prompt(self.prompt_bits, row, self.prompts[row], VOCAB)
        self.output_counts = torch.randint(0, 4, (table_rows, VOCAB), dtype=torch.int32, device=device)
        self.repetition = 1 + torch.rand(batch, device=device)
        self.frequency = torch.randn(batch, device=device)
        self.presence = torch.randn(batch, device=device)

    def run(self, module):
        logits = self.logits.clone()
        module.apply_penalties(
            logits, self.rows, self.prompt_bits, self.output_counts, self.repetition, self.frequency, self.presence
        )
        return logits


def test_penalties_are_those_of_a_loop_over_tokens(device):
    case = Case(torch.float32, device)
    out = case.run(penalties)
    for i in range(4):
        row = int(case.rows[i])
        prompt = set(case.prompts[row].tolist())
        for token in range(0, VOCAB, 7):
            x, count = case.logits[i, token].item(), case.output_counts[row, token].item()
            if token in prompt or count:
                x = x / case.repetition[i].item() if x > 0 else x * case.repetition[i].item()
            x -= case.frequency[i].item() * count + case.presence[i].item() * (count > 0)
            assert out[i, token].item() == pytest.approx(x, abs=1e-5)


def test_kernel_and_twin_agree(dtype, device):
    case = Case(dtype, device)
    tolerance = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    assert torch.allclose(case.run(penalties).float(), case.run(reference).float(), atol=tolerance)


def test_neutral_penalties_leave_every_bit(dtype, device):
    case = Case(dtype, device)
    case.repetition, case.frequency, case.presence = (torch.full((4,), x, device=device) for x in (1.0, 0.0, 0.0))
    assert torch.equal(case.run(penalties), case.logits)


def test_a_padding_row_is_left_alone(device):
    case = Case(torch.float32, device)
    case.rows[2] = -1
    for module in (penalties, reference):
        out = case.run(module)
        assert torch.equal(out[2], case.logits[2])
        assert not torch.equal(out[1], case.logits[1])


def test_a_token_of_the_prompt_alone_is_spared_by_frequency_and_presence(device):
    case = Case(torch.float32, device)
    case.output_counts.zero_()
    case.repetition.fill_(1.0)
    assert torch.equal(case.run(penalties), case.logits)


def test_a_forbidden_token_stays_forbidden(device):
    case = Case(torch.float32, device)
    case.logits[:, 5] = float("-inf")
    case.output_counts[:, 5] = 3
    assert case.run(penalties)[:, 5].isneginf().all()


@pytest.mark.parametrize("module", [penalties, reference], ids=["kernel", "twin"])
def test_outputs_are_counted_where_they_belong(module, device):
    counts = torch.zeros(5, VOCAB, dtype=torch.int32, device=device)
    rows = torch.tensor([0, 4, -1, 2, 3], dtype=torch.int32, device=device)
    tokens = torch.tensor([7, VOCAB - 1, 7, 0, -1], device=device)
    module.count_outputs(counts, rows, tokens)
    module.count_outputs(counts, rows, tokens)
    assert counts[0, 7] == counts[4, VOCAB - 1] == counts[2, 0] == 2
    assert counts.sum() == 6


@pytest.mark.parametrize("module", [penalties, reference], ids=["kernel", "twin"])
def test_a_prompts_bits_are_its_tokens_and_no_other_rows(module, device):
    bits = torch.zeros(3, (VOCAB + 31) // 32, dtype=torch.int32, device=device)
    tokens = torch.tensor([0, 31, 32, 31, VOCAB - 1, -1, VOCAB], device=device)
    module.mark_prompt(bits, 1, tokens, VOCAB)
    module.mark_prompt(bits, 1, torch.tensor([1], device=device), VOCAB)
    words = [int(word) & 0xFFFFFFFF for word in bits[1]]
    assert {32 * w + b for w, word in enumerate(words) for b in range(32) if word >> b & 1} == {0, 1, 31, 32, VOCAB - 1}
    assert bits[[0, 2]].eq(0).all()


def test_tables_of_another_vocabulary_are_refused(device):
    case = Case(torch.float32, device)
    case.prompt_bits = case.prompt_bits[:, :-1].contiguous()
    with pytest.raises(KernelArgumentError, match="prompt_bits"):
        case.run(penalties)
    case = Case(torch.float32, device)
    case.output_counts = case.output_counts[:, :-1].contiguous()
    with pytest.raises(KernelArgumentError, match="output_counts"):
        case.run(penalties)
    with pytest.raises(KernelArgumentError, match="no prompt row"):
        penalties.mark_prompt(case.prompt_bits, 6, torch.tensor([1], device=device), VOCAB)
