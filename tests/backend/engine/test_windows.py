"""Models with windows say with block tables for them what they say with one table of all layers, whatever happens to
their sequences; and no block that was given back is read: all that are free and forgotten hold what is not a number."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.apart.frame import BlockFrame
from backend.engine.cache.attention import KVCache
from backend.engine.cache.host_pages import HostPages
from backend.engine.core.progress import Finish
from backend.engine.core.sampling import SamplingParams
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.engine import Engine
from backend.engine.parallel.leader import LeadingRunner
from backend.engine_config import EngineConfig, groups_of, size_cache
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.engine.apart.moving import fetched, finished, tokens_of
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import ahead
from tests.backend.engine.parallel.test_leader import InProcess
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model
from tests.backend.tiny_families import tiny_family
from tests.backend.tiny_gpt_oss import random_tensors, write_gpt_oss

LENGTHS = (1, 7, 30, 61, 90, 33)
BLOCK = 4
MODELS = ("mistral", "every second", "several tables", "gemma2", "gemma3", "gpt-oss")


def made(name: str, folder: Path) -> Decoder:
    match name:
        case "mistral":
            return tiny_model(head_dim=16, windows=(12, 12))
        case "every second":
            return tiny_model(num_layers=4, head_dim=16, windows=(8, None, 8, None))
        case "several tables":
            return tiny_model(num_layers=6, head_dim=16, windows=(5, 5, None, 12, 5, 5))
        case "gpt-oss":
            return load_model(Checkpoint(write_gpt_oss(folder / "model", random_tensors(4))), "float32")
        case _:
            return tiny_family(name, 3)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return made(request.param, tmp_path_factory.mktemp("windows"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return made("every second", tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(3, 320) for _ in range(n)] for n in LENGTHS]


PARAMS = [greedy(14), SamplingParams(max_tokens=14, temperature=1.1, top_p=0.9, seed=3, ignore_eos=True)]


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy and seeded in turn."""
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, PARAMS[id % 2])
    found = run(engine)
    return [found[id] for id in range(len(prompts))]


