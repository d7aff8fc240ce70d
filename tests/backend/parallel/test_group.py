"""A group's operations on two and four ranks: the exact sums and parts, the same bits on each rank."""

import pytest
import torch
from torch import Tensor

from backend.parallel.group import SINGLE, DistributedGroup, ParallelGroup, tree_sum
from backend.parallel.shard import Shard
from tests.backend.parallel.crew import Crew, Crews, device_for

SIZES = tuple(size for size in (2, 4) if device_for(size) == device_for(1))


@pytest.fixture(params=SIZES)
def crew(request: pytest.FixtureRequest, crews: Crews) -> Crew:
    return crews[request.param]


def device_of(group: ParallelGroup) -> torch.device:
    assert isinstance(group, DistributedGroup)
    return group.device


def own(rank: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rank)).to(dtype)


def reduced(group: ParallelGroup, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return group.all_reduce(own(group.shard.rank, rows, width, dtype).to(device_of(group))).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 40), (128, 512), (3, 5)])
def test_a_sum_is_that_of_all_ranks_on_each(crew: Crew, rows: int, width: int, dtype: torch.dtype) -> None:
    found = crew.run(reduced, rows, width, dtype)
    exact = sum(own(rank, rows, width, dtype).double() for rank in range(crew.size))
    assert isinstance(exact, Tensor)
    for each in found:
        assert torch.equal(each, found[0])
        assert torch.allclose(each.double(), exact, atol=1e-5 if dtype == torch.float32 else 0.06)


def in_order(group: ParallelGroup, rows: int) -> Tensor:
    """Sums of `rows` rows together, and of the last of them alone."""
    assert isinstance(group, DistributedGroup)
    ordered = DistributedGroup(group.shard, group.device, ordered=True)
    x = own(group.shard.rank, rows, 256, torch.bfloat16).to(group.device)
    together, alone = ordered.all_reduce(x.clone()), ordered.all_reduce(x[-1:].clone())
    return torch.stack((together[-1], alone[0])).cpu()


@pytest.mark.parametrize("rows", [2, 33, 200])
def test_an_ordered_sum_of_a_row_does_not_depend_on_the_others(crew: Crew, rows: int) -> None:
    for together, alone in crew.run(in_order, rows):
        assert torch.equal(together, alone)


def gathered(group: ParallelGroup, rows: int, vocabulary: int) -> Tensor:
    begin, end = group.shard.tokens(vocabulary)
    spare = 8
    x = torch.full((rows, group.shard.most_tokens(vocabulary) + spare), -1.0, device=device_of(group))
    x[:, : end - begin] = torch.arange(begin, end, device=x.device)
    return group.logits(x, vocabulary).cpu()


@pytest.mark.parametrize("vocabulary", [320, 301, 17, 8])
def test_logits_of_all_ranks_stand_in_the_order_of_tokens(crew: Crew, vocabulary: int) -> None:
    expected = torch.arange(vocabulary).float().expand(3, -1)
    for found in crew.run(gathered, 3, vocabulary):
        assert torch.equal(found, expected) and found.is_contiguous()


def told(group: ParallelGroup) -> tuple[list[float], int]:
    rank = group.shard.rank
    x = group.broadcast(torch.full((2,), float(rank + 5), device=device_of(group)))
    return x.tolist(), group.least(100 - rank)


def test_rank_0_tells_and_the_least_is_found(crew: Crew) -> None:
    assert crew.run(told) == [([5.0, 5.0], 101 - crew.size)] * crew.size


def test_one_rank_gets_back_what_it_gave() -> None:
    x = torch.randn(3, 4)
    assert SINGLE.all_reduce(x) is x and SINGLE.logits(x, 4) is x and SINGLE.broadcast(x) is x
    assert SINGLE.least(7) == 7 and SINGLE.shard == Shard()


def test_a_tree_of_one_size_holds_that_of_a_smaller() -> None:
    """So a sum in eight parts has the same bits however many ranks have made them."""
    parts = torch.randn(8, 1000)
    halves = torch.stack([tree_sum(parts[:4]), tree_sum(parts[4:])])
    quarters = torch.stack([tree_sum(parts[i : i + 2]) for i in range(0, 8, 2)])
    assert torch.equal(tree_sum(parts), tree_sum(halves)) and torch.equal(tree_sum(parts), tree_sum(quarters))
