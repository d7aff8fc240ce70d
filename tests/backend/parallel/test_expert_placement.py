"""Where experts are held: each once for good, copies where they help, never two of one expert on a rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.parallel.expert_placement import Placement

SIZES = st.integers(1, 8)


@given(SIZES, st.integers(8, 40), st.integers(0, 5), st.data())
def test_every_expert_has_one_owner_and_every_slot_an_expert(
    size: int, experts: int, spare: int, data: st.DataObject
) -> None:
    placement = Placement.even(experts, size, spare)
    loads = data.draw(st.lists(st.integers(0, 1000), min_size=experts, max_size=experts))
    for found in (placement, placement.balanced(loads), placement.balanced(loads).balanced(loads[::-1])):
        assert sorted(e for held in found.slots for e in held[: len(held) - found.spare]) == list(range(experts))
        assert [len(held) for held in found.slots] == [len(held) for held in placement.slots]
        assert all(len(set(held)) == len(held) for held in found.slots)
        assert [found.owner(e) for e in range(experts)] == [placement.owner(e) for e in range(experts)]
        assert sum(found.rank_loads(loads)) == pytest.approx(sum(loads))


def test_ranks_own_as_equally_many_as_can_be() -> None:
    assert Placement.even(6, 4).slots == ((0,), (1, 2), (3,), (4, 5))
    assert Placement.even(4, 2, 1).slots == ((0, 1, 2), (2, 3, 0))
    assert Placement.even(8, 1).slots == (tuple(range(8)),)


def test_an_expert_that_most_tokens_take_is_copied_to_every_rank() -> None:
    loads = [900, 10, 10, 10, 10, 10, 10, 10]
    before = Placement.even(8, 4, 1)
    after = before.balanced(loads)
    assert after.holders(0) == (0, 1, 2, 3)
    assert max(after.rank_loads(loads)) < 260 < 900 <= max(before.rank_loads(loads)) + 450


def test_two_hot_experts_of_a_rank_go_to_others() -> None:
    loads = [400, 400, 0, 0, 0, 0, 0, 0]
    after = Placement.even(8, 4, 1).balanced(loads)
    assert max(after.rank_loads(loads)) <= 400
    assert len(after.holders(0)) > 1 and len(after.holders(1)) > 1


def test_no_more_copies_than_there_are_experts_elsewhere() -> None:
    assert Placement.even(4, 2, 9).slots == ((0, 1, 2, 3), (2, 3, 0, 1))
