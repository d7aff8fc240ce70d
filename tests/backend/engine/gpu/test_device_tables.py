from typing import Any

import numpy as np
import pytest
import torch

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.gpu.device_tables import DeviceTables
from backend.kernels.interface import kernels_for
from backend.marks.scheme import shard_key

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, MAX_LEN, BLOCK_SIZE = 3, 40, 16


@pytest.fixture
def tables() -> DeviceTables:
    return DeviceTables(ROWS, MAX_LEN, BLOCK_SIZE, kernels_for(DEVICE), DEVICE)


def sequence(row: int | None, prompt: list[int], blocks: list[int], **params: Any) -> Sequence:
    made = Sequence(5, prompt, SamplingParams(max_tokens=4, **params), arrival=0)
    made.row, made.block_table = row, blocks
    return made


def test_an_admitted_sequence_is_there_after_the_flush_and_not_before(tables: DeviceTables) -> None:
    seen = sequence(1, [3, 1, 4], [7, 8], temperature=0.5, top_p=0.75, top_k=9, seed=2**64 - 2)
    tables.admit(seen)
    assert tables.state.known.tolist() == [0, 0, 0]
    tables.flush()
    assert tables.state.tokens[1, :3].tolist() == [3, 1, 4]
    assert tables.state.known.tolist() == [0, 3, 0]
    assert tables.state.block_tables[1].tolist() == [7, 8, 0]
    assert tables.sampling.temperature.tolist() == [0.0, 0.5, 0.0]
    assert tables.sampling.top_p[1] == 0.75
    assert tables.sampling.top_k[1] == 9
    assert tables.sampling.seeds.tolist() == [0, -2, 0]  # the same 64 bits


def test_a_temperature_that_counts_as_greedy_arrives_as_nought(tables: DeviceTables) -> None:
    tables.admit(sequence(0, [1], [2], temperature=1e-9))
    tables.flush()
    assert tables.sampling.temperature[0] == 0


def test_a_table_that_grows_sends_its_new_blocks_alone(tables: DeviceTables) -> None:
    grows = sequence(2, [1] * 16, [5])
    tables.admit(grows)
    tables.flush()
    tables.state.block_tables[2, 0] = 99  # would be overwritten if all were sent again
    grows.block_table.append(6)
    tables.extend(grows)
    tables.flush()
    assert tables.state.block_tables[2].tolist() == [99, 6, 0]


def test_a_row_taken_over_holds_nothing_of_the_one_before_that_is_read(tables: DeviceTables) -> None:
    first = sequence(0, [9] * 30, [1, 2])
    tables.admit(first)
    tables.flush()
    second = sequence(0, [8, 8], [3])
    tables.admit(second)
    tables.flush()
    assert tables.state.known[0] == 2
    assert tables.state.computed[0] == 0
    assert tables.state.tokens[0, :2].tolist() == [8, 8]
    assert tables.state.block_tables[0, 0] == 3


def test_tokens_that_a_cached_prefix_covers_are_not_sent(tables: DeviceTables) -> None:
    hit = sequence(0, list(range(20)), [4, 5])
    hit.num_computed = 16
    tables.admit(hit)
    tables.flush()
    assert tables.state.computed[0] == 16
    assert tables.state.tokens[0, 16:20].tolist() == [16, 17, 18, 19]
    assert tables.state.tokens[0, :16].eq(0).all()


def test_a_description_is_sent_when_it_changes_and_only_then(tables: DeviceTables) -> None:
    tables.describe("step_rows", np.array([1, 2], dtype=np.int32))
    tables.flush()
    tables.step_rows.fill_(77)
    tables.describe("step_rows", np.array([1], dtype=np.int32))
    tables.flush()
    assert tables.step_rows.tolist() == [77, 77, 77]
    tables.describe("step_rows", np.array([1, 0], dtype=np.int32))
    tables.flush()
    assert tables.step_rows.tolist() == [1, 0, 77]


def test_a_step_may_send_more_than_any_before(tables: DeviceTables) -> None:
    large = DeviceTables(2, 20_000, BLOCK_SIZE, kernels_for(DEVICE), DEVICE)
    for length in (10, 9_000, 19_999):
        large.admit(sequence(1, list(range(length)), [1]))
        large.flush()
        assert large.state.tokens[1, :length].tolist() == list(range(length))


def test_a_sequence_that_does_not_run_has_no_row(tables: DeviceTables) -> None:
    with pytest.raises(RuntimeError, match="sequence 5 is not running"):
        tables.admit(sequence(None, [1], []))


def test_what_a_row_was_to_append_is_forgotten_when_another_gets_the_row(tables: DeviceTables) -> None:
    """Writes of one flush have no order on a GPU, so no two of them may meet."""
    first = sequence(1, [7] * 5, [0])
    tables.admit(first)
    tables.flush()
    tables.advance(first, [8, 9])
    second = sequence(1, [3] * 4, [0])
    tables.admit(second)
    staged = [*tables._writes, *(write for writes in tables._advances.values() for write in writes)]
    places = [at for start, words in staged for at in range(start, start + len(words))]
    assert len(places) == len(set(places))
    tables.flush()
    assert (int(tables.state.known[1]), int(tables.state.computed[1])) == (4, 0)
    tables.advance(second, [5, 6])
    tables.flush()
    assert (int(tables.state.known[1]), int(tables.state.computed[1])) == (6, 5)
    assert tables.state.tokens[1, :6].tolist() == [3, 3, 3, 3, 5, 6]


def marked(row: int, prompt: list[int], **params: Any) -> Sequence:
    made = sequence(row, prompt, [1, 2], mark=shard_key(bytes(range(32)), 3), **params)
    made.num_computed = len(prompt)
    return made


def test_a_marked_answer_arrives_with_its_key_and_where_it_begins(tables: DeviceTables) -> None:
    tables.admit(marked(1, [3, 1, 4]))
    tables.admit(sequence(0, [3, 1], [7]))
    tables.admit(marked(2, [3, 1], temperature=0.0))
    tables.flush()
    assert tables.marks.start.tolist() == [0, 3, 0], "no mark without a key, nor for greedy text"
    assert tables.marks.keys[1].cpu().numpy().tobytes() == shard_key(bytes(range(32)), 3).key


def test_a_marked_answer_that_comes_back_after_preemption_arrives_whole(tables: DeviceTables) -> None:
    """Cached blocks need not be computed again, but contexts are looked for in the whole answer."""
    back = marked(0, [3, 1])
    back.tokens += [9, 8, 7, 6]
    back.num_computed = 5
    tables.admit(back)
    tables.flush()
    assert tables.state.tokens[0, 2:6].tolist() == [9, 8, 7, 6]


def test_a_row_taken_over_by_an_unmarked_sequence_is_not_marked(tables: DeviceTables) -> None:
    tables.admit(marked(0, [3, 1]))
    tables.flush()
    tables.admit(sequence(0, [5], [3]))
    tables.flush()
    assert tables.marks.start[0] == 0
