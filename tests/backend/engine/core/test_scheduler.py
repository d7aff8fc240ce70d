import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.scheduler import PART_STEP, Scheduler
from backend.engine.core.sequence import Sequence, Status
from backend.engine.pacing import PromptPace
from tests.backend.tiny import greedy


def scheduler(*, blocks: int = 64, block_size: int = 4, seqs: int = 8, budget: int = 16) -> Scheduler:
    return Scheduler(BlockManager(blocks, block_size), max_num_seqs=seqs, max_num_batched_tokens=budget)


_arrivals = iter(range(1_000_000))


def add(s: Scheduler, length: int, *, priority: int = 0, leader: Sequence | None = None) -> Sequence:
    arrival = next(_arrivals)
    sequence = Sequence(arrival, [arrival % 1000 + 1] * length, greedy(50), arrival=arrival, priority=priority)
    sequence.leader = leader
    s.add(sequence)
    return sequence


def step(s: Scheduler) -> dict[Sequence, int]:
    """Schedule, and pretend to have computed."""
    batch = s.schedule()
    for item in batch:
        samples = item.samples
        item.sequence.num_computed += item.num_tokens
        s.blocks.publish(item.sequence)
        if samples:
            item.sequence.tokens.append(1)
    return {item.sequence: item.num_tokens for item in batch}


def test_a_long_prompt_runs_in_chunks_of_the_budget_and_decodes_go_on_beside_it() -> None:
    s = scheduler(budget=16)
    short = add(s, 3)
    assert step(s) == {short: 3}
    long = add(s, 40)
    assert step(s) == {short: 1, long: 15}
    assert step(s) == {short: 1, long: 15}
    assert step(s) == {short: 1, long: 10}
    assert step(s) == {short: 1, long: 1}


def test_a_decode_that_came_later_is_not_starved_by_an_earlier_prompt() -> None:
    s = scheduler(budget=4)
    first, second = add(s, 2), add(s, 2)
    step(s)
    s.preempt(first)
    first.tokens += [9] * 40  # it comes back as a long prompt, ahead of the other
    step(s)
    assert step(s) == {first: 3, second: 1}


def test_no_step_exceeds_the_budget_or_the_number_of_sequences() -> None:
    s = scheduler(budget=8, seqs=3)
    for length in (5, 1, 9, 2, 30):
        add(s, length)
    for _ in range(12):
        batch = step(s)
        assert 0 < sum(batch.values()) <= 8
        assert len(s.running) <= 3


def test_first_come_is_first_served_within_a_priority() -> None:
    s = scheduler(seqs=1, budget=16)
    late_but_urgent = [add(s, 2), add(s, 2), add(s, 2, priority=-1)]
    served = []
    while s.waiting or s.running:
        (sequence,) = step(s)
        served.append(sequence)
        s.finish(sequence)
    assert served == [late_but_urgent[2], late_but_urgent[0], late_but_urgent[1]]


def test_the_head_of_the_queue_is_not_overtaken_when_it_does_not_fit() -> None:
    s = scheduler(blocks=4, block_size=4, budget=16)
    holder = add(s, 7)
    step(s)
    big, small = add(s, 12), add(s, 2)
    assert step(s) == {holder: 1}
    assert s.waiting == [big, small]
    assert not big.block_table
    s.finish(holder)
    assert big in step(s)


def test_when_blocks_run_out_the_last_in_order_is_preempted_and_comes_back_first() -> None:
    s = scheduler(blocks=4, block_size=4, budget=16)
    first, second = add(s, 8), add(s, 8)
    assert step(s) == {first: 8, second: 8}
    assert step(s) == {first: 1}
    assert second.status is Status.WAITING
    assert (second.num_computed, second.block_table) == (0, [])
    third = add(s, 1)
    assert s.waiting == [second, third]
    assert s.num_preemptions == 1
    s.finish(first)
    assert step(s)[second] >= 1


def test_one_of_lower_priority_is_preempted_even_if_it_came_first() -> None:
    s = scheduler(blocks=4, block_size=4, budget=16)
    batch_job, urgent = add(s, 8, priority=5), add(s, 8, priority=0)
    step(s)
    assert step(s) == {urgent: 1}
    assert batch_job.status is Status.WAITING


def test_a_sequence_that_cannot_grow_and_is_last_preempts_itself() -> None:
    s = scheduler(blocks=3, block_size=4, budget=16)
    first, second = add(s, 5), add(s, 4)
    assert step(s) == {first: 5, second: 4}
    assert step(s) == {first: 1}
    assert second.status is Status.WAITING


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    s = scheduler(blocks=4, block_size=4, budget=16)
    first, second = add(s, 8), add(s, 8)
    step(s)
    add(s, 1)
    assert step(s) == {first: 1}
    assert second not in s.running


