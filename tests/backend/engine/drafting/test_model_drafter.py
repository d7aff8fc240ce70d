"""A smaller model guesses: the tokens are those of the plain engine, on the plain runner and on the one that works
ahead, and nothing of a sequence outlives it in the smaller one's cache."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import Runner
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import PROBE_STEPS, TRUSTED_STEPS, Benefit
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.drafting.model_drafter import ModelDrafter
from backend.engine.drafting.start import DraftModel, draft_model
from backend.engine.engine import Engine
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine_config import EngineConfig, size_cache
from backend.errors import CannotSleep, ConfigError
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from tests.backend.engine.gpu.test_graph_runner import DEVICE, ahead
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model, write_folder

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((1, 5, 16, 33))]
SHAPE: dict[str, Any] = {"head_dim": 16}


class Ticks:
    """Seconds that pass as a test says; by default each reading is one later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(**SHAPE)


def weakened(model: Decoder, noise: float) -> Decoder:
    """One that mostly thinks as `model` does."""
    torch.manual_seed(5)
    found = copy.deepcopy(model)
    for parameter in found.parameters():
        parameter.add_(torch.randn_like(parameter) * noise)
    return found


def guesser(model: Decoder, *, blocks: int = 64, rows: int = 16, budget: int = 64, on: str = "plain") -> ModelDrafter:
    runner: Runner
    if on == "plain":
        runner = ModelRunner(model, KVCache(model.config, blocks, 16, torch.float32, "cpu"))
    else:
        whole = copy.deepcopy(model).to(DEVICE)
        decoder = kind_of(model.config, batch_invariant=False)(whole, kernels_for(DEVICE))
        pages = KVCache(model.config, blocks, 16, torch.float32, str(DEVICE))
        runner = GraphRunner(decoder, pages, max_num_seqs=rows, max_num_batched_tokens=budget, max_model_len=400)
    manager = BlockManager(blocks, 16, prefix_cache=False)
    return ModelDrafter(runner, manager, rows=rows, budget=budget, longest=400, vocabulary=320)


def with_guesses(model: Decoder, drafter: ModelDrafter, on: str = "plain", **changes: Any) -> Engine:
    """Guesses whenever it may: nobody asks what they save."""
    engine = (
        ahead(model, drafter=drafter, **changes) if on == "ahead" else tiny_engine(model, drafter=drafter, **changes)
    )
    engine._draft = DraftModel(drafter, None)
    return engine


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return generate(tiny_engine(model), PROMPTS, greedy(24))


@pytest.mark.parametrize("on", ["plain", "ahead"])
@pytest.mark.parametrize("noise", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 12}], ids=str)
def test_tokens_are_those_of_the_plain_engine(
    model: Decoder, expected: list[list[int]], noise: float, changes: dict[str, Any], on: str
) -> None:
    drafter = guesser(weakened(model, noise), on=on)
    engine = with_guesses(model, drafter, on, **changes)
    assert generate(engine, PROMPTS, greedy(24)) == expected
    stats = engine.stats
    assert stats.draft_tokens > 0
    if noise == 0.0:
        assert stats.draft_tokens_accepted == stats.draft_tokens
    if noise == 1.0:
        assert stats.draft_tokens_accepted < stats.draft_tokens / 2
    assert generate(engine, PROMPTS, greedy(24)) == expected
    assert drafter.followed == 0
    assert drafter._blocks.num_used == 0
    assert sum(engine.scrubbing()) == 0


@pytest.mark.parametrize("on", ["plain", "ahead"])
def test_seeded_draws_are_those_of_the_plain_engine(model: Decoder, on: str) -> None:
    sampled = SamplingParams(max_tokens=16, temperature=0.7, top_p=0.9, seed=11, ignore_eos=True)
    plain = generate(ahead(model) if on == "ahead" else tiny_engine(model), PROMPTS, sampled)
    engine = with_guesses(model, guesser(weakened(model, 0.01), on=on), on)
    assert generate(engine, PROMPTS, sampled) == plain
    assert engine.stats.draft_tokens_accepted > 0


def test_in_deterministic_mode_they_are_those_without_guesses(model: Decoder) -> None:
    for params in (greedy(12), SamplingParams(max_tokens=12, temperature=0.8, seed=3, ignore_eos=True)):
        plain = generate(tiny_engine(model, batch_invariant=True), PROMPTS, params)
        engine = with_guesses(model, guesser(weakened(model, 0.02)), batch_invariant=True)
        assert generate(engine, PROMPTS, params) == plain
        assert engine.stats.draft_tokens_accepted > 0


def test_right_guesses_save_steps(model: Decoder, expected: list[list[int]]) -> None:
    engine = with_guesses(model, guesser(model))
    assert generate(engine, PROMPTS[:1], greedy(24)) == expected[:1]
    assert engine.stats.steps == 1 + 4  # 1 + 6 + 6 + 6 + 5 tokens


