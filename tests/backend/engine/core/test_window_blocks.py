"""Block tables of windows against their promises: what a window reaches is there and what was computed, what it has
passed is given back, and no block is lost or used twice, whatever is done in whatever order."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.sequence import NO_BLOCK, Sequence
from backend.models.layer_groups import reached_from
from tests.backend.tiny import greedy

NUM_BLOCKS, SIZE = 24, 3
Content = tuple[int, bytes, tuple[int, ...]]  # table, root, all tokens up to the last that is in the block
WINDOWS = [(None, 4), (None, 1), (5,), (None, None, 7, 7), (None, 3, 8)]


def sequence(tokens: list[int], id: int = 0, root: bytes = b"") -> Sequence:
    return Sequence(id, tokens, greedy(1), arrival=id, cache_root=root)


class Windowed(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: list[Sequence] = []
        self.written: dict[int, Content] = {}
        self.next_id = 0

    @initialize(windows=st.sampled_from(WINDOWS), prefix_cache=st.booleans())
    def begin(self, windows: tuple[int | None, ...], prefix_cache: bool) -> None:
        self.windows = windows
        self.blocks = BlockManager(NUM_BLOCKS, SIZE, prefix_cache=prefix_cache, windows=windows)

    def added(self, tokens: list[int], root: bytes = b"") -> Sequence:
        s = sequence(tokens, self.next_id, root)
        self.next_id += 1
        self.live.append(s)
        return s

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24), root=st.sampled_from([b"", b"other"]))
    def add(self, tokens: list[int], root: bytes) -> None:
        s = self.added(tokens, root)
        assert self.blocks.adopt_prefix(s) == s.num_computed < len(s.tokens)
        self.check_reads(s, s.num_computed, s.num_computed)

    def check_reads(self, s: Sequence, first: int, end: int) -> None:
        """Everything that queries from `first` on attend to, up to `end`, is held and is what was computed."""
        for table, window in enumerate(self.windows):
            for at in range(reached_from(window, first, SIZE), -(-end // SIZE)):
                block = s.block_tables[table][at]
                assert block != NO_BLOCK, "a window reaches it"
                assert self.blocks.blocks[block].ref_count > 0, "it is not free"
                of, root, tokens = self.written[block]
                known = min(end, (at + 1) * SIZE)
                assert (of, root, tokens[:known]) == (table, s.cache_root, tuple(s.tokens[:known]))

    def write(self, s: Sequence, first: int, end: int) -> None:
        for table, own in enumerate(s.block_tables):
            for at in range(first // SIZE, -(-end // SIZE)):
                holders = sum(own[at] in other for live in self.live for other in live.block_tables)
                assert holders == 1, "written by its only holder"
                self.written[own[at]] = (table, s.cache_root, tuple(s.tokens[: min(end, (at + 1) * SIZE)]))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 9), token=st.integers(0, 1), guesses=st.integers(0, 3))
    def step(self, data: st.DataObject, count: int, token: int, guesses: int) -> None:
        """Computes a chunk, or a token and guesses, which are found wrong."""
        s = data.draw(st.sampled_from(self.live))
        if s.num_uncomputed == 0:
            s.tokens.append(token)
        count = min(count, s.num_uncomputed)
        guesses = guesses if count == s.num_uncomputed == 1 else 0
        free = self.blocks.num_free
        start = s.num_computed
        if not self.blocks.grow(s, count + guesses):
            assert self.blocks.num_free >= free, "nothing is taken"
            return
        self.write(s, start, start + count)
        self.check_reads(s, start, start + count)
        s.num_computed += count
        self.blocks.publish(s)

    @precondition(lambda self: any(s.num_computed >= s.num_prompt for s in self.live))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        leader = data.draw(st.sampled_from([s for s in self.live if s.num_computed >= s.num_prompt]))
        s = self.added(leader.tokens[: leader.num_prompt], leader.cache_root)
        if not self.blocks.can_fork(leader, s) or not self.blocks.fork(leader, s):
            assert not any(s.block_tables)
            return
        for source, target in self.blocks.copies:
            self.written[target] = self.written[source]
        self.blocks.copies.clear()
        self.check_reads(s, s.num_computed, s.num_computed)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=24), spare=st.integers(0, 9))
    def fetch(self, tokens: list[int], spare: int) -> None:
        """Another backend computes the prompt, all but its last token."""
        s = self.added(tokens)
        self.blocks.adopt_prefix(s)
        free, held = self.blocks.num_free, [list(own) for own in s.block_tables]
        if not self.blocks.reserve(s, spare):
            taken = [own for own in s.block_tables if own]
            assert (self.blocks.num_free, taken) == (free, [own for own in held if own]), "all or nothing"
            self.blocks.release(s)
            return
        assert self.blocks.num_free >= spare
        for table, own in enumerate(s.block_tables):
            for at, block in enumerate(own):
                if block != NO_BLOCK and self.blocks.blocks[block].ref_count == 1:
                    known = min(len(tokens) - 1, (at + 1) * SIZE)
                    self.written[block] = (table, s.cache_root, tuple(s.tokens[:known]))
        s.num_computed = len(tokens) - 1
        self.check_reads(s, s.num_computed, s.num_computed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.live))
        self.live.remove(s)
        self.blocks.release(s)
        self.blocks.release(s)  # twice is harmless

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def preempt_and_resume(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.live))
        self.blocks.release(s)
        self.blocks.adopt_prefix(s)
        self.check_reads(s, s.num_computed, s.num_computed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.live))
        self.blocks.disown(s)
        names = {name for name, _ in s.chain}
        assert not any(block.hash and block.hash[:16] in names for block in self.blocks.blocks)

    @invariant()
    def every_block_is_free_or_used(self) -> None:
        if not hasattr(self, "blocks"):
            return
        held = Counter(b for s in self.live for own in s.block_tables for b in own if b != NO_BLOCK)
        assert self.blocks.num_free + self.blocks.num_used == NUM_BLOCKS
        assert self.blocks.num_used == len(held)
        for id, block in enumerate(self.blocks.blocks):
            assert block.ref_count == held[id]
            assert (block.ref_count == 0) == (id in self.blocks._free)

    @invariant()
    def a_block_is_of_one_table(self) -> None:
        for table in range(len(getattr(self, "windows", ()))):
            own = {b for s in self.live for b in (s.block_tables[table : table + 1] or [[]])[0]} - {NO_BLOCK}
            rest = {b for s in self.live for i, other in enumerate(s.block_tables) if i != table for b in other}
            assert not own & rest

    @invariant()
    def tables_are_equally_long(self) -> None:
        for s in self.live:
            if s.block_tables != [[]]:
                assert {len(own) for own in s.block_tables} == {len(s.block_table)}

    def teardown(self) -> None:
        for s in self.live:
            self.blocks.release(s)
        assert not self.live or self.blocks.num_free == NUM_BLOCKS


Windowed.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_what_a_window_reaches_is_there_and_nothing_else_is_held = Windowed.TestCase


def computed(blocks: BlockManager, s: Sequence, step: int = SIZE) -> Sequence:
    while s.num_uncomputed:
        count = min(step, s.num_uncomputed)
        assert blocks.grow(s, count)
        s.num_computed += count
        blocks.publish(s)
    return s


def test_blocks_that_a_window_has_passed_go_back_while_the_sequence_runs() -> None:
    blocks = BlockManager(40, SIZE, prefix_cache=False, windows=(None, 4))
    s = computed(blocks, sequence([1] * 60))
    assert blocks.num_used == 20 + 2  # the chunk of the last step, and what its first token reached
    assert s.block_tables[1][:-2] == [NO_BLOCK] * 18
    assert NO_BLOCK not in s.block_table


def test_the_same_sequence_without_a_window_holds_all() -> None:
    blocks = BlockManager(40, SIZE, prefix_cache=False, windows=(None, None))
    assert NO_BLOCK not in computed(blocks, sequence([1] * 60)).block_tables[1]
    assert blocks.num_used == 40


def test_a_block_that_a_window_has_passed_is_zeroed_if_nothing_finds_it() -> None:
    blocks = BlockManager(40, SIZE, prefix_cache=False, windows=(None, 4))
    s = sequence([1] * 12)
    assert blocks.grow(s, 12)
    passed, s.num_computed = s.block_tables[1][0], 12
    s.tokens.append(1)
    assert blocks.grow(s, 1)
    assert passed in blocks.dirty


def test_a_prefix_is_found_although_its_first_blocks_of_the_window_are_gone() -> None:
    blocks = BlockManager(40, SIZE, windows=(None, 4))
    tokens = [i % 7 for i in range(30)]
    blocks.release(computed(blocks, sequence(tokens)))
    for name, block in list(blocks._by_hash.items()):
        if len(name) > 16 and name[:16] in [n for n, _ in blocks._chained(sequence(tokens))[:5]]:
            blocks._forget(blocks.blocks[block])
    found = sequence([*tokens, 1, 2, 3])
    assert blocks.adopt_prefix(found) == 30
    assert found.block_tables[1][:9] == [NO_BLOCK] * 9
    assert found.block_tables[1][9] != NO_BLOCK


@pytest.mark.parametrize(("lost", "expected"), [(9, 27), (8, 24)])
def test_a_prefix_whose_last_blocks_of_the_window_are_gone_is_found_up_to_them(lost: int, expected: int) -> None:
    blocks = BlockManager(40, SIZE, windows=(None, 6))
    tokens = [i % 7 for i in range(30)]
    s = computed(blocks, sequence(tokens))
    name = s.block_hashes[lost] + b"\x01"
    blocks.release(s)
    blocks._forget(blocks.blocks[blocks._by_hash[name]])
    assert blocks.adopt_prefix(sequence([*tokens, 1, 2, 3])) == expected


def test_a_prefix_that_a_full_layer_has_lost_is_not_found_whatever_windows_have() -> None:
    blocks = BlockManager(40, SIZE, windows=(None, 4))
    tokens = [i % 7 for i in range(30)]
    s = computed(blocks, sequence(tokens))
    first = blocks._by_hash[s.block_hashes[0]]
    blocks.release(s)
    blocks._forget(blocks.blocks[first])
    assert blocks.adopt_prefix(sequence([*tokens, 1])) == 0


def test_a_leader_whose_window_has_passed_the_prompt_cannot_be_forked() -> None:
    blocks = BlockManager(40, SIZE, windows=(None, 4))
    leader = computed(blocks, sequence([1] * 12))
    late = sequence([1] * 12, 1)
    assert blocks.can_fork(leader, late)
    leader.tokens += [2] * 9
    computed(blocks, leader)
    leader.tokens.append(2)
    assert blocks.grow(leader, 1)
    assert not blocks.can_fork(leader, late)
    assert blocks.adopt_prefix(late) == 9, "the prefix cache has it"