@pytest.fixture(scope="module")
def expected(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    return answers(plain(model), prompts)


def plain(model: Decoder, **changes: Any) -> Engine:
    return tiny_engine(model, block_size=BLOCK, num_blocks=120, window_tables=False, **changes)


def poisoned(engine: Engine) -> Engine:
    """The same; before each step its free blocks that no prefix keeps are filled with what is not a number. One that is
    taken is zeroed first, for slots behind a sequence's end are read."""
    blocks, step, claim = engine.blocks, engine._step, engine.blocks._claim

    def zeroed() -> int:
        id = claim()
        blocks.dirty.append(id)
        return id

    def poisoning() -> Any:
        engine._tidy()
        free = torch.tensor([id for id in blocks._free if blocks.blocks[id].hash is None], dtype=torch.int64)
        for part in (engine.runner.cache.keys, engine.runner.cache.values):  # type: ignore[attr-defined]
            part.index_fill_(1, free.to(part.device), float("nan"))
        return step()

    blocks._claim = zeroed  # type: ignore[method-assign]
    engine._step = poisoning  # type: ignore[method-assign]
    return engine


def assert_idle(engine: Engine) -> None:
    assert not engine.has_work
    assert engine.blocks.num_used == 0
    assert engine.scrub() == 0


def windowed(model: Decoder, **changes: Any) -> Engine:
    engine = tiny_engine(model, **{"block_size": BLOCK, "num_blocks": 120, **changes})
    assert any(window is not None for window in engine.blocks.windows)
    return poisoned(engine)


WAYS: list[dict[str, Any]] = [
    {},
    {"prefix_cache": False},
    {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    {"num_blocks": 34, "max_model_len": 110, "max_num_batched_tokens": 16},
    {"block_size": 16, "num_blocks": 40},
    {"block_size": 1, "num_blocks": 480},
]


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_batched_chunked_preempted_and_from_the_cache_it_says_the_same(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], changes: dict[str, Any]
) -> None:
    engine = windowed(model, **changes)
    assert answers(engine, prompts) == expected
    assert answers(engine, prompts) == expected
    if "num_blocks" not in changes:  # few blocks are all taken again
        assert (engine.stats.prefix_hits > 0) == engine.config.prefix_cache
    assert_idle(engine)


def test_too_few_blocks_preempt_and_change_nothing(few: Decoder, prompts: list[list[int]]) -> None:
    engine = windowed(few, num_blocks=34, max_model_len=110, max_num_batched_tokens=16)
    assert answers(engine, prompts) == answers(plain(few), prompts)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_forks_late_and_early_say_the_same(few: Decoder, prompts: list[list[int]], prefix_cache: bool) -> None:
    """With two places, the last of them are forked when their leader's window has passed the prompt, or it is over."""

    def said(engine: Engine) -> dict[int, list[int]]:
        params = [SamplingParams(max_tokens=9 + 3 * i, temperature=1.2, seed=i, ignore_eos=True) for i in range(5)]
        for id, each in enumerate(params):
            engine.add(id, prompts[3], each, leader=0 if id else None)
        return run(engine)

    engine = windowed(few, max_num_seqs=2, max_num_batched_tokens=32, prefix_cache=prefix_cache)
    assert said(engine) == said(plain(few, max_num_seqs=8))
    assert_idle(engine)


@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("runner", [tiny_engine, ahead])
def test_guesses_right_and_wrong_change_nothing(
    few: Decoder, prompts: list[list[int]], wrong: float, runner: Callable[..., Engine]
) -> None:
    wanted = generate(plain(few), prompts, greedy(20))
    changes = {"block_size": 16, "num_blocks": 64, "prefix_cache": False}
    engine = poisoned(runner(few, drafter=Oracle(dict(enumerate(wanted)), wrong), **changes))
    assert generate(engine, prompts, greedy(20)) == wanted
    assert engine.stats.draft_tokens > engine.stats.draft_tokens_accepted * (wrong > 0)


def test_the_runner_of_a_card_says_the_same(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = poisoned(ahead(model, block_size=16, num_blocks=30, max_model_len=120, prefix_cache=False))
    assert len(engine.blocks.windows) == len(groups_of(engine.config, model.config).windows)
    assert generate(engine, prompts, greedy(14)) == generate(plain(model), prompts, greedy(14))


def test_deterministic_tokens_and_log_probabilities_do_not_depend_on_tables_blocks_and_batch(
    few: Decoder, prompts: list[list[int]]
) -> None:
    def said(**changes: Any) -> list[Any]:
        engine = tiny_engine(few, **{"num_blocks": 120, "batch_invariant": True, "block_size": BLOCK, **changes})
        for id, prompt in enumerate(prompts[:4]):
            engine.add(id, prompt, greedy(6, logprobs=2, prompt_logprobs=1))
        found = []
        while engine.has_work:
            found += [(item.id, item.token, item.logprobs, item.prompt) for item in engine.step()]
        return sorted(found, key=lambda item: item[0])

    wanted = said(window_tables=False)
    assert said() == wanted
    assert said(block_size=7, max_num_batched_tokens=9, max_num_seqs=2) == wanted


@pytest.mark.parametrize("name", ["every second", "mistral"])
def test_the_host_tier_keeps_and_brings_back_what_windows_reach(
    name: str, tmp_path: Path, prompts: list[list[int]]
) -> None:
    model = made(name, tmp_path)
    engine = windowed(model, num_blocks=34, max_num_batched_tokens=16, max_model_len=110, host_cache_bytes=1 << 20)
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]  # whatever this machine measures
    wanted = answers(plain(model), prompts)
    for _ in range(3):
        assert answers(engine, prompts) == wanted
    assert engine.stats.host_hits > 0
    assert (engine.stats.swaps > 0) == (name != "mistral"), "without full layers there is room for all at once"
    assert_idle(engine)


def test_another_rank_computes_the_same_from_what_it_is_told(few: Decoder, prompts: list[list[int]]) -> None:
    """Its tables still name blocks that a window has passed, and it does not read them."""
    drawn: list[list[list[int | None]]] = [[], []]

    class Noting(ModelRunner):
        rank = 0

        def launch(self, *step: Any) -> Any:
            done = super().launch(*step)
            drawn[self.rank].append(done.tokens())
            return done

    config = EngineConfig(
        model="",
        block_size=BLOCK,
        num_blocks=60,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        prefix_cache=False,
        max_model_len=110,
    )
    size, groups = size_cache(config, few.config, 4), groups_of(config, few.config)
    ranks = [Noting(few, KVCache(few.config, 60, BLOCK, torch.float32, "cpu", groups=groups)) for _ in range(2)]
    ranks[1].rank = 1
    engine = Engine(few, config, size, runner=LeadingRunner(ranks[0], InProcess(ranks[1])))
    assert engine.blocks.windows == (None, 8)
    assert answers(engine, prompts) == answers(plain(few), prompts)
    assert drawn[0] == drawn[1]
    assert torch.equal(ranks[0].cache.keys, ranks[1].cache.keys)


@pytest.mark.parametrize("name", ["every second", "several tables", "mistral"])
def test_a_prompt_that_another_backend_computes_brings_of_a_window_what_it_reaches(
    name: str, tmp_path: Path, prompts: list[list[int]]
) -> None:
    model = made(name, tmp_path)
    source, engine = windowed(model, max_num_batched_tokens=16, max_num_seqs=4), windowed(model)
    frames: list[BlockFrame] = []

    def noted(frame: BlockFrame) -> BlockFrame:
        frames.append(frame)
        return frame

    for id, prompt in enumerate(prompts[1:]):
        assert fetched(source, engine, prompt, greedy(14), id=id, through=noted)
        assert tokens_of(finished(engine), id) == generate(plain(model), [prompt], greedy(14))[0]
    window = min(w for w in model.config.windows if w is not None)
    layer = model.config.windows.index(window)
    assert sum(f.count for f in frames if f.layer == layer) <= len(LENGTHS) * (-(-window // BLOCK) + 1)
    assert source.blocks.num_used == engine.blocks.num_used == 0


def test_a_backend_that_keeps_other_tokens_is_not_fetched_from(few: Decoder) -> None:
    ours, theirs = tiny_engine(few).layout, tiny_engine(few, window_tables=False).layout
    assert ours is not None and theirs is not None
    assert ours.windows == [8, 0, 8, 0]
    assert theirs.windows == [0] * 4
    assert ours != theirs


def test_what_is_not_a_number_ends_one_sequence_and_leaves_no_byte(few: Decoder, prompts: list[list[int]]) -> None:
    engine = tiny_engine(few, block_size=BLOCK, num_blocks=120)
    wanted = generate(plain(few), [prompts[2]], greedy(14))
    engine.add(0, prompts[4], greedy(14))
    engine.add(1, prompts[2], greedy(14))
    for _ in range(5):
        engine.step()
    (spoilt,) = (s for s in engine.scheduler.running if s.id == 0)
    engine.runner.cache.keys[:, spoilt.block_tables[1][-1]] = float("nan")  # type: ignore[attr-defined]
    progress = finished(engine)
    assert [item.finish for item in progress if item.id == 0] == [Finish.ERROR]
    assert generate(engine, [prompts[2]], greedy(14)) == wanted
    assert_idle(engine)


def test_random_additions_aborts_and_preemptions_leave_every_answer_as_it_is(few: Decoder) -> None:
    rng = random.Random(5)
    shared = [rng.randrange(3, 320) for _ in range(40)]
    asked = [
        shared[: rng.randrange(1, 40)] + [rng.randrange(3, 320) for _ in range(rng.randrange(1, 30))] for _ in range(24)
    ]
    wanted = generate(plain(few, max_waiting=99), asked, greedy(12))
    config = {"num_blocks": 50, "max_model_len": 100, "max_num_batched_tokens": 24, "max_num_seqs": 6}
    engine = windowed(few, **config, host_cache_bytes=1 << 18)
    assert engine.blocks.tier is not None and isinstance(engine._host, HostPages)
    found: dict[int, list[int | None]] = {}
    left, aborted = list(range(len(asked))), set[int]()
    while left or engine.has_work:
        if left and rng.random() < 0.5:
            id = left.pop()
            engine.add(id, asked[id], greedy(12))
        if engine.scheduler.running and rng.random() < 0.1:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
        if engine.scheduler.running and rng.random() < 0.05:
            gone = rng.choice(engine.scheduler.running).id
            aborted.add(gone)
            engine.abort(gone)
        for item in engine.step():
            found.setdefault(item.id, []).append(item.token)
    assert len(aborted) < len(asked) / 2
    assert all(found[id] == wanted[id] for id in range(len(asked)) if id not in aborted)
    assert_idle(engine)
