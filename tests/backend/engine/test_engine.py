"""The same prompt gives the same tokens, however the engine came to compute them."""

import pytest
import torch

from backend.engine.core.progress import Finish
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((1, 5, 16, 17, 33, 48, 2, 31))]
SHARED = [[5, 6, 7] * 8 + [i] for i in range(6)]


class NaiveAttention:
    """Attention without a cache, for one whole sequence: the definition, in float64."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / q.shape[-1] ** 0.5
        causal = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.double()).to(q.dtype)


def naive(model: Decoder, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        row = torch.tensor([len(tokens) - 1])
        logits = model(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(), row)
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return [naive(model, p, 12) for p in PROMPTS]


def assert_idle_and_whole(engine: Engine) -> None:
    assert engine.blocks.num_used == 0
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def test_the_prompts_lead_to_different_answers(expected: list[list[int]]) -> None:
    assert len({tuple(e) for e in expected}) == len(PROMPTS)
    assert all(len(set(e)) > 4 for e in expected)


def test_alone(model: Decoder, expected: list[list[int]]) -> None:
    assert [generate(tiny_engine(model), [p])[0] for p in PROMPTS] == expected


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("budget", [16, 17, 24, 512])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_batched_whatever_the_block_and_chunk_size(
    model: Decoder, expected: list[list[int]], block_size: int, budget: int, prefix_cache: bool
) -> None:
    engine = tiny_engine(
        model,
        block_size=block_size,
        num_blocks=512 // block_size,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
    )
    assert generate(engine, PROMPTS) == expected
    assert_idle_and_whole(engine)


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_alone_in_chunks_of_any_size(model: Decoder, expected: list[list[int]], budget: int) -> None:
    engine = tiny_engine(model, max_num_batched_tokens=budget, max_num_seqs=1)
    assert generate(engine, PROMPTS) == expected


def test_twice_the_second_time_from_the_prefix_cache(model: Decoder, expected: list[list[int]]) -> None:
    engine = tiny_engine(model, block_size=4)
    assert generate(engine, PROMPTS) == expected
    hits = engine.stats.prefix_hits
    assert generate(engine, PROMPTS) == expected
    assert engine.stats.prefix_hits - hits == sum((len(p) - 1) // 4 * 4 for p in PROMPTS)


def test_with_prompts_that_share_a_beginning_at_the_same_time(model: Decoder) -> None:
    alone = [naive(model, p, 12) for p in SHARED]
    assert generate(tiny_engine(model, block_size=4), SHARED) == alone


@pytest.mark.parametrize("num_blocks", [16, 20, 30])
def test_with_so_few_blocks_that_sequences_are_preempted(
    model: Decoder, expected: list[list[int]], num_blocks: int
) -> None:
    engine = tiny_engine(model, block_size=4, num_blocks=num_blocks, max_model_len=64)
    assert generate(engine, PROMPTS) == expected
    assert engine.stats.preemptions > 0
    assert_idle_and_whole(engine)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_when_someone_is_preempted_again_and_again(
    model: Decoder, expected: list[list[int]], every: int, prefix_cache: bool
) -> None:
    engine = tiny_engine(model, block_size=4, num_blocks=128, prefix_cache=prefix_cache, max_num_batched_tokens=32)
    for id, prompt in enumerate(PROMPTS):
        engine.add(id, prompt, greedy(12))
    tokens: dict[int, list[int]] = {}
    steps = 0
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            tokens.setdefault(item.id, []).append(item.token)
        steps += 1
        running = engine.scheduler.running
        if running and steps % (every + 1):
            engine.scheduler.preempt(running[steps % len(running)])
        assert steps < 2000
    assert [tokens[i] for i in range(len(PROMPTS))] == expected
    assert_idle_and_whole(engine)


def test_when_others_come_and_are_aborted_in_between(model: Decoder, expected: list[list[int]]) -> None:
    engine = tiny_engine(model, block_size=4, num_blocks=40, max_num_batched_tokens=20, max_model_len=80)
    for id, prompt in enumerate(PROMPTS):
        engine.add(id, prompt, greedy(12))
    tokens: dict[int, list[int]] = {}
    visitor = 100
    while engine.has_work:
        if visitor < 130:
            engine.add(visitor, [visitor] * 20 + [1], greedy(50), priority=visitor % 3 - 1)
            if visitor % 2:
                engine.abort(visitor - 1)
                engine.abort(visitor)
            visitor += 1
        elif visitor == 130:
            for id in range(100, 130):
                engine.abort(id)
            visitor += 1
        for item in engine.step():
            assert item.token is not None
            tokens.setdefault(item.id, []).append(item.token)
    assert [tokens[i] for i in range(len(PROMPTS))] == expected
    assert_idle_and_whole(engine)


def test_a_sequence_joins_while_others_run(model: Decoder, expected: list[list[int]]) -> None:
    engine = tiny_engine(model)
    engine.add(0, PROMPTS[5], greedy(12))
    engine.step()
    engine.add(1, PROMPTS[3], greedy(12))
    second = engine.step()
    assert {p.id for p in second} == {0, 1}, "one step serves the decode and the newcomer's prompt"
    assert run(engine)[1] == expected[3][1:]


def test_abort_frees_the_blocks_at_once(model: Decoder) -> None:
    engine = tiny_engine(model)
    engine.add(0, PROMPTS[4], greedy(50))
    engine.step()
    assert engine.blocks.num_used == 3
    engine.abort(0)
    assert_idle_and_whole(engine)
    assert not engine.has_work
    engine.abort(0)  # again, and of one that never was
    engine.abort(77)


def test_seeded_draws_are_the_same_alone_batched_chunked_and_preempted(model: Decoder) -> None:
    def params(i: int) -> SamplingParams:
        return SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9 if i % 2 else 1.0, top_k=i % 3 * 20, seed=i)

    alone = [generate(tiny_engine(model), [p], params(i))[0] for i, p in enumerate(PROMPTS)]
    for changes in ({}, {"max_num_batched_tokens": 16}, {"block_size": 4, "num_blocks": 20, "max_model_len": 80}):
        engine = tiny_engine(model, **changes)
        for i, prompt in enumerate(PROMPTS):
            engine.add(i, prompt, params(i))
        tokens = run(engine)
        assert [tokens[i] for i in range(len(PROMPTS))] == alone
    other_seed = SamplingParams(max_tokens=12, temperature=0.9, seed=99)
    assert generate(tiny_engine(model), [PROMPTS[0]], other_seed)[0] != alone[0]


def test_siblings_share_the_blocks_of_their_prompt(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4)
    prompt = PROMPTS[3]  # 17 tokens: 4 full blocks
    for id in range(4):
        engine.add(id, prompt, greedy(6), leader=0 if id else None)
    first = {p.id: [p.token] for _ in range(2) for p in engine.step() if p.id}
    assert engine.blocks.num_used == 4 + 4  # the shared ones, and a private last block each
    rest = run(engine)
    assert [first[id] + rest[id] for id in (1, 2, 3)] == [naive(model, prompt, 6)] * 3


def test_siblings_do_not_wait_for_a_leader_that_was_aborted(model: Decoder) -> None:
    engine = tiny_engine(model, max_num_batched_tokens=16)
    engine.add(0, PROMPTS[5], greedy(4))
    engine.add(1, PROMPTS[5], greedy(4), leader=0)
    engine.step()
    engine.abort(0)
    assert run(engine) == {1: naive(model, PROMPTS[5], 4)}


def test_an_end_token_ends_the_sequence_and_is_reported(model: Decoder, expected: list[list[int]]) -> None:
    end = expected[4][3]
    engine = tiny_engine(model, eos_ids=frozenset({end}))
    engine.add(0, PROMPTS[4], greedy(12, ignore_eos=False))
    progress = [item for _ in range(4) for item in engine.step()]
    cut = expected[4].index(end) + 1
    assert [p.token for p in progress] == expected[4][:cut]
    assert progress[-1].finish is Finish.STOP
    assert not engine.has_work
    assert generate(engine, [PROMPTS[4]])[0] == expected[4], "unless it is to be ignored"


def test_a_stop_token_of_the_request_ends_it_also_when_end_tokens_are_ignored(
    model: Decoder, expected: list[list[int]]
) -> None:
    engine = tiny_engine(model)
    stop = expected[2][5]
    tokens = generate(engine, [PROMPTS[2]], greedy(12, stop_token_ids=(stop,)))[0]
    assert tokens == expected[2][: expected[2].index(stop) + 1]


def test_the_context_is_filled_to_its_last_token_and_no_further(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4, num_blocks=8, max_model_len=32)
    engine.add(0, PROMPTS[2], greedy(100))
    progress = [item for _ in range(16) for item in engine.step()]
    assert len(progress) == 16
    assert progress[-1].finish is Finish.LENGTH
    assert_idle_and_whole(engine)


def test_a_prompt_that_leaves_no_room_is_refused_by_name(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4, num_blocks=8, max_model_len=32)
    with pytest.raises(ContextLengthExceeded, match="32"):
        engine.add(0, [1] * 32, greedy(1))
    engine.add(0, [1] * 31, greedy(1))
    assert len(run(engine)[0]) == 1


@pytest.mark.parametrize("prompt", [[], [-1], [320], [5, 1 << 40]])
def test_a_prompt_outside_the_vocabulary_is_refused(model: Decoder, prompt: list[int]) -> None:
    engine = tiny_engine(model)
    with pytest.raises(InvalidRequest):
        engine.add(0, prompt, greedy(1))
    assert not engine.has_work


def test_an_id_in_use_is_refused(model: Decoder) -> None:
    engine = tiny_engine(model)
    engine.add(0, [1], greedy(5))
    with pytest.raises(InvalidRequest):
        engine.add(0, [1], greedy(5))
    assert len(run(engine)[0]) == 5


def test_the_waiting_queue_is_bounded_and_empties(model: Decoder) -> None:
    engine = tiny_engine(model, max_num_seqs=2, max_waiting=3)
    for id in range(5):
        engine.add(id, [id + 1], greedy(3))
    with pytest.raises(Overloaded):
        engine.add(5, [1], greedy(3))
    assert len(run(engine)) == 5
    engine.add(5, [1], greedy(3))
    assert len(run(engine)[5]) == 3


def test_logits_that_are_not_numbers_end_that_sequence_only() -> None:
    model = tiny_model(3, tie_word_embeddings=False)
    poisoned = 11
    model.embedding[poisoned] = float("nan")
    engine = tiny_engine(model)
    engine.add(0, [1, poisoned, 2], greedy(4))
    engine.add(1, [1, 2, 3], SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True))
    engine.add(2, [4, poisoned], SamplingParams(max_tokens=4, temperature=1.0, top_p=0.5))
    tokens: dict[int, list[int | None]] = {}
    finishes = {}
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
            finishes[item.id] = item.finish
    assert tokens[0] == tokens[2] == [None]
    assert finishes == {0: Finish.ERROR, 1: Finish.LENGTH, 2: Finish.ERROR}
    assert None not in tokens[1]
    assert_idle_and_whole(engine)


def test_what_a_failed_sequence_computed_is_not_left_for_others() -> None:
    model = tiny_model(3, tie_word_embeddings=False)
    model.embedding[11] = float("nan")
    engine = tiny_engine(model, block_size=1)
    engine.add(0, [1, 11, 2], greedy(4))
    while engine.has_work:
        engine.step()
    assert not engine.blocks._by_hash


def test_numbers_that_are_none_stay_out_of_the_blocks_others_get() -> None:
    model = tiny_model(3, tie_word_embeddings=False)
    model.embedding[11] = float("nan")
    alone = generate(tiny_engine(model), [[1, 2, 3]], greedy(4))
    engine = tiny_engine(model, num_blocks=2, max_model_len=32)
    engine.add(7, [11] * 20, greedy(4))
    while engine.has_work:
        assert [item.token for item in engine.step()] in ([], [None])
    assert generate(engine, [[1, 2, 3]], greedy(4)) == alone
