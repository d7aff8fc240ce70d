import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.staged_writes import write_segments

MODULES = pytest.mark.parametrize("write", [write_segments, reference.write_segments], ids=["kernel", "twin"])


def packed(runs, device):
    """[(offset, words)] as a step sends them."""
    at, head, words = 3 * len(runs), [], []
    for offset, run in runs:
        head += [offset, len(run), at]
        words += run
        at += len(run)
    return torch.tensor(head + words, dtype=torch.int32, device=device)


@MODULES
def test_each_run_of_words_lands_at_its_offset_and_nothing_else_changes(write, device):
    memory = torch.full((5000,), -1, dtype=torch.int32, device=device)
    runs = [(4000, [7]), (0, list(range(2500))), (2600, [-5, 2**31 - 1, -(2**31)]), (2700, [])]
    expected = memory.clone()
    for offset, run in runs:
        expected[offset : offset + len(run)] = torch.tensor(run, dtype=torch.int32, device=device)
    write(memory, packed(runs, device), len(runs))
    assert torch.equal(memory, expected)


@MODULES
def test_only_as_many_segments_as_asked_for_are_written(write, device):
    memory = torch.zeros(10, dtype=torch.int32, device=device)
    runs = packed([(1, [1]), (2, [2]), (3, [3])], device)
    write(memory, runs, 2)
    write(memory, runs, 0)
    assert memory.tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "memory,words,segments",
    [
        (torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int32), 1),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4), 1),
        (torch.zeros(2, 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), 1),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), 2),
    ],
    ids=["int64 memory", "float words", "not flat", "fewer segments than said"],
)
def test_arguments_that_do_not_fit_are_refused(memory, words, segments):
    with pytest.raises(KernelArgumentError):
        write_segments(memory, words, segments)
