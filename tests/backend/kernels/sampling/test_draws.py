import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.draws import gather_draws
from backend.kernels.sampling.row_state import Draws, SamplingRows

MODULES = pytest.mark.parametrize("gather", [gather_draws, reference.gather_draws], ids=["kernel", "twin"])


def wanted(rows, device) -> SamplingRows:
    return SamplingRows(
        temperature=torch.rand(rows, device=device),
        seeds=torch.randint(-(2**63), 2**63 - 1, (rows,), device=device),
        top_k=torch.randint(1, 100, (rows,), dtype=torch.int32, device=device),
        top_p=torch.rand(rows, device=device),
        min_p=torch.rand(rows, device=device),
    )


@MODULES
def test_each_sequence_is_drawn_as_its_request_asked(gather, device):
    asked, known = wanted(300, device), torch.arange(300, dtype=torch.int32, device=device) * 3
    rows = torch.randperm(300, device=device)[:150].int()
    draws = Draws.allocate(150, device)
    gather(rows, known, asked, draws)
    for name in ("temperature", "seeds", "top_k", "top_p", "min_p"):
        assert torch.equal(getattr(draws, name), getattr(asked, name)[rows.long()]), name
    assert torch.equal(draws.positions, rows * 3)


@MODULES
def test_padding_rows_are_greedy_and_untruncated_whatever_was_there_before(gather, device):
    asked, known = wanted(4, device), torch.full((4,), 9, dtype=torch.int32, device=device)
    draws = Draws.allocate(3, device)
    for name in draws.__dataclass_fields__:
        getattr(draws, name).fill_(77)
    gather(torch.tensor([-1, 2, -1], dtype=torch.int32, device=device), known, asked, draws)
    for row in (0, 2):
        found = [getattr(draws, name)[row].item() for name in ("temperature", "seeds", "top_k", "top_p", "min_p")]
        assert found == [0.0, 0, 0, 1.0, 0.0]
        assert draws.positions[row] == 0
    assert draws.positions[1] == 9


def test_arguments_that_do_not_fit_are_refused(device):
    asked, known = wanted(4, device), torch.zeros(4, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError):
        gather_draws(torch.zeros(3, dtype=torch.int32, device=device), known, asked, Draws.allocate(2, device))
    with pytest.raises(KernelArgumentError):
        gather_draws(torch.zeros(2, dtype=torch.int64, device=device), known, asked, Draws.allocate(2, device))