def test_a_long_prompt_is_followed_step_by_step_and_then_guessed_from(model: Decoder) -> None:
    prompt = [(5 * i) % 320 for i in range(200)]
    drafter = guesser(model, budget=64)
    sequence = Sequence(0, prompt, greedy(8), arrival=0)
    found = [drafter.propose([(sequence, 3)])[0] for _ in range(4)]
    assert found[:3] == [[], [], []]
    assert found[3] == generate(tiny_engine(model), [prompt], greedy(3))[0]


def test_tokens_that_were_rejected_are_not_looked_back_at(model: Decoder) -> None:
    drafter = guesser(model)
    sequence = Sequence(0, PROMPTS[3], greedy(8), arrival=0)
    first = drafter.propose([(sequence, 4)])[0]
    sequence.tokens += [first[0], (first[1] + 1) % 320]  # the second was another
    expected = generate(tiny_engine(model), [sequence.tokens], greedy(4))[0]
    assert drafter.propose([(sequence, 4)])[0] == expected
    sequence.tokens[5] = (sequence.tokens[5] + 1) % 320  # as after an id is used again
    assert drafter.propose([(sequence, 4)])[0] == generate(tiny_engine(model), [sequence.tokens], greedy(4))[0]


def test_those_that_asked_least_recently_make_way_for_rows_and_for_blocks(model: Decoder) -> None:
    sequences = [Sequence(i, [(i + j) % 320 for j in range(40)], greedy(8), arrival=i) for i in range(4)]
    few_rows, few_blocks = guesser(model, rows=2), guesser(model, blocks=7)
    for drafter in (few_rows, few_blocks):
        for sequence in sequences:
            assert len(drafter.propose([(sequence, 2)])[0]) == 2
        assert drafter.followed == 2
        everyone = drafter.propose([(s, 2) for s in sequences])
        assert sum(len(guesses) == 2 for guesses in everyone) >= 2  # the others go without
        for sequence in sequences:
            drafter.forget(sequence.id)
        assert drafter.followed == 0
        assert drafter.residue() == 0


def test_what_it_cannot_read_it_does_not_guess_from(model: Decoder) -> None:
    drafter = guesser(model)
    drafter._vocabulary = 100
    assert drafter.propose([(Sequence(0, [5, 200, 7], greedy(8), arrival=0), 3)]) == [[]]
    assert drafter.followed == 0
    assert all(token < 100 for token in drafter.propose([(Sequence(1, [5, 7], greedy(8), arrival=0), 3)])[0])
    long = Sequence(2, [3] * 400, greedy(8), arrival=0)
    assert drafter.propose([(long, 3)]) == [[]]


def test_a_sequence_that_ends_is_zeroed_at_once(model: Decoder) -> None:
    drafter = guesser(model)
    sequence = Sequence(0, PROMPTS[3], greedy(8), arrival=0)
    drafter.propose([(sequence, 3)])
    cache = drafter.runner.cache  # type: ignore[attr-defined]
    assert cache.keys.count_nonzero() > 0
    drafter.forget(0)
    assert cache.keys.count_nonzero() == 0
    assert cache.values.count_nonzero() == 0
    cache.values[0, 5, 0, 0, 0] = 1.0
    assert drafter.residue() == 0  # zeroed, then read back


# --- what it saves ---------------------------------------------------------------------------------------------------


def measured(with_guesses: float, without: float, steps: int) -> list[bool]:
    """Which steps of one sequence guess where a step takes so many seconds, and guesses make three tokens of one."""
    clock = Ticks()
    benefit, found = Benefit(clock), []
    for _ in range(steps):
        wants = benefit.wants(1)
        found.append(wants)
        benefit.begin()
        clock.now += (with_guesses if wants else without) - 1
        benefit.end(1, 3 if wants else 1)
    return found


def test_both_ways_are_tried_and_the_better_one_is_kept_until_the_other_is_tried_again() -> None:
    pays = measured(with_guesses=2.0, without=1.0, steps=2 * PROBE_STEPS + 2 * TRUSTED_STEPS)
    assert pays[: 2 * PROBE_STEPS] == [False] * PROBE_STEPS + [True] * PROBE_STEPS
    assert pays[2 * PROBE_STEPS :][:TRUSTED_STEPS] == [True] * TRUSTED_STEPS
    assert pays[2 * PROBE_STEPS + TRUSTED_STEPS :][:PROBE_STEPS] == [False] * PROBE_STEPS
    assert all(pays[3 * PROBE_STEPS + TRUSTED_STEPS :])
    costs = measured(with_guesses=4.0, without=1.0, steps=2 * PROBE_STEPS + 2 * TRUSTED_STEPS)
    assert not any(costs[2 * PROBE_STEPS :][:TRUSTED_STEPS])
    assert costs[2 * PROBE_STEPS + TRUSTED_STEPS :][:PROBE_STEPS] == [True] * PROBE_STEPS
    assert not any(costs[3 * PROBE_STEPS + TRUSTED_STEPS :])


