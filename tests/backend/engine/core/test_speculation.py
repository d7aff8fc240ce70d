"""With guesses or without: the same tokens, in fewer steps."""

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.progress import Finish, Progress
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence, Status
from backend.engine.core.speculation import GUESSES_BY_BATCH, LONGEST_REST, MAX_ROWS, Drafted, Speculation, agreed
from backend.engine.cpu.sampler import Draw, sample
from backend.engine.drafting.ngram_drafter import NgramDrafter
from backend.engine.engine import Engine
from backend.errors import ConfigError
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.drafters import Oracle
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((1, 5, 16, 33))]
LOOPS = [[5, 6, 7] * 6, [1, 2] * 4 + [9, 1, 2], [8] * 12]


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return generate(tiny_engine(model), PROMPTS, greedy(24))


def answers(expected: list[list[int]]) -> dict[int, list[int]]:
    return dict(enumerate(expected))


def assert_idle(engine: Engine) -> None:
    assert not engine.has_work
    assert engine.blocks.num_used == 0
    assert sorted(engine.scheduler._free_rows) == list(range(engine.config.max_num_seqs))


# --- the same tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes",
    [{}, {"block_size": 4, "num_blocks": 256}, {"max_num_batched_tokens": 16}, {"prefix_cache": False}],
    ids=str,
)
def test_greedy_answers_are_those_of_the_plain_engine(
    model: Decoder, expected: list[list[int]], wrong: float, changes: dict[str, int]
) -> None:
    engine = tiny_engine(model, drafter=Oracle(answers(expected), wrong), **changes)
    assert generate(engine, PROMPTS, greedy(24)) == expected
    stats = engine.stats
    assert stats.draft_tokens > 0
    assert stats.draft_tokens_accepted <= stats.draft_tokens
    assert (stats.draft_tokens_accepted == stats.draft_tokens) == (wrong == 0)
    assert (stats.draft_tokens_accepted == 0) == (wrong == 1)
    assert_idle(engine)
    assert generate(engine, PROMPTS, greedy(24)) == expected  # again, with the cache that guesses have written to
    assert_idle(engine)


def test_right_guesses_save_steps_and_wrong_ones_cost_none(model: Decoder, expected: list[list[int]]) -> None:
    def steps(wrong: float) -> int:
        engine = tiny_engine(model, drafter=Oracle({0: expected[0]}, wrong))
        generate(engine, PROMPTS[:1], greedy(24))
        return engine.stats.steps

    assert steps(0.0) == 1 + 4  # 1 + 6 + 6 + 6 + 5 tokens
    assert steps(1.0) == 24


def test_seeded_draws_are_those_of_the_plain_engine(model: Decoder) -> None:
    def params(i: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=24, temperature=0.8, top_k=(0, 20)[i % 2], top_p=(1.0, 0.9)[i // 2], seed=i, ignore_eos=True
        )

    def drawn(engine: Engine) -> list[list[int]]:
        for i, prompt in enumerate(PROMPTS):
            engine.add(i, prompt, params(i))
        tokens = run(engine)
        return [tokens[i] for i in range(len(PROMPTS))]

    plain = drawn(tiny_engine(model))
    engine = tiny_engine(model, drafter=Oracle(answers(plain), 0.3))
    assert drawn(engine) == plain
    assert 0 < engine.stats.draft_tokens_accepted < engine.stats.draft_tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_from_the_text_leave_it_as_it_is(model: Decoder, temperature: float) -> None:
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=5, ignore_eos=True, top_k=3)
    plain = generate(tiny_engine(model), LOOPS, params)
    engine = tiny_engine(model, drafter=NgramDrafter(sizes=(1,)))  # noise repeats single tokens at best
    assert generate(engine, LOOPS, params) == plain
    assert engine.stats.draft_tokens > 0
    assert engine._speculation is not None
    assert not engine._speculation._trust


def test_the_configuration_names_the_drafter(model: Decoder) -> None:
    loop = [[5, 6, 7] * 6]
    engine = tiny_engine(model, speculation="ngram")
    assert generate(engine, loop, greedy(40)) == generate(tiny_engine(model), loop, greedy(40))
    assert engine.stats.draft_tokens > 0
    assert tiny_engine(model)._speculation is None
    with pytest.raises(
        ConfigError, match="speculation 'eagle' is not known; set --speculation to one of ngram, model, eagle3"
    ):
        tiny_engine(model, speculation="eagle")