def test_cached_tokens_are_counted_when_a_sequence_really_runs() -> None:
    s = scheduler(blocks=5, block_size=4, budget=32)
    first = add(s, 9)
    step(s)
    twin = Sequence(-1, first.tokens[:9], greedy(5), arrival=next(_arrivals))
    s.add(twin)
    blocker = add(s, 12, priority=-1)
    step(s)
    assert twin.num_cached is None  # looked up, but not admitted: the queue's head did not fit
    s.finish(blocker)
    step(s)
    assert twin.num_cached == 8
    assert s.prefix_hits == 8


def test_a_sibling_waits_until_its_leader_has_computed_the_prompt() -> None:
    s = scheduler(budget=8)
    leader = add(s, 12)
    sibling = Sequence(-1, leader.tokens[:], greedy(5), arrival=next(_arrivals), leader=leader)
    s.add(sibling)
    other = add(s, 2)
    assert step(s) == {leader: 8}
    assert step(s) == {leader: 4, other: 2}  # others pass it by
    assert step(s)[sibling] == 1  # it shares the rest


def test_finishing_is_harmless_twice_and_in_any_state() -> None:
    s = scheduler()
    waiting, running = add(s, 2, priority=1), add(s, 2)
    s.budget = 2
    step(s)
    for sequence in (running, waiting, running, waiting):
        s.finish(sequence)
    assert (s.running, s.waiting, s.blocks.num_used) == ([], [], 0)
    assert step(s) == {}


@pytest.mark.parametrize("budget", [2047, 2048, 3000, 8192])
@pytest.mark.parametrize("length", [2049, 9000, 20_000])
@pytest.mark.parametrize("others", [0, 1, 5])
def test_large_parts_of_a_prompt_end_at_whole_steps_beside_any_number_of_decodes(
    budget: int, length: int, others: int
) -> None:
    s = scheduler(blocks=6000, budget=budget, seqs=16)
    for _ in range(others):
        add(s, 3)
    if others:
        step(s)
    long = add(s, length)
    large = budget - others >= 2 * PART_STEP
    while long.num_computed < length:
        batch = step(s)
        assert sum(batch.values()) <= budget
        assert len(batch) == others + 1
        assert long.num_computed == length or not large or long.num_computed % PART_STEP == 0
        assert long.num_computed == length or batch[long] >= budget - others - PART_STEP * large


class Fixed(PromptPace):
    """The same share whatever waits; remembers what it was asked."""

    def __init__(self, tokens: int) -> None:
        super().__init__(0.01)
        self.tokens = tokens
        self.asked: list[tuple[int, int]] = []

    def share(self, decodes: int, waiting: int) -> int:
        self.asked.append((decodes, waiting))
        return self.tokens if decodes else waiting


def paced(tokens: int, *, budget: int = 64, seqs: int = 8) -> tuple[Scheduler, Fixed]:
    pace = Fixed(tokens)
    blocks = BlockManager(256, 4)
    return Scheduler(blocks, max_num_seqs=seqs, max_num_batched_tokens=budget, pace=pace), pace


def test_beside_a_decode_prompts_share_what_their_pace_lets_through_first_come_first() -> None:
    s, pace = paced(8)
    short = add(s, 3)
    assert step(s) == {short: 3}
    first, second = add(s, 11), add(s, 6)
    assert step(s) == {short: 1, first: 8}
    assert step(s) == {short: 1, first: 3, second: 5}
    assert step(s) == {short: 1, first: 1, second: 1}
    assert pace.asked == [(0, 3), (1, 17), (1, 9), (3, 0)]


def test_where_nothing_decodes_a_prompt_takes_the_whole_budget() -> None:
    s, _ = paced(4, budget=64)
    long = add(s, 100)
    assert step(s) == {long: 64}
    assert step(s) == {long: 36}


def test_the_last_token_of_a_prompt_counts_as_one_of_those_that_decode() -> None:
    s, pace = paced(8)
    short = add(s, 3)
    step(s)
    long = add(s, 9)
    assert step(s) == {short: 1, long: 8}
    assert step(s) == {short: 1, long: 1}
    assert pace.asked[-1] == (2, 0)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    arrivals=st.lists(st.integers(0, 20), min_size=12, max_size=12),
    tokens=st.integers(1, 40),
    budget=st.integers(8, 64),
)
def test_paced_steps_keep_every_decode_and_the_share_and_every_prompt_ends(
    lengths: list[int], arrivals: list[int], tokens: int, budget: int
) -> None:
    s, _ = paced(tokens, budget=budget)
    left = sorted(zip(arrivals, lengths, strict=False))
    added: list[Sequence] = []
    for number in range(20 + sum(lengths)):
        while left and left[0][0] <= number:
            added.append(add(s, left.pop(0)[1]))
        decoding = {q for q in s.running if q.num_runnable == 1}
        ran = step(s)
        assert decoding <= set(ran) and sum(ran.values()) <= budget
        if decoding:
            assert sum(count for q, count in ran.items() if q not in decoding) <= tokens
        for q in [q for q in s.running if q.num_output >= 3]:
            s.finish(q)
    assert all(q.num_output >= 3 for q in added) and not left
