"""The block manager against its promises, whatever is done to it in whatever order."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend.engine.core import block_manager
from backend.engine.core.block_manager import BlockManager, _chain
from backend.engine.core.sequence import Sequence
from tests.backend.tiny import greedy

NUM_BLOCKS, BLOCK_SIZE = 10, 3


def sequence(tokens: list[int], id: int = 0, root: bytes = b"") -> Sequence:
    return Sequence(id, tokens, greedy(1), arrival=id, cache_root=root)


def compute(blocks: BlockManager, s: Sequence, count: int | None = None) -> bool:
    """What a step does: grow, compute, publish."""
    count = s.num_uncomputed if count is None else count
    if not blocks.grow(s, count):
        return False
    s.num_computed += count
    blocks.publish(s)
    return True


class Blocks(RuleBasedStateMachine):
    """Sequences over two token values, so that they share prefixes all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.live: list[Sequence] = []
        self.written: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end, when last written
        self.next_id = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), root=st.sampled_from([b"", b"other"]))
    def add(self, tokens: list[int], root: bytes) -> None:
        s = sequence(tokens, self.next_id, root)
        self.next_id += 1
        self.adopt(s)
        self.live.append(s)

    def adopt(self, s: Sequence) -> None:
        found = self.blocks.adopt_prefix(s)
        assert found == s.num_computed < len(s.tokens)
        for index, block in enumerate(s.block_table):
            prefix = (s.cache_root, *s.tokens[: (index + 1) * BLOCK_SIZE])
            assert self.written[block] == prefix, "a hit must hold exactly this prefix, of this root"

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6), token=st.integers(0, 1))
    def step(self, data: st.DataObject, count: int, token: int) -> None:
        s = data.draw(st.sampled_from(self.live))
        if s.num_uncomputed == 0:
            s.tokens.append(token)
        count = min(count, s.num_uncomputed)
        before, free = list(s.block_table), self.blocks.num_free
        start = s.num_computed
        if not compute(self.blocks, s, count):
            assert (s.block_table, self.blocks.num_free) == (before, free), "all or nothing"
            return
        for index in range(start // BLOCK_SIZE, len(s.block_table)):
            block = s.block_table[index]
            assert sum(block in other.block_table for other in self.live) == 1, "written by its only holder"
            self.written[block] = (s.cache_root, *s.tokens[: min(s.num_computed, (index + 1) * BLOCK_SIZE)])

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
        self.adopt(s)

    @invariant()
    def every_block_is_free_or_used(self) -> None:
        assert self.blocks.num_free + self.blocks.num_used == NUM_BLOCKS
        held = Counter(b for s in self.live for b in s.block_table)
        assert self.blocks.num_used == len(held)
        for id, block in enumerate(self.blocks.blocks):
            assert block.ref_count == held[id]
            assert (block.ref_count == 0) == (id in self.blocks._free)

    @invariant()
    def only_full_blocks_are_shared(self) -> None:
        for s in self.live:
            assert len(set(s.block_table)) == len(s.block_table)
            for index, block in enumerate(s.block_table):
                if self.blocks.blocks[block].ref_count > 1:
                    assert (index + 1) * BLOCK_SIZE <= s.num_computed
                    assert self.blocks.blocks[block].hash is not None

    @invariant()
    def names_and_blocks_are_one_to_one(self) -> None:
        named = {id: b.hash for id, b in enumerate(self.blocks.blocks) if b.hash is not None}
        assert {h: id for id, h in named.items()} == self.blocks._by_hash

    def teardown(self) -> None:
        for s in self.live:
            self.blocks.release(s)
        assert self.blocks.num_free == NUM_BLOCKS


Blocks.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_no_block_leaks_or_is_shared_wrongly = Blocks.TestCase


def test_a_shared_prefix_is_found_but_one_token_is_left_to_compute() -> None:
    blocks = BlockManager(8, 4)
    first = sequence([1, 2, 3, 4, 5, 6, 7, 8])
    compute(blocks, first)
    twin = sequence([1, 2, 3, 4, 5, 6, 7, 8])
    assert blocks.adopt_prefix(twin) == 4  # not 8: the last token's logits are needed
    assert twin.block_table == first.block_table[:1]
    longer = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert blocks.adopt_prefix(longer) == 8


def test_a_block_that_is_not_published_is_not_found() -> None:
    blocks = BlockManager(8, 4)
    running = sequence([1, 2, 3, 4, 5])
    blocks.grow(running, 5)  # its step is still under way
    assert blocks.adopt_prefix(sequence([1, 2, 3, 4, 5])) == 0


def test_the_same_tokens_after_another_beginning_are_not_found() -> None:
    blocks = BlockManager(8, 2)
    compute(blocks, sequence([1, 2, 3, 4]))
    assert blocks.adopt_prefix(sequence([9, 9, 3, 4, 5])) == 0


def test_sequences_of_different_roots_or_salts_share_nothing() -> None:
    blocks = BlockManager(8, 2)
    compute(blocks, sequence([1, 2, 3], root=b"project-a"))
    assert blocks.adopt_prefix(sequence([1, 2, 3], root=b"project-b")) == 0
    assert blocks.adopt_prefix(sequence([1, 2, 3], root=b"project-a")) == 2
    one, other = BlockManager(4, 2, salt=b"one"), BlockManager(4, 2, salt=b"other")
    for manager in (one, other):
        compute(manager, sequence([1, 2, 3]))
    assert one._by_hash.keys().isdisjoint(other._by_hash)


def test_a_hash_that_collides_is_caught_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.engine.core.block_manager._chain", lambda parent, tokens: b"always the same")
    blocks = BlockManager(8, 2)
    compute(blocks, sequence([1, 2, 3]))
    assert blocks.adopt_prefix(sequence([7, 8, 9])) == 0


def test_the_tail_of_the_sequence_freed_longest_ago_is_reused_first() -> None:
    blocks = BlockManager(6, 2)
    old, young = sequence([1, 2, 3, 4]), sequence([5, 6, 7, 8])
    compute(blocks, old)
    compute(blocks, young)
    blocks.release(old)
    blocks.release(young)
    compute(blocks, sequence([9] * 6))  # two blocks never held anything; the third evicts
    assert blocks.adopt_prefix(sequence([1, 2, 3, 4, 0])) == 2  # the head of the old one is still there
    assert blocks.adopt_prefix(sequence([5, 6, 7, 8, 0])) == 4


def test_a_block_in_use_is_never_evicted() -> None:
    blocks = BlockManager(3, 2)
    holder = sequence([1, 2, 3, 4])
    compute(blocks, holder)
    assert not blocks.grow(sequence([5, 6, 7]), 3)
    assert blocks.adopt_prefix(sequence([1, 2, 3, 4, 5])) == 4


def test_without_a_prefix_cache_nothing_is_found() -> None:
    blocks = BlockManager(8, 2, prefix_cache=False)
    compute(blocks, sequence([1, 2, 3]))
    assert blocks.adopt_prefix(sequence([1, 2, 3])) == 0


def test_each_block_of_a_prompt_is_hashed_once_however_often_it_waits_and_in_however_many_chunks_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = []
    monkeypatch.setattr(block_manager, "_chain", lambda parent, tokens: hashed.append(tokens) or _chain(parent, tokens))
    blocks = BlockManager(60, BLOCK_SIZE)
    s = sequence(list(range(150)))
    for _ in range(20):
        blocks.adopt_prefix(s)
    for _ in range(75):
        assert compute(blocks, s, 2)
    assert len(hashed) == 50
    blocks.release(s)
    assert blocks.adopt_prefix(s) == 147
    assert len(hashed) == 50


def test_what_is_disowned_after_a_preemption_is_not_found_and_is_zeroed() -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    s = sequence([1, 2, 3, 4, 5, 6, 7])
    assert compute(blocks, s)
    table = list(s.block_table)
    blocks.release(s)
    blocks.dirty.clear()
    blocks.disown(s)
    assert blocks.adopt_prefix(sequence([1, 2, 3, 4, 5, 6, 7], 1)) == 0
    assert sorted(blocks.dirty) == sorted(table[:2])
