import pytest
import torch

from backend.kernels import reference
from backend.kernels.attention.joined import join_parts
from backend.kernels.launching.launch import KernelArgumentError
from tests.backend.kernels.paged_case import TOLERANCE, error

ROWS = [1, 15, 16, 50]


def exact(q, k, v, scale):
    k, v = (part.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * scale
    return (scores.softmax(-1) @ v)[0].transpose(0, 1), scores.logsumexp(-1)[0]


def parts_of(rows, keys, dtype, device, dim=32, factor=1.0):
    """Queries with keys in two parts, what the twin finds of each, and what float64 finds of all."""
    q = torch.randn(1, rows, 4, dim, device=device).to(dtype).transpose(1, 2) * factor
    k, v = (torch.randn(1, 2, sum(keys), dim, device=device).to(dtype) for _ in range(2))
    scale = dim**-0.5
    found = []
    for begin, end in ((0, keys[0]), (keys[0], sum(keys))):
        part, sums = reference.dense_attention(q, k[:, :, begin:end], v[:, :, begin:end], scale=scale, causal=False)
        found += [part[0].transpose(0, 1), sums]
    return found, exact(q, k, v, scale)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [16, 80, 128])
def test_two_parts_joined_are_attention_over_all_keys(rows, dim, dtype, device):
    (first, first_sum, second, second_sum), (expected, sums) = parts_of(rows, (40, 24), dtype, device, dim)
    out = torch.empty_like(second)
    join_parts(first, first_sum, second, second_sum, out)
    assert error(out, expected) < TOLERANCE[dtype]
    assert error(first_sum, sums) < TOLERANCE[dtype]


@pytest.mark.parametrize("factor", [0.0, 30.0, 1000.0])
def test_scores_far_apart_do_not_overflow(factor, device):
    (first, first_sum, second, second_sum), (expected, sums) = parts_of(
        9, (7, 30), torch.float32, device, factor=factor
    )
    join_parts(first, first_sum, second, second_sum, first)
    assert first.isfinite().all()
    assert error(first, expected) < 1e-4
    assert error(first_sum, sums) < 1e-4


def test_the_result_may_take_the_place_of_the_first_and_keep_float32(device):
    (first, first_sum, second, second_sum), (expected, _) = parts_of(20, (5, 5), torch.float16, device)
    wide = first.float()
    join_parts(wide, first_sum, second, second_sum, wide)
    assert wide.dtype == torch.float32
    assert error(wide, expected) < 1e-3


def test_rows_behind_those_asked_for_are_left_alone(dtype, device):
    (first, first_sum, second, second_sum), (expected, _) = parts_of(32, (9, 9), dtype, device)
    out = torch.full_like(second, 7.0)
    kept = first_sum.clone()
    join_parts(first[:10], first_sum, second[:10], second_sum, out[:10])
    assert error(out[:10], expected[:10]) < TOLERANCE[dtype]
    assert (out[10:] == 7).all()
    assert torch.equal(first_sum[:, 10:], kept[:, 10:])


def test_the_twin_says_the_same(dtype, device):
    (first, first_sum, second, second_sum), _ = parts_of(33, (12, 40), dtype, device)
    mine, other, total = torch.empty_like(first), torch.empty_like(first), first_sum.clone()
    join_parts(first, first_sum, second, second_sum, mine)
    reference.join_parts(first, total, second, second_sum, other)
    assert error(mine, other.double()) < TOLERANCE[dtype]
    assert error(first_sum, total.double()) < TOLERANCE[dtype]


def test_the_twin_of_dense_attention_hides_later_keys_where_it_is_causal(device):
    q, k, v = (torch.randn(1, heads, 6, 16, device=device) for heads in (4, 2, 2))
    found, _ = reference.dense_attention(q, k, v, scale=0.25, causal=True)
    for row in range(6):
        expected, _ = exact(q[:, :, row : row + 1], k[:, :, : row + 1], v[:, :, : row + 1], 0.25)
        assert error(found[0, :, row], expected[0]) < 1e-5


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"out": torch.zeros(4, 4, 16)}, "differ in shape"),
        ({"first_sum": torch.zeros(4, 8, dtype=torch.float16)}, "float32 is needed"),
        ({"second_sum": torch.zeros(4, 7)}, "are needed"),
        ({"second_sum": torch.zeros(8, 4).T}, "not contiguous"),
        ({"first": torch.zeros(16, 4, 8).transpose(0, 2)}, "not contiguous"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(changed, what, device):
    whole = {name: torch.zeros(8, 4, 16, device=device) for name in ("first", "second", "out")}
    sums = {name: torch.zeros(4, 8, device=device) for name in ("first_sum", "second_sum")}
    given = whole | sums | {name: tensor.to(device) for name, tensor in changed.items()}
    with pytest.raises(KernelArgumentError, match=what):
        join_parts(**given)