def test_each_size_of_batch_is_measured_for_itself_and_large_ones_never_guess() -> None:
    benefit = Benefit(Ticks())
    for _ in range(PROBE_STEPS):
        benefit.begin()
        benefit.end(2, 2)
    assert benefit.wants(1)
    assert benefit.wants(4)
    assert not benefit.wants(5)
    assert not benefit.wants(17)
    assert not benefit.wants(0)
    benefit.end(17, 17)


@pytest.mark.parametrize("on", ["plain", "ahead"])
def test_an_engine_stops_guessing_where_it_does_not_pay(model: Decoder, on: str) -> None:
    """The clock runs while the smaller model thinks, and not else."""
    drafter = guesser(weakened(model, 1.0), on=on)
    clock = Ticks()
    think = drafter.propose

    def slowly(wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        clock.now += 1000.0
        return think(wanted)

    drafter.propose = slowly  # type: ignore[method-assign]
    base = ahead(model, drafter=drafter) if on == "ahead" else tiny_engine(model)
    config = base.config
    cache = size_cache(config, model.config, 4)
    engine = Engine(model, config, cache, runner=base.runner, draft=DraftModel(drafter, None, clock))
    plain = generate(tiny_engine(model), PROMPTS[:1], greedy(120))
    assert generate(engine, PROMPTS[:1], greedy(120)) == plain
    tried = engine.stats.draft_tokens
    assert 0 < tried < 120
    assert generate(engine, PROMPTS[:1], greedy(120)) == plain
    assert engine.stats.draft_tokens == tried


# --- bringing it up --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    small = tiny_model(3, **SHAPE, num_layers=1)
    return {"large": write_folder(root / "large", model), "small": write_folder(root / "small", small)}


def config_of(folders: dict[str, Path], **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {
        "model": str(folders["large"]), "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 64,
        "speculation": "model", "draft_model": str(folders["small"]), "draft_memory": 1 << 20,
    }  # fmt: skip
    return EngineConfig(**{**settings, **changes})


def test_an_engine_of_two_folders_gives_the_tokens_of_one_and_sleeps_with_both(
    model: Decoder, folders: dict[str, Path], expected: list[list[int]]
) -> None:
    engine = Engine.from_checkpoint(Checkpoint(folders["large"]), config_of(folders))
    for id, prompt in enumerate(PROMPTS):
        engine.add(id, prompt, greedy(24))
    found = run(engine)
    assert [found[id] for id in range(len(PROMPTS))] == expected
    assert engine.stats.draft_tokens > 0
    alone = Engine.from_checkpoint(Checkpoint(folders["large"]), config_of(folders, speculation=None, draft_model=""))
    assert engine.sleep() > alone.sleep() + (1 << 19)
    engine.wake()
    for id, prompt in enumerate(PROMPTS):
        engine.add(id, prompt, greedy(24))
    assert [run_all[id] for run_all in (run(engine),) for id in range(len(PROMPTS))] == expected
    assert engine.scrub() == 0


def test_where_the_smaller_one_cannot_sleep_both_stay_awake(folders: dict[str, Path]) -> None:
    engine = Engine.from_checkpoint(Checkpoint(folders["large"]), config_of(folders))
    assert engine._draft is not None

    class Sleepless:
        def sleep(self, on_progress: Any) -> int:
            raise CannotSleep("no room; free some")

        def wake(self, on_progress: Any) -> None:
            raise AssertionError

    engine._draft = DraftModel(engine._draft.drafter, Sleepless())
    with pytest.raises(CannotSleep):
        engine.sleep()
    assert not engine.asleep
    assert len(generate(engine, PROMPTS, greedy(4))) == 4


def test_a_model_of_another_vocabulary_is_refused(model: Decoder, folders: dict[str, Path], tmp_path: Path) -> None:
    import json

    other = write_folder(tmp_path / "other", tiny_model(3, **SHAPE))
    told = json.loads((other / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"]
    first, second = list(vocabulary)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=r"the draft model has another vocabulary.*; name a model of the same family"):
        draft_model(Checkpoint(folders["large"]), config_of(folders, draft_model=str(other)))
    with pytest.raises(ConfigError, match=r"hold no block of the draft model's KV cache.*; raise --draft-memory"):
        draft_model(Checkpoint(folders["large"]), config_of(folders, draft_memory=100))


@pytest.mark.parametrize(
    "changes", [{"speculation": "model", "draft_model": ""}, {"speculation": "ngram"}, {"speculation": None}], ids=str
)
def test_a_model_and_the_wish_for_its_guesses_go_together(folders: dict[str, Path], changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"need both --speculation model and --draft-model, and .*; add"):
        config_of(folders, **changes)
