"""Where a choice or a call of a tool stands, by its index or by its place."""

import pytest

from gateway.openai.shape import position_of


@pytest.mark.parametrize("index", [0, 1, 7])
def test_an_index_says_where_it_stands(index):
    assert position_of({"index": index}, 3) == index


@pytest.mark.parametrize("holder", [{}, *({"index": index} for index in (None, -1, True, False, 1.0, "1", [1], {}))])
def test_what_is_no_index_leaves_it_where_it_stands_in_its_list(holder):
    assert position_of(holder, 3) == 3
