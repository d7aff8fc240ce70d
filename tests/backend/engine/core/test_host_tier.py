"""The host tier's bookkeeping against its promises, whatever is done to it in whatever order."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.host_tier import HostClear, HostLoad, HostSettle, HostStore, HostTier, Load
from backend.engine.core.sequence import Sequence
from tests.backend.tiny import greedy

NUM_BLOCKS, BLOCK_SIZE, SLOTS = 5, 2, 4
PROMPTS = st.lists(st.integers(0, 1), min_size=2, max_size=4).map(lambda pairs: [x for x in pairs for _ in range(2)])
ZERO = ()


def sequence(tokens: list[int], id: int = 0, root: bytes = b"") -> Sequence:
    return Sequence(id, tokens, greedy(1), arrival=id, cache_root=root)


def manager(slots: int = SLOTS, num_blocks: int = NUM_BLOCKS) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, tier=HostTier(slots, 100, BLOCK_SIZE))


class Tiers(RuleBasedStateMachine):
    """Blocks and slots are simulated: each has the tokens that were written to it, with their root."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = manager()
        assert self.blocks.tier is not None
        self.tier = self.blocks.tier
        self.device: dict[int, tuple[object, ...]] = dict.fromkeys(range(NUM_BLOCKS), ZERO)
        self.host: dict[int, tuple[object, ...]] = dict.fromkeys(range(SLOTS), ZERO)
        self.live: list[Sequence] = []
        self.loading: list[tuple[Sequence, Load]] = []
        self.kept: list[list[bytes]] = []
        self.underway: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self.next_id = 0

    def tidy(self) -> None:
        for operation in self.tier.todo:
            match operation:
                case HostStore(pairs):
                    self.store(pairs)
                case HostLoad(number, stores, pairs):
                    self.underway[number] = stores, pairs
                case HostSettle(number):
                    self.make(number)
                case HostClear(slots):
                    for number in list(self.underway):
                        self.make(number)
                    self.host |= dict.fromkeys(slots, ZERO)
        self.tier.todo = []
        for block in self.blocks.dirty:
            coming = [b for _, pairs in self.underway.values() for _, b in pairs]
            assert block not in coming, "what is on its way must not be zeroed"
            self.device[block] = ZERO
        self.blocks.dirty = []

    def make(self, number: int) -> None:
        """A load, and those before it. No earlier than has to be: stores and steps do not wait for it."""
        for earlier in [n for n in self.underway if n <= number]:
            stores, pairs = self.underway.pop(earlier)
            self.store(stores)
            for slot, block in pairs:
                self.device[block] = self.host[slot]

    def store(self, pairs: list[tuple[int, int]]) -> None:
        for block, slot in pairs:
            assert self.device[block] != ZERO
            self.host[slot] = self.device[block]

    @rule(tokens=PROMPTS, more=st.integers(0, 1), root=st.sampled_from([b"", b"", b"other"]))
    def add(self, tokens: list[int], more: int, root: bytes) -> None:
        s = sequence([*tokens, more], self.next_id, root)
        self.next_id += 1
        recall = self.blocks.recallable(s)
        if recall is None:
            self.blocks.adopt_prefix(s)
            self.check(s)
            self.live.append(s)
        elif recall.load is None and self.blocks.has_room(recall):
            self.loading.append((s, self.blocks.recall(s, recall)))
        self.tidy()

    def check(self, s: Sequence) -> None:
        for index, block in enumerate(s.block_table[: s.num_computed // BLOCK_SIZE]):
            assert self.device[block] == (s.cache_root, *s.tokens[: (index + 1) * BLOCK_SIZE])

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), arrives=st.booleans())
    def end_load(self, data: st.DataObject, arrives: bool) -> None:
        entry = data.draw(st.sampled_from(self.loading))
        self.loading.remove(entry)
        s, load = entry
        self.tier.end(load, 1.0 if arrives else None)
        assert load.over
        if arrives:
            self.blocks.land(s)
            self.live.append(s)
        else:
            self.blocks.release(s)
        self.tidy()
        if arrives:
            self.check(s)

    @rule(tokens=PROMPTS, keeps=st.booleans())
    def serve(self, tokens: list[int], keeps: bool) -> None:
        """A whole one, where there is room."""
        self.add(tokens, 0, b"")
        if self.live and self.live[-1].id == self.next_id - 1:
            s = self.live[-1]
            self.compute(s, s.num_uncomputed, 0)
            self.part(s, keeps=keeps)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6), token=st.integers(0, 1))
    def step(self, data: st.DataObject, count: int, token: int) -> None:
        self.compute(data.draw(st.sampled_from(self.live)), count, token)

    def compute(self, s: Sequence, count: int, token: int) -> None:
        if s.num_uncomputed == 0:
            s.tokens.append(token)
        count, start = min(count, s.num_uncomputed), s.num_computed
        if not self.blocks.grow(s, count):
            return
        self.tidy()
        s.num_computed += count
        for index in range(start // BLOCK_SIZE, len(s.block_table)):
            written = s.tokens[: min(s.num_computed, (index + 1) * BLOCK_SIZE)]
            self.device[s.block_table[index]] = (s.cache_root, *written)
        self.blocks.publish(s)
        self.check(s)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keeps=st.booleans())
    def leave(self, data: st.DataObject, keeps: bool) -> None:
        """Ended, or preempted and kept."""
        self.part(data.draw(st.sampled_from(self.live)), keeps=keeps)

    def part(self, s: Sequence, *, keeps: bool) -> None:
        self.live.remove(s)
        if keeps and self.tier.can_keep(s.block_hashes):
            self.kept.append(list(s.block_hashes))
            self.tier.keep(s.block_hashes)
        self.blocks.release(s)
        self.tidy()

    @precondition(lambda self: self.kept)
    @rule()
    def unkeep(self) -> None:
        self.tier.unkeep(self.kept.pop(0))

    @precondition(lambda self: self.live and self.next_id % 8 == 5)
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.live))
        self.blocks.disown(s)
        self.tidy()
        names = [(name, tokens) for name, tokens in s.chain]
        assert not any(self.tier.holds(*each) for each in names)

    @precondition(lambda self: self.next_id % 8 == 7)
    @rule()
    def scrub(self) -> None:
        for block in self.blocks.forget_free():
            self.device[block] = ZERO
        self.tier.drop_all()
        self.tidy()
        assert self.tier.used == 0
        assert set(self.host.values()) == {ZERO}

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        holders = Counter(b for s in [*self.live, *(s for s, _ in self.loading)] for b in s.block_table)
        for id, block in enumerate(self.blocks.blocks):
            assert block.ref_count == holders[id]
            assert (id in self.blocks._free) == (block.ref_count == 0)
        held = [slot for slot, _ in [*self.tier._held.values(), *self.tier._kept.values()]]
        assert sorted(held + self.tier._free) == list(range(SLOTS)), "each slot is free or holds one block"
        assert not self.tier._held.keys() & self.tier._kept.keys()

    @invariant()
    def what_is_free_is_zero(self) -> None:
        assert all(self.host[slot] == ZERO for slot in self.tier.free_of(range(SLOTS)))
        for id, block in enumerate(self.blocks.blocks):
            if not block.ref_count and block.hash is None:
                assert self.device[id] == ZERO


