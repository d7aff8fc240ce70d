"""An engine with a host tier says what one without says, whatever is evicted, loaded, swapped or given up meanwhile."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backend.engine.cache.attention import KVCache
from backend.engine.cache.host_pages import HostPages
from backend.engine.core.host_tier import HostClear, HostLoad, HostOperation, HostSettle
from backend.engine.core.sequence import Status
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.engine import Engine
from backend.engine.parallel.computing import require_host_memory
from backend.engine_config import CacheSize, EngineConfig, size_cache
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy, run, tiny_engine

BLOCK = 4
BLOCK_BYTES = 2 * 2 * 2 * 8 * 4 * BLOCK  # layers, keys and values, KV heads, width, float32, tokens
ROOM = 64 * BLOCK_BYTES


def with_tier(model: Decoder, blocks: int = 16, host: int = ROOM, **changes: Any) -> Engine:
    engine = tiny_engine(model, block_size=BLOCK, num_blocks=blocks, host_cache_bytes=host, **changes)
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]  # whatever this machine measures
    return engine


@dataclass
class Slow:
    """Loads that arrive only after so many looks, and are made only then, or when what comes next waits for them."""

    own: HostPages
    looks: int = 5
    late: dict[int, HostLoad] = field(default_factory=dict)
    looked: int = 0

    @property
    def slot_bytes(self) -> int:
        return self.own.slot_bytes

    def do(self, operation: HostOperation) -> None:
        if isinstance(operation, HostLoad):
            self.late[operation.number] = operation
            return
        if isinstance(operation, HostClear | HostSettle):
            self.make()
        self.own.do(operation)

    def make(self) -> None:
        """In order, as on a stream."""
        self.looked = 0
        for operation in self.late.values():
            self.own.do(operation)
        self.late.clear()

    def arrived(self, number: int) -> float | None:
        if number in self.late:
            self.looked += 1
            if self.looked <= self.looks:
                return None
            self.make()
        return self.own.arrived(number)

    def residue(self, slots: list[int]) -> int:
        return self.own.residue(slots)

    def forget(self) -> None:
        self.own.forget()


def slow(model: Decoder, **changes: Any) -> tuple[Engine, Slow]:
    settings: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "num_blocks": 16, **changes}
    config = EngineConfig(model="", block_size=BLOCK, host_cache_bytes=ROOM, **settings)
    size = size_cache(config, model.config, 4)
    pages = KVCache(model.config, size.num_blocks, BLOCK, model.embedding.dtype, "cpu")
    host = Slow(HostPages(pages, size.host_blocks))
    engine = Engine(model, config, size, runner=ModelRunner(model, pages), host=host)
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]
    return engine, host


def prompts(count: int, length: int = 41, seed: int | None = None) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 320) for _ in range(length)] for _ in range(count)]


def alone(model: Decoder, asked: list[list[int]]) -> list[list[int]]:
    return [generate(tiny_engine(model), [prompt])[0] for prompt in asked]


def one_by_one(engine: Engine, asked: list[list[int]]) -> list[list[int]]:
    return [generate(engine, [prompt])[0] for prompt in asked]


def assert_whole(engine: Engine) -> None:
    """Nothing is held, and nothing is left once it is scrubbed."""
    assert not engine.has_work
    assert engine.blocks.num_used == 0
    assert not engine.scheduler.loading
    assert not engine.blocks.tier or not (engine.blocks.tier.loads or engine.blocks.tier._wanted)
    assert engine.scrub() == 0
    assert engine.stats.host_used_blocks == 0


@pytest.mark.parametrize("budget", [7, 64])
def test_prompts_that_were_evicted_come_back_from_the_host_and_say_the_same(model: Decoder, budget: int) -> None:
    asked = prompts(4)
    engine = with_tier(model, max_num_batched_tokens=budget, max_num_seqs=min(budget, 16))
    expected = alone(model, asked)
    assert one_by_one(engine, asked) == expected
    assert engine.stats.host_hits == 0
    assert one_by_one(engine, asked) == expected
    assert engine.stats.host_hits >= 3 * 20
    assert engine.stats.prefix_hits >= engine.stats.host_hits
    assert engine.stats.host_bytes_loaded == engine.stats.host_hits // BLOCK * BLOCK_BYTES
    assert_whole(engine)


def test_all_at_once_and_again_with_copies_that_take_their_time(model: Decoder) -> None:
    asked = prompts(6, 30)
    engine, _ = slow(model, num_blocks=24)
    expected = alone(model, asked)
    for _ in range(3):
        assert generate(engine, asked) == expected
    assert engine.stats.host_hits > 0
    assert_whole(engine)


def test_an_answer_goes_on_while_blocks_of_another_are_on_their_way(model: Decoder) -> None:
    first, other, *fill = prompts(5)
    engine, host = slow(model, num_blocks=26)
    one_by_one(engine, [first, *fill])
    host.looks = 20
    engine.add(100, other, greedy(40))
    engine.step()
    engine.add(101, first, greedy(4))
    stored = engine.stats.host_bytes_stored
    got = [[item.id for item in engine.step()] for _ in range(20)]
    assert engine.scheduler.loading
    assert got == [[100]] * 20
    assert engine.stats.host_bytes_stored > stored, "blocks were evicted meanwhile, and nobody waited"
    tokens = run(engine)
    assert tokens[101] == alone(model, [first])[0][:4]
    assert_whole(engine)


def test_two_that_begin_alike_load_that_once(model: Decoder) -> None:
    first, *fill = prompts(4)
    engine, _ = slow(model, num_blocks=32)
    one_by_one(engine, [first, *fill])
    loaded = engine.stats.host_bytes_loaded
    alike = [first, [*first[:-1], 7]]
    assert generate(engine, alike) == alone(model, alike)
    assert engine.stats.host_bytes_loaded - loaded <= 10 * BLOCK_BYTES
    assert_whole(engine)


def swapped(model: Decoder, engine: Engine, asked: list[list[int]], **how: Any) -> None:
    params = greedy(30, **how)
    expected = [generate(tiny_engine(model), [prompt], params)[0] for prompt in asked]
    assert generate(engine, asked, params) == expected


@pytest.mark.parametrize("late", [False, True])
def test_preempted_sequences_are_swapped_and_say_the_same(model: Decoder, late: bool) -> None:
    engine = slow(model)[0] if late else with_tier(model)
    swapped(model, engine, prompts(4, 22))
    assert engine.stats.preemptions > 0
    assert engine.stats.swaps > 0
    assert engine.stats.host_hits > 0
    assert_whole(engine)


def test_seeded_draws_are_the_same_when_swapped(model: Decoder) -> None:
    engine = with_tier(model)
    asked = prompts(4, 22)
    params = greedy(30, temperature=0.9, seed=5)
    expected = [generate(tiny_engine(model), [prompt], params)[0] for prompt in asked]
    assert generate(engine, asked, params) == expected
    assert engine.stats.swaps > 0


def test_where_the_tier_is_full_they_are_computed_again(model: Decoder) -> None:
    engine = with_tier(model, host=2 * BLOCK_BYTES)
    swapped(model, engine, prompts(4, 22))
    assert engine.stats.preemptions > 0
    assert engine.stats.swaps == 0
    assert_whole(engine)


def test_where_copies_do_not_pay_they_are_computed_again(model: Decoder) -> None:
    engine = with_tier(model)
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: False  # type: ignore[method-assign]
    swapped(model, engine, prompts(4, 22))
    assert engine.stats.preemptions > 0
    assert (engine.stats.swaps, engine.stats.host_bytes_stored) == (0, 0)


def test_what_is_cancelled_while_it_is_swapped_leaves_nothing_behind(model: Decoder) -> None:
    engine = with_tier(model)
    asked = prompts(4, 22)
    params = greedy(30)
    for id, prompt in enumerate(asked):
        engine.add(id, prompt, params)
    tokens: dict[int, list[int | None]] = {id: [] for id in range(4)}
    gone = None
    while engine.has_work:
        for item in engine.step():
            tokens[item.id].append(item.token)
        if gone is None and (kept := [s.id for s in engine.scheduler.waiting if s.kept]):
            gone = kept[0]
            engine.abort(gone)
    assert gone is not None
    for id in {0, 1, 2, 3} - {gone}:
        assert tokens[id] == generate(tiny_engine(model), [asked[id]], params)[0]
    assert_whole(engine)


def test_what_is_cancelled_on_its_way_from_the_host_leaves_nothing_behind(model: Decoder) -> None:
    first, *others = prompts(4)
    engine, host = slow(model)
    host.looks = 1000
    one_by_one(engine, [first, *others])
    engine.add(50, first, greedy(12))
    engine.step()
    (sequence,) = engine.scheduler.loading
    assert sequence.status is Status.LOADING
    engine.abort(50)
    assert not host.late, "what comes next waits for the copy"
    host.looks = 0
    assert one_by_one(engine, others) == alone(model, others)
    assert one_by_one(engine, [first]) == alone(model, [first])
    assert_whole(engine)


def test_one_that_waits_for_the_load_of_another_goes_on_when_that_is_cancelled(model: Decoder) -> None:
    first, *fill = prompts(4)
    engine, host = slow(model, num_blocks=32)
    one_by_one(engine, [first, *fill])
    host.looks = 1000
    engine.add(50, first, greedy(12))
    engine.step()
    engine.add(51, first, greedy(12))
    engine.step()
    engine.abort(50)
    host.looks = 0
    assert run(engine)[51] == alone(model, [first])[0]
    assert_whole(engine)


def test_another_project_or_salt_finds_nothing_on_the_host(model: Decoder) -> None:
    first, *fill = prompts(4)
    engine = with_tier(model)
    one_by_one(engine, [first, *fill])
    engine.add(9, first, greedy(12), cache_root=b"another")
    assert run(engine)[9] == alone(model, [first])[0]
    assert engine.stats.host_hits == 0


def test_a_scrub_zeroes_the_host_and_tells_of_a_byte_that_is_left(model: Decoder) -> None:
    engine, host = slow(model)
    one_by_one(engine, prompts(4))
    assert engine.stats.host_used_blocks > 0
    assert engine.num_scrubbed == engine.blocks.num_free + 64
    assert engine.scrub() == 0
    assert int(host.own._slots.count_nonzero()) == 0
    host.own._slots[3, 5] = 1
    assert engine.scrub() == 1


def test_a_scrub_while_sequences_are_swapped_and_on_their_way_changes_no_answer(model: Decoder) -> None:
    asked = prompts(4, 22)
    params = greedy(30)
    expected = [generate(tiny_engine(model), [prompt], params)[0] for prompt in asked]
    engine, _ = slow(model)
    for id, prompt in enumerate(asked):
        engine.add(id, prompt, params)
    tokens: dict[int, list[int | None]] = {}
    steps = 0
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
        steps += 1
        if steps % 9 == 0:
            assert engine.scrub() == 0
    assert [tokens[id] for id in range(4)] == expected
    assert_whole(engine)


def test_after_a_sleep_the_host_holds_nothing_and_answers_are_the_same(model: Decoder) -> None:
    asked = prompts(4)
    engine = with_tier(model)
    expected = one_by_one(engine, asked)
    host = engine._host
    assert isinstance(host, HostPages)
    engine.sleep()
    assert engine.stats.host_used_blocks == 0
    assert int(host._slots.count_nonzero()) == 0
    engine.wake()
    assert one_by_one(engine, asked) == expected
    assert engine.stats.host_hits == 0
    assert one_by_one(engine, asked) == expected
    assert engine.stats.host_hits > 0


def test_numbers_that_are_none_leave_the_host_too(model: Decoder) -> None:
    first, *fill = prompts(4)
    engine = with_tier(model)
    one_by_one(engine, [first, *fill])
    assert engine.blocks.tier is not None
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    engine.add(9, first, greedy(12))
    while not engine.scheduler.running:
        engine.step()
    runner.cache.keys.index_fill_(1, runner_blocks(engine), float("nan"))
    (item,) = [item for item in engine.step() if item.id == 9]
    assert item.token is None
    sequence_chain = engine.stats.host_hits
    assert generate(engine, [first])[0] == alone(model, [first])[0]
    assert engine.stats.host_hits == sequence_chain, "nothing of it was found"


def runner_blocks(engine: Engine) -> Any:
    import torch

    return torch.tensor([block for s in engine.scheduler.running for block in s.block_table])


def test_an_engine_without_a_tier_has_none_of_it(model: Decoder) -> None:
    engine = tiny_engine(model)
    assert engine.blocks.tier is None
    assert (engine.stats.host_blocks, engine.num_scrubbed) == (0, engine.blocks.num_free)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host_cache_bytes": -1}, "is negative; set --host-cache-bytes"),
        ({"host_cache_bytes": 1 << 20, "prefix_cache": False}, "leave --no-prefix-cache or --host-cache-bytes out"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineConfig(model="", **changes)


def test_a_tier_that_holds_no_block_is_refused(model: Decoder) -> None:
    config = EngineConfig(model="", block_size=BLOCK, num_blocks=4, host_cache_bytes=BLOCK_BYTES - 1)
    with pytest.raises(ConfigError, match=f"to at least {BLOCK_BYTES}, or to 0"):
        size_cache(config, model.config, 4)


def test_a_tier_of_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.engine.parallel.computing.available_host_memory", lambda: 3 << 30)
    require_host_memory(EngineConfig(model="", host_cache_bytes=1 << 30))
    with pytest.raises(ConfigError, match=f"to at most {1 << 29}"):
        require_host_memory(EngineConfig(model="", host_cache_bytes=1 << 30, tensor_parallel_size=2))


def test_an_engine_from_a_checkpoint_has_the_tier_that_was_asked_for(folder: Path) -> None:
    config = EngineConfig(model=str(folder), num_blocks=16, block_size=BLOCK, host_cache_bytes=ROOM)
    engine = Engine.from_checkpoint(Checkpoint(folder), config)
    assert engine.stats.host_blocks == 64
    asked = prompts(4)
    first = one_by_one(engine, asked)
    assert engine.stats.host_bytes_stored > 0
    assert one_by_one(engine, asked) == first


def test_as_many_slots_as_the_least_stage_has_room_for(model: Decoder) -> None:
    from backend.engine_config import of_all_stages

    config = EngineConfig(model="", block_size=BLOCK, num_blocks=8, host_cache_bytes=ROOM)
    found = of_all_stages(CacheSize(8, 32, 64), config, model.config, lambda own: min(own, 50), 4)
    assert (found.num_blocks, found.host_blocks) == (8, 50)


def test_one_of_a_better_priority_whose_blocks_are_on_the_host_does_not_wait_for_batch_work(model: Decoder) -> None:
    first, *fill = prompts(4)
    engine, _ = slow(model)
    one_by_one(engine, [first, *fill])
    batch = prompts(2, 20)
    for id, prompt in enumerate(batch):
        engine.add(100 + id, prompt, greedy(30), priority=5)
    for _ in range(8):
        engine.step()
    engine.add(7, first, greedy(12), priority=0)
    ended: list[int] = []
    tokens: dict[int, list[int | None]] = {}
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
            ended += [item.id] if item.finish else []
    assert ended[0] == 7
    assert tokens[7] == alone(model, [first])[0]
    assert engine.stats.preemptions > 0
    assert_whole(engine)