def test_the_distribution_is_that_of_rejection_sampling() -> None:
    """Leviathan et al. 2023, algorithm 1, with a draft that is sure of one token, against draw and compare."""
    logits = torch.tensor([1.0, 0.2, -0.5, 0.9])
    p = logits.softmax(-1).numpy().astype(float)
    guess, runs = 0, 4000
    rng = np.random.default_rng(7)
    residual = np.where(np.arange(4) == guess, 0, p)
    textbook = Counter(
        guess if rng.random() < p[guess] else int(rng.choice(4, p=residual / residual.sum())) for _ in range(runs)
    )
    draws = [Draw(SamplingParams(max_tokens=1, temperature=1.0, seed=seed), 3) for seed in range(runs)]
    ours = Counter(sample(logits.expand(runs, -1), draws))
    for token in range(4):
        spread = (runs * p[token] * (1 - p[token])) ** 0.5
        assert abs(ours[token] - runs * p[token]) < 4 * spread
        assert abs(textbook[token] - runs * p[token]) < 4 * spread


@settings(deadline=None, max_examples=25)
@given(
    st.floats(0, 1),
    st.integers(0, 2**32),
    st.sampled_from([1, 4, 16]),
    st.integers(14, 60),
    st.integers(17, 64),
    st.booleans(),
    st.integers(0, 12),
)
def test_whatever_is_guessed_preempted_cached_or_chunked(
    wrong: float, seed: int, block_size: int, blocks: int, budget: int, prefix_cache: bool, preemptions: int
) -> None:
    model, expected = _shared_case()
    engine = tiny_engine(
        model,
        drafter=Oracle(answers(expected), wrong, seed),
        block_size=block_size,
        num_blocks=blocks * 16 // block_size // 2 + 8,
        max_model_len=64,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
    )
    for _ in range(2):
        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(24))
        tokens: dict[int, list[int | None]] = {}
        rng, left = random.Random(seed), preemptions
        while engine.has_work:
            for item in engine.step():
                tokens.setdefault(item.id, []).append(item.token)
            if left and engine.scheduler.running and rng.random() < 0.3:
                engine.scheduler.preempt(rng.choice(engine.scheduler.running))
                left -= 1
        assert [tokens[id] for id in range(len(PROMPTS))] == expected
        assert_idle(engine)


_CASE: list[tuple[Decoder, list[list[int]]]] = []


def _shared_case() -> tuple[Decoder, list[list[int]]]:
    if not _CASE:
        model = tiny_model()
        _CASE.append((model, generate(tiny_engine(model), PROMPTS, greedy(24))))
    return _CASE[0]


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 9))
def test_the_answer_ends_at_max_tokens_though_guesses_go_on(
    model: Decoder, expected: list[list[int]], count: int
) -> None:
    engine = tiny_engine(model, drafter=Oracle(answers(expected)))
    engine.add(0, PROMPTS[0], greedy(count))
    progress = list(iter_steps(engine))
    assert [p.token for p in progress] == expected[0][:count]
    assert [p.finish for p in progress] == [None] * (count - 1) + [Finish.LENGTH]
    assert_idle(engine)


def iter_steps(engine: Engine) -> Iterator[Progress]:
    while engine.has_work:
        yield from engine.step()


@pytest.mark.parametrize("place", [1, 2, 3, 4, 7])
def test_an_end_token_inside_the_guesses_ends_the_answer(model: Decoder, expected: list[list[int]], place: int) -> None:
    end = expected[1][place]
    first = expected[1].index(end)
    engine = tiny_engine(model, eos_ids=frozenset({end}), drafter=Oracle(answers(expected)))
    engine.add(1, PROMPTS[1], greedy(24, ignore_eos=False))
    progress = list(iter_steps(engine))
    assert [p.token for p in progress] == expected[1][: first + 1]
    assert progress[-1].finish is Finish.STOP
    assert_idle(engine)


def test_the_context_is_filled_to_its_last_token_and_no_further(model: Decoder, expected: list[list[int]]) -> None:
    engine = tiny_engine(model, drafter=Oracle(answers(expected)), max_model_len=len(PROMPTS[1]) + 10)
    engine.add(1, PROMPTS[1], greedy(500))
    assert [p.token for p in iter_steps(engine)] == expected[1][:10]


def test_logits_that_are_not_numbers_end_the_answer_where_they_begin() -> None:
    model = tiny_model(3, tie_word_embeddings=False)
    good = generate(tiny_engine(model), [[1, 2, 3]], greedy(8))[0]
    poisoned = next(t for t in good[2:] if t not in [1, 2, 3, *good[:2]])
    model.embedding[poisoned] = float("nan")  # reading it spoils what follows
    until = good.index(poisoned)
    engine = tiny_engine(model, drafter=Oracle({0: good}))
    engine.add(0, [1, 2, 3], greedy(8))
    progress = list(iter_steps(engine))
    assert [p.token for p in progress] == [*good[: until + 1], None]
    assert progress[-1].finish is Finish.ERROR
    assert not engine.blocks._by_hash
    assert_idle(engine)