Tiers.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTiers = Tiers.TestCase


def evicted(blocks: BlockManager, tokens: list[int]) -> Sequence:
    """Compute a prompt, end it, and have another take all blocks."""
    s = sequence(tokens)
    assert blocks.grow(s, len(tokens))
    s.num_computed = len(tokens)
    blocks.publish(s)
    blocks.release(s)
    other = sequence([9] * (len(blocks.blocks) * BLOCK_SIZE), id=1)
    assert blocks.grow(other, len(other.tokens))
    blocks.release(other)
    return s


def test_a_block_that_is_evicted_is_found_again_with_its_tokens_and_root_only() -> None:
    blocks = manager()
    evicted(blocks, [1, 2, 3, 4, 5])
    found = blocks.recallable(sequence([1, 2, 3, 4, 5]))
    assert found is not None
    assert found.blocks == [None, None]
    assert blocks.recallable(sequence([1, 2, 3, 4, 5], root=b"other")) is None
    assert blocks.recallable(sequence([1, 3, 3, 4, 5])) is None


def test_a_hash_that_collides_is_caught_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = manager()
    monkeypatch.setattr("backend.engine.core.block_manager._chain", lambda parent, tokens: b"same")
    evicted(blocks, [1, 2, 3])
    assert blocks.recallable(sequence([1, 2, 3])) is not None
    assert blocks.recallable(sequence([2, 1, 3])) is None


def test_the_least_recently_used_makes_room() -> None:
    tier = HostTier(2, 100, BLOCK_SIZE)
    slots = [tier.admit(name, b"") for name in (b"a", b"b")]
    assert tier.admit(b"a", b"") is None, "it is there, and is used again"
    assert tier.admit(b"c", b"") == slots[1]
    assert [tier.holds(name, b"") for name in (b"a", b"b", b"c")] == [True, False, True]


