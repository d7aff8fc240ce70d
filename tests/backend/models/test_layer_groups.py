"""Which layers share a block table, and how many blocks that takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engine_config import EngineConfig, groups_of, size_cache
from backend.errors import ConfigError
from backend.models.layer_groups import MOST_TABLES, LayerGroups, grouped, one_table
from tests.backend.tiny import tiny_config


def groups(*windows: int | None, context: int = 131072) -> LayerGroups:
    return grouped(tiny_config(num_layers=len(windows), windows=windows if any(windows) else (), max_position=context))


@pytest.mark.parametrize(
    ("windows", "tables", "depth"),
    [
        ((128, None) * 12, (None, 128), 12),
        ((4096,) * 32, (4096,), 32),
        ((*((1024,) * 5, None) * 1,), None, None),
        ((None,) * 5, (None,), 5),
        ((None, 8, 16), (None, 8, 16), 1),
    ],
)
def test_layers_of_one_window_share_tables_of_one_depth(windows: Any, tables: Any, depth: int | None) -> None:
    if tables is None:
        windows, tables, depth = ((512,) * 5 + (None,)) * 4, (None, *(512,) * 5), 4
    found = groups(*windows)
    assert (found.windows, found.depth) == (tables, depth)


@given(
    kinds=st.lists(st.sampled_from([None, 4, 100, 2000]), min_size=1, max_size=40),
    context=st.sampled_from([3000, 131072]),
)
def test_every_layer_has_a_place_of_its_own_in_a_table_of_its_window(kinds: list[int | None], context: int) -> None:
    found = groups(*kinds, context=context)
    assert len(set(zip(found.tables, found.places, strict=True))) == len(kinds)
    assert max(found.places) + 1 == found.depth
    assert len(found.windows) <= MOST_TABLES
    assert found.windows == tuple(sorted(found.windows, key=lambda window: (window is not None, window or 0)))
    if found != one_table(len(kinds)):
        assert [found.windows[table] for table in found.tables] == kinds
        whole = found.depth * found.blocks_of(context, 1, 1)
        assert whole < len(kinds) * context, "it saves memory, or is not done"


@given(
    tokens=st.integers(1, 400),
    step=st.integers(1, 64),
    size=st.integers(1, 20),
    window=st.integers(1, 90),
    first=st.integers(1, 64),
)
def test_a_sequence_never_holds_more_than_is_counted(
    tokens: int, step: int, size: int, window: int, first: int
) -> None:
    """Whatever its steps were before: each holds what its first token reaches, to its last."""
    of = LayerGroups((None, window), (0, 1), (0, 0))
    at, most = 0, 0
    while at < tokens:
        end = min(tokens, at + min(step, first if not at else step))
        begin = max(0, at - window + 1) // size
        most = max(most, -(-end // size) + -(-end // size) - begin)
        at = end
    assert most <= of.blocks_of(tokens, step, size)


def test_the_longest_sequence_is_the_last_that_fits() -> None:
    of = groups(*(128, None) * 12)
    longest = of.longest(1000, 512, 16, 131072)
    assert of.blocks_of(longest, 512, 16) <= 1000 < of.blocks_of(longest + 1, 512, 16)
    assert of.longest(1, 512, 16, 131072) == 0
    assert groups(*(128,) * 4).longest(1000, 512, 16, 131072) == 131072, "windows alone hold any length"


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": "", "block_size": 16, "max_num_batched_tokens": 64, **changes})


def test_one_budget_holds_more_blocks_of_fewer_layers() -> None:
    model = tiny_config(num_layers=4, windows=(20, None) * 2)
    one, two = (size_cache(config(kv_memory=1 << 20, window_tables=tables), model, 4) for tables in (False, True))
    assert two.num_blocks == 2 * one.num_blocks
    assert two.max_model_len > 1.5 * one.max_model_len


def test_stages_and_a_wish_leave_one_table() -> None:
    model = tiny_config(num_layers=4, windows=(20, None) * 2)
    assert groups_of(config(pipeline_parallel_size=2), model) == one_table(4)
    assert groups_of(config(window_tables=False), model) == one_table(4)
    assert len(groups_of(config(), model).windows) == 2


def test_too_few_blocks_for_the_length_or_for_any_are_refused_with_the_number_that_would_do() -> None:
    model = tiny_config(num_layers=4, windows=(20, None) * 2)
    with pytest.raises(ConfigError, match=r"max_model_len 1000 needs 70 KV blocks .* lower max_model_len to 928"):
        size_cache(config(num_blocks=65, max_model_len=1000), model, 4)
    assert size_cache(config(num_blocks=70, max_model_len=1000), model, 4).max_model_len == 1000
    with pytest.raises(ConfigError, match=r"a sequence needs 2 KV blocks at least .* there are 1; raise"):
        size_cache(config(num_blocks=1), model, 4)
