"""Asleep, an engine holds nothing; awake again, it is the engine it was."""

import gc
import shutil
import weakref
from pathlib import Path

import pytest
import torch

from backend.engine.cpu.model_runner import Done, ModelRunner
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from backend.errors import Asleep, CannotSleep, CannotWake, ModelError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.gpu.test_graph_runner import ahead
from tests.backend.tiny import generate, greedy, run, tiny_engine

PROMPTS = [[5, 6, 7] * 9, [1, 2, 3], [9] * 40]


def engine_of(folder: Path) -> Engine:
    return Engine.from_checkpoint(
        Checkpoint(folder), EngineConfig(model=str(folder), num_blocks=64, max_model_len=256, threads=1)
    )


def test_after_a_sleep_the_tokens_are_those_from_before(folder: Path) -> None:
    engine = engine_of(folder)
    expected = generate(engine, PROMPTS)
    for _ in range(3):
        engine.sleep()
        engine.wake()
        assert generate(engine, PROMPTS) == expected


def test_asleep_it_holds_no_weight_key_or_value(folder: Path) -> None:
    engine = engine_of(folder)
    generate(engine, PROMPTS)
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    held = sum(p.numel() * p.element_size() for p in runner.model.parameters())
    cached = sum(t.numel() * t.element_size() for t in (runner.cache.keys, runner.cache.values))
    keys = runner.cache.keys
    assert keys.abs().sum() > 0
    assert engine.sleep() == held + cached
    assert keys.abs().sum() == 0  # whoever gets that memory next finds nothing of ours
    assert [t.numel() for t in (*runner.model.parameters(), runner.cache.keys, runner.cache.values)] == [0] * (
        len(list(runner.model.parameters())) + 2
    )


def test_a_prefix_from_before_is_not_found_after(folder: Path) -> None:
    engine = engine_of(folder)
    generate(engine, PROMPTS)
    engine.sleep()
    engine.wake()
    hits = engine.stats.prefix_hits
    generate(engine, [[5, 6, 7] * 9])
    assert engine.stats.prefix_hits == hits


def test_asleep_it_takes_no_sequence_and_sleeping_or_waking_twice_is_harmless(folder: Path) -> None:
    engine = engine_of(folder)
    engine.wake()
    assert engine.sleep() > 0
    assert engine.sleep() == 0
    with pytest.raises(Asleep):
        engine.add(0, [1, 2], greedy(2))
    assert not engine.has_work
    engine.wake()
    engine.wake()
    assert len(generate(engine, [[1, 2]])[0]) == 12


def test_with_sequences_there_it_does_not_sleep_and_they_go_on(model: Decoder) -> None:
    expected = generate(tiny_engine(model), PROMPTS[:1])
    engine = tiny_engine(model)
    engine.add(0, PROMPTS[0], greedy(12))
    first = [item.token for item in engine.step()]
    with pytest.raises(CannotSleep, match="1 sequences are running; try again when they have ended"):
        engine.sleep()
    assert not engine.asleep
    assert first + run(engine)[0] == expected[0]


def test_the_weights_of_a_model_that_cannot_be_loaded_again_stay(model: Decoder) -> None:
    engine = tiny_engine(model)
    expected = generate(engine, PROMPTS)
    before = model.embedding.clone()
    engine.sleep()
    assert torch.equal(model.embedding, before)
    engine.wake()
    assert generate(engine, PROMPTS) == expected


def test_a_checkpoint_that_is_gone_keeps_the_engine_asleep_until_it_is_back(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "model")
    engine = engine_of(moved)
    expected = generate(engine, PROMPTS)
    engine.sleep()
    weights = moved / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError):
        engine.wake()
    assert engine.asleep
    with pytest.raises(Asleep):
        engine.add(0, [1], greedy(1))
    (tmp_path / "elsewhere").rename(weights)
    engine.wake()
    assert generate(engine, PROMPTS) == expected


class Counting:
    """Gives nothing back, and counts."""

    def __init__(self) -> None:
        self.slept = 0

    def sleep(self, on_progress: object) -> int:
        self.slept += 1
        return 1

    def wake(self, on_progress: object) -> None:
        pass


@pytest.mark.parametrize("end", ["aborted", "finished"])
def test_a_step_that_is_still_on_its_way_is_waited_for(model: Decoder, end: str) -> None:
    engine = ahead(model)
    engine._sleeper = sleeper = Counting()
    expected = generate(ahead(model), PROMPTS[1:2], greedy(4))
    engine.add(0, PROMPTS[1], greedy(4 if end == "finished" else 100))
    while engine._sequences:
        engine.step()
        if end == "aborted" and engine.stats.steps == 3:
            engine.abort(0)
    engine._launched.extend([] if engine._launched else [([], Done([], [], [], []))])
    assert engine.has_work
    assert engine.sleep() == 1
    assert (sleeper.slept, engine.has_work) == (1, False)
    engine.wake()
    assert generate(engine, PROMPTS[1:2], greedy(4)) == expected


class NoRoom:
    def sleep(self, on_progress: object) -> int:
        raise CannotSleep("no room")

    def wake(self, on_progress: object) -> None:
        raise CannotWake("no room")


def test_a_sleeper_that_finds_no_room_leaves_the_engine_awake(model: Decoder) -> None:
    engine = tiny_engine(model)
    engine._sleeper = NoRoom()
    with pytest.raises(CannotSleep):
        engine.sleep()
    assert generate(engine, [[1, 2]])
    engine._sleeper = None
    with pytest.raises(CannotSleep):
        engine.sleep()


def test_progress_ends_at_the_whole(folder: Path) -> None:
    engine = engine_of(folder)
    seen: list[tuple[int, int]] = []
    engine.sleep(lambda done, total: seen.append((done, total)))
    engine.wake(lambda done, total: seen.append((done, total)))
    assert seen
    assert seen[-1][0] == seen[-1][1] > 0


def test_what_is_scrubbed_after_a_sleep_is_the_memory_that_is_used_then(folder: Path) -> None:
    engine = engine_of(folder)
    engine.sleep()
    engine.wake()
    generate(engine, PROMPTS)
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    assert runner.cache.keys.abs().sum() > 0
    assert engine.scrub() == 0
    assert runner.cache.keys.abs().sum() == runner.cache.values.abs().sum() == 0


def test_no_old_memory_is_kept_by_whoever_zeroes_it(folder: Path) -> None:
    engine = engine_of(folder)
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    generate(engine, PROMPTS)
    storage = weakref.ref(runner.cache.keys.untyped_storage())
    engine.sleep()
    gc.collect()
    assert storage() is None
