"""Parts of matrices: together they are the whole, each once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import UnsupportedModel
from backend.models.tensors import part_of
from backend.parallel.shard import Shard, Share, of_columns, of_rows

SIZES = st.integers(1, 8)


@given(SIZES, st.integers(1, 5000))
def test_a_vocabulary_is_shared_out_whole(size: int, vocabulary: int) -> None:
    parts = [Shard(rank, size).tokens(vocabulary) for rank in range(size)]
    assert [token for begin, end in parts for token in range(begin, end)] == list(range(vocabulary))
    assert max(end - begin for begin, end in parts) <= Shard(0, size).most_tokens(vocabulary)


@given(SIZES, st.integers(1, 6), st.integers(1, 6))
def test_rows_and_columns_of_all_ranks_make_the_matrix(size: int, rows: int, columns: int) -> None:
    whole = torch.arange(rows * size * columns * size).view(rows * size, columns * size)
    shape = rows * size, columns * size
    shards = [Shard(rank, size) for rank in range(size)]
    by_rows = [part_of(whole, of_rows(shape, shard.stretch(shape[0]))) for shard in shards]
    by_columns = [part_of(whole, of_columns(shape, shard.stretch(shape[1]))) for shard in shards]
    assert torch.equal(torch.cat(by_rows), whole) and torch.equal(torch.cat(by_columns, 1), whole)
    turned = of_rows(shape, shards[-1].stretch(shape[0])).transposed()
    assert torch.equal(part_of(whole.t(), turned), by_rows[-1].t())


def test_a_part_that_ends_within_a_group_is_refused_with_the_numbers() -> None:
    share = of_columns((64, 512), (192, 384))
    assert share.in_groups((64, 8), columns=64).columns == (3, 6)
    with pytest.raises(UnsupportedModel, match=r"192 to 384 of 512.*groups of 128.*--tensor-parallel-size"):
        share.in_groups((64, 4), columns=128)


def test_the_last_group_may_be_cut() -> None:
    assert of_rows((200, 8), (128, 200)).in_groups((2, 8), rows=128).rows == ((1, 2),)


def test_joined_modules_are_not_turned() -> None:
    with pytest.raises(UnsupportedModel, match="joined"):
        Share((8, 4), ((0, 2), (4, 6))).transposed()


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_group_cannot_be(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        Shard(rank, size)