def test_an_aborted_sequence_is_forgotten_by_the_drafter(model: Decoder, expected: list[list[int]]) -> None:
    oracle = Oracle(answers(expected))
    engine = tiny_engine(model, drafter=oracle)
    engine.add(0, PROMPTS[0], greedy(24))
    for _ in range(3):
        engine.step()
    engine.abort(0)
    engine.abort(0)
    assert oracle.forgotten == [0]
    assert_idle(engine)


# --- when to guess ---------------------------------------------------------------------------------------------------


def decoding(id: int, tokens: list[int], blocks: BlockManager, max_tokens: int = 100) -> Scheduled:
    sequence = Sequence(id, tokens, SamplingParams(max_tokens=max_tokens), arrival=id)
    assert blocks.grow(sequence, len(tokens))
    sequence.num_computed = len(tokens) - 1
    sequence.status = Status.RUNNING
    return Scheduled(sequence, 1)


@pytest.mark.parametrize(("batch", "guesses"), [(1, 5), (4, 5), (5, 3), (16, 3), (17, 0), (256, 0)])
def test_the_larger_the_batch_the_fewer_the_guesses(batch: int, guesses: int) -> None:
    blocks = BlockManager(1024, 16)
    oracle = Oracle({i: [1] * 20 for i in range(batch)})
    drafted = Speculation(oracle).draft([decoding(i, [1, 2, 3], blocks) for i in range(batch)], blocks, 512)
    assert [len(d.guesses) for d in drafted] == [guesses] * batch * (guesses > 0)
    assert sum(d.num_tokens for d in drafted) <= MAX_ROWS
    assert bool(oracle.asked) == (guesses > 0)


def test_no_table_of_batches_asks_for_more_rows_than_a_step_has() -> None:
    assert max(size * (1 + guesses) for size, guesses in GUESSES_BY_BATCH) <= MAX_ROWS


def test_the_token_budget_bounds_the_guesses() -> None:
    blocks = BlockManager(64, 16)
    batch = [decoding(i, [1, 2, 3], blocks) for i in range(3)]
    drafted = Speculation(Oracle({i: [1] * 9 for i in range(3)})).draft(batch, blocks, 10)
    assert [len(d.guesses) for d in drafted] == [5, 2, 0]


def test_nobody_is_preempted_for_a_guess() -> None:
    blocks = BlockManager(2, 4)
    batch = [decoding(i, [1, 2, 3], blocks) for i in range(2)]
    assert Speculation(Oracle({0: [1] * 9, 1: [1] * 9})).draft(batch, blocks, 64) == []
    assert blocks.num_free == 0


def test_a_step_with_a_prompt_takes_no_guesses() -> None:
    blocks = BlockManager(64, 16)
    decode = decoding(0, [1, 2, 3], blocks)
    prompt = Scheduled(Sequence(1, [1] * 8, SamplingParams(max_tokens=9), arrival=1), 8, admitted=True)
    assert Speculation(Oracle({0: [1] * 9})).draft([decode, prompt], blocks, 64) == []


def test_a_sequence_whose_guesses_fail_rests_longer_and_longer_and_is_trusted_again_when_one_is_right() -> None:
    blocks = BlockManager(64, 16)
    scheduled = decoding(0, [1, 2, 3], blocks, max_tokens=900)
    sequence = scheduled.sequence
    speculation = Speculation(Oracle({0: [1] * 900}))
    drafted = Drafted(sequence, [1, 1])
    rests = []
    for _ in range(9):
        speculation.record_accepted(drafted, 0)
        start = len(sequence.tokens)
        while not speculation.draft([scheduled], blocks, 64):
            sequence.tokens.append(1)
            sequence.num_computed += 1
        rests.append(len(sequence.tokens) - start)
    assert rests == [1, 3, 7, 15, 31, 63, 64, 64, 64]
    assert max(rests) == LONGEST_REST
    speculation.record_accepted(drafted, 1)
    assert speculation.draft([scheduled], blocks, 64)
    assert (speculation.proposed, speculation.accepted) == (20, 1)


def test_waiting_for_tokens_on_their_way_is_worth_it_if_a_guess_reaches_past_them() -> None:
    blocks = BlockManager(64, 16)
    sequence = decoding(0, [1, 2, 3], blocks).sequence
    sequence.num_pending = 1
    assert Speculation(Oracle({0: [1, 1, 1]})).promises([sequence])
    assert not Speculation(Oracle({0: [1]})).promises([sequence])
    assert not Speculation(Oracle({})).promises([sequence])
    assert not Speculation(Oracle({0: [1, 1, 1]}), by_batch=()).promises([sequence])
    assert not Speculation(Oracle({})).promises([])


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_guesses_agree_up_to_the_first_that_was_not_drawn(guesses: list[int], data: st.DataObject) -> None:
    size = len(guesses) + 1
    drawn = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 2)), min_size=size, max_size=size))
    count = agreed(guesses, drawn)
    assert drawn[:count] == guesses[:count]
    assert count == len(guesses) or drawn[count] != guesses[count]