def test_what_is_kept_for_a_sequence_is_not_evicted_until_it_is_back() -> None:
    tier = HostTier(2, 100, BLOCK_SIZE)
    tier.keep([b"a", b"b"])
    assert not tier.can_keep([b"c"])
    assert tier.can_keep([b"a"])
    assert tier.admit(b"x", b"") is not None
    assert tier.admit(b"a", b"") is not None
    assert tier.admit(b"b", b"") is not None, "in the place of the one that nobody waits for"
    assert tier.admit(b"y", b"") is None, "full"
    tier.unkeep([b"a", b"b"])
    assert tier.admit(b"y", b"") is not None


def test_two_sequences_that_keep_the_same_block_both_have_to_be_back() -> None:
    tier = HostTier(1, 100, BLOCK_SIZE)
    tier.keep([b"a"])
    tier.keep([b"a"])
    assert tier.admit(b"a", b"") is not None
    tier.unkeep([b"a"])
    assert tier.admit(b"y", b"") is None
    tier.unkeep([b"a"])
    assert tier.admit(b"y", b"") is not None


@pytest.mark.parametrize(
    ("copying", "computing", "once", "twice"),
    [(None, 10.0, True, True), (1e6, None, True, True), (1e6, 10.0, True, True), (1e3, 15.0, True, False)],
)
def test_copies_pay_while_they_are_faster_than_computing(
    copying: float | None, computing: float | None, once: bool, twice: bool
) -> None:
    tier = HostTier(4, 100, BLOCK_SIZE)  # 50 bytes a token
    if copying is not None:
        tier.copying.take(copying, 1.0)
    if computing is not None:
        tier.computing.take(computing, 1.0)
    assert (tier.pays(), tier.pays(copies=2)) == (once, twice)


def test_where_copies_do_not_pay_nothing_is_copied_but_now_and_then_to_measure_again() -> None:
    tier = HostTier(200, 100, BLOCK_SIZE)
    tier.copying.take(1.0, 1.0)
    tier.computing.take(1e6, 1.0)
    names = [bytes([i]) for i in range(128)]
    assert sum(tier.admit(name, b"") is not None for name in names) == 2


def test_a_kept_block_is_copied_whatever_pays_now() -> None:
    tier = HostTier(2, 100, BLOCK_SIZE)
    tier.keep([b"a"])
    tier.copying.take(1.0, 1.0)
    tier.computing.take(1e6, 1.0)
    assert tier.admit(b"a", b"") is not None


def test_the_rate_of_prompts_is_measured_of_steps_that_are_mostly_prompts() -> None:
    now = iter([0.0, 1.0, 2.0, 10.0, 10.0, 12.0])
    tier = HostTier(2, 100, BLOCK_SIZE, now=lambda: next(now))
    tier.begin_step(100, 110)  # at 0
    tier.begin_step(2, 64)  # at 1, mostly decodes
    tier.end_step()  # at 2
    assert tier.computing.value == 50
    tier.end_step()
    tier.begin_step(80, 80)  # at 10
    tier.end_step()
    assert tier.computing.value == pytest.approx((0.8 * 100 + 80) / (0.8 * 2 + 2))


def test_one_that_begins_with_blocks_on_their_way_is_told_of_that_load() -> None:
    blocks = manager()
    evicted(blocks, [1, 2, 3, 4, 5])
    first, second = sequence([1, 2, 3, 4, 5], id=2), sequence([1, 2, 3, 4, 7], id=3)
    recall = blocks.recallable(first)
    assert recall is not None
    load = blocks.recall(first, recall)
    waiting = blocks.recallable(second)
    assert waiting is not None
    assert waiting.load is load


def test_a_tier_of_one_slot_does_not_overwrite_what_it_is_about_to_read() -> None:
    blocks = manager(slots=1, num_blocks=3)
    evicted(blocks, [1, 2, 3])
    other = sequence([5] * 6, id=4)
    assert blocks.grow(other, 6)
    other.num_computed = 6
    blocks.publish(other)
    blocks.release(other)
    assert blocks.tier is not None
    blocks.tier.todo = []
    s = sequence([1, 2, 3], id=5)
    recall = blocks.recallable(s)
    assert recall is not None
    blocks.recall(s, recall)
    (operation,) = blocks.tier.todo
    assert isinstance(operation, HostLoad)
    assert operation.stores == []
