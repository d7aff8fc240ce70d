import pytest
import torch

from backend.activations.largest_activations import MOST, row_of
from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.activations import largest_activations


def by_definition(states, most):
    bits = states.to(torch.bfloat16).view(torch.int16)
    found = []
    for row in bits.tolist():
        order = sorted(range(len(row)), key=lambda place: (-(row[place] & 0x7FFF), place))[:most]
        found.append([(row[place] & 0xFFFF) << 16 | place for place in sorted(order)])
    return found


@pytest.mark.parametrize("width", [1, 48, 128, 576, 1000, 4096])
def test_the_largest_are_those_of_a_sort(width, dtype, device):
    states = (3 * torch.randn(3, width, device=device)).to(dtype)
    expected = by_definition(states, MOST)
    for function in (largest_activations, reference.largest_activations):
        found = function(states, MOST)
        assert found.dtype == torch.int32
        assert [row_of(row.numpy().tobytes()).tolist() for row in found.cpu()] == expected


@pytest.mark.parametrize("value", [0.0, 1.0, -2.0])
def test_of_equal_magnitudes_the_lower_places_are_taken(value, device):
    states = torch.full((2, 300), value, device=device)
    states[1, 200:260] = -value
    states[1, 7] = 100
    expected = by_definition(states, MOST)
    for function in (largest_activations, reference.largest_activations):
        assert [row_of(row.numpy().tobytes()).tolist() for row in function(states, MOST).cpu()] == expected


def test_ties_of_rounding_go_to_the_even_neighbour(device):
    states = torch.tensor([[1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 1 + 2**-8 + 2**-20]], device=device)
    for function in (largest_activations, reference.largest_activations):
        bits = [word >> 16 for word in row_of(function(states, 4)[0].cpu().numpy().tobytes()).tolist()]
        assert bits == [0x3F80, 0x3F82, 0xBF80, 0x3F81]


def test_no_rows_give_no_rows(device):
    for function in (largest_activations, reference.largest_activations):
        assert function(torch.zeros(0, 64, device=device), MOST).shape == (0, 64)


def test_they_are_left_where_they_are_wanted(device):
    states, out = torch.randn(3, 300, device=device), torch.zeros(5, MOST, dtype=torch.int32, device=device)
    expected = by_definition(states, MOST)
    for function in (largest_activations, reference.largest_activations):
        out.zero_()
        function(states, MOST, out[1:4])
        assert [row_of(row.numpy().tobytes()).tolist() for row in out[1:4].cpu()] == expected
        assert not out[0].any() and not out[4].any()


@pytest.mark.parametrize("out", [torch.zeros(3, 8, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int64)])
def test_memory_that_they_do_not_fit_is_refused(out, device):
    with pytest.raises(KernelArgumentError, match="out"):
        largest_activations(torch.zeros(3, 300, device=device), 4, out.to(device))


@pytest.mark.parametrize("shape", [(4,), (2, 0), (1, (1 << 16) + 1)])
def test_what_is_no_row_of_states_is_refused(shape, device):
    with pytest.raises(KernelArgumentError):
        largest_activations(torch.zeros(shape, device=device), MOST)
