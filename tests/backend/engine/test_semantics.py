"""What a request may ask of its draws, on an engine of a tiny model: the same alone, batched, chunked, preempted."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from backend.engine.core.progress import Finish, Progress
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Status
from backend.engine.cpu.shaping import forbid, shape
from backend.engine.engine import Engine
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.test_engine import NaiveAttention
from tests.backend.tiny import generate, greedy, tiny_engine

PROMPT = [5, 9, 5, 200, 31, 7, 64, 8, 90]


def logits_behind(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Of every token, computed without cache or batch. [len(tokens), vocab_size]"""
    with torch.inference_mode():
        return model(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(), torch.arange(len(tokens)))


def all_progress(engine: Engine) -> list[Progress]:
    progress = []
    while engine.has_work:
        progress += engine.step()
    return progress


def shaped_by_hand(model: Decoder, prompt: list[int], params: SamplingParams, count: int) -> list[int]:
    """Greedy answers under penalties and biases, by the definitions."""
    output: list[int] = []
    for _ in range(count):
        x = logits_behind(model, prompt + output)[-1].clone()
        for token, value in params.logit_bias:
            x[token] += value
        for token in {*prompt, *output}:
            r = params.repetition_penalty
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        for token in set(output):
            x[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
        output.append(int(x.argmax()))
    return output


PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5},
    {"presence_penalty": -2.0, "frequency_penalty": -1.0},
    {"logit_bias": ((7, 100.0),)},
    {"logit_bias": ((7, 3.0), (9, -100.0)), "presence_penalty": 2.0, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("changes", PENALTIES, ids=str)
def test_penalties_and_biases_are_those_of_their_definitions(model: Decoder, changes: dict[str, Any]) -> None:
    params = greedy(12, **changes)
    expected = shaped_by_hand(model, PROMPT, params, 12)
    assert generate(tiny_engine(model), [PROMPT], params)[0] == expected
    assert expected != generate(tiny_engine(model), [PROMPT], greedy(12))[0]


@pytest.mark.parametrize(
    "changes", [{"block_size": 4, "num_blocks": 14, "max_model_len": 40}, {"max_num_batched_tokens": 16}]
)
def test_penalties_hold_batched_chunked_and_preempted(model: Decoder, changes: dict[str, Any]) -> None:
    params = [greedy(12, **c) for c in PENALTIES]
    expected = [shaped_by_hand(model, PROMPT, p, 12) for p in params]
    engine = tiny_engine(model, **changes)
    for id, p in enumerate(params):
        engine.add(id, PROMPT, p)
    found: dict[int, list[int | None]] = {}
    for item in all_progress(engine):
        found.setdefault(item.id, []).append(item.token)
    assert [found[id] for id in range(len(params))] == expected
    assert ("num_blocks" in changes) == (engine.stats.preemptions > 0)


@given(st.data())
def test_the_repetition_penalty_is_that_of_transformers(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=20))
    penalty = data.draw(st.floats(0.1, 5))
    row = torch.randn(50, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 1000))))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), row[None].clone())[0]
    border = data.draw(st.integers(0, len(tokens)))
    shape(row, greedy(1, repetition_penalty=penalty), tokens[:border], tokens[border:], frozenset())
    torch.testing.assert_close(row, expected)


def test_a_grammars_bits_forbid_all_tokens_but_those_that_are_set() -> None:
    row = torch.zeros(70)
    bits = torch.zeros(3, dtype=torch.int32)
    bits[0], bits[1], bits[2] = 1 << 5, -(1 << 31), 1 << 4  # 5, 63, 68
    forbid(row, bits)
    assert row.isfinite().nonzero().flatten().tolist() == [5, 63, 68]


def test_no_end_token_comes_before_min_tokens(model: Decoder) -> None:
    eos = generate(tiny_engine(model), [PROMPT])[0][0]  # what the model would say first
    engine = tiny_engine(model, eos_ids=frozenset({eos}))
    engine.add(0, PROMPT, greedy(12, ignore_eos=False, logit_bias=((eos, 100.0),)))
    (only,) = all_progress(engine)
    assert (only.token, only.finish) == (eos, Finish.STOP)
    engine.add(1, PROMPT, greedy(12, ignore_eos=False, logit_bias=((eos, 100.0),), min_tokens=5))
    progress = all_progress(engine)
    assert [p.token == eos for p in progress] == [False] * 5 + [True]


def test_stop_tokens_end_a_sequence_that_ignores_the_models_own(model: Decoder) -> None:
    said = generate(tiny_engine(model), [PROMPT])[0]
    stop = next(token for token in said if said.index(token) > 2)
    engine = tiny_engine(model, eos_ids=frozenset({said[1]}))
    engine.add(0, PROMPT, greedy(12, stop_token_ids=(stop,)))
    progress = all_progress(engine)
    assert [p.token for p in progress] == said[: said.index(stop) + 1]
    assert progress[-1].finish is Finish.STOP


@pytest.mark.parametrize("min_p", [0.01, 0.3, 1.0])
def test_min_p_keeps_what_is_likely_enough(model: Decoder, min_p: float) -> None:
    probabilities = logits_behind(model, PROMPT)[-1].softmax(-1)
    kept = set((probabilities >= min_p * probabilities.max()).nonzero().flatten().tolist())
    engine = tiny_engine(model, max_num_seqs=16)
    seen = set()
    for seed in range(120):
        engine.add(seed, PROMPT, SamplingParams(max_tokens=1, min_p=min_p, seed=seed, ignore_eos=True))
    for item in all_progress(engine):
        seen.add(item.token)
    assert seen <= kept
    assert len(kept) == 1 or len(seen) > 1


@pytest.mark.parametrize("top", [0, 1, 5])
@pytest.mark.parametrize(
    "changes", [{}, {"max_num_batched_tokens": 16}, {"block_size": 4, "num_blocks": 12, "max_model_len": 40}]
)
def test_logprobs_are_those_of_the_models_own_distribution(model: Decoder, top: int, changes: dict[str, Any]) -> None:
    engine = tiny_engine(model, **changes)
    for id in range(4):
        engine.add(id, PROMPT, greedy(6, logprobs=top, seed=id, temperature=1.0, top_k=3, presence_penalty=1.0))
    found: dict[int, list[Progress]] = {}
    for item in all_progress(engine):
        found.setdefault(item.id, []).append(item)
    for items in found.values():
        answer = [p.token for p in items if p.token is not None]
        reference = logits_behind(model, PROMPT + answer).log_softmax(-1)[len(PROMPT) - 1 : -1]
        for row, item in zip(reference, items, strict=True):
            assert item.logprobs is not None and item.token is not None
            assert item.logprobs.logprob == pytest.approx(float(row[item.token]), abs=1e-4)
            assert item.logprobs.rank == int((row > row[item.token]).sum()) + 1
            values, ids = row.topk(top)
            assert [i for i, _ in item.logprobs.top] == ids.tolist()
            assert [v for _, v in item.logprobs.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("budget", [3, 16, 64])
@pytest.mark.parametrize("cached", [False, True])
def test_logprobs_of_a_prompt_are_whole_however_it_is_computed(model: Decoder, budget: int, cached: bool) -> None:
    engine = tiny_engine(model, block_size=2, max_num_batched_tokens=budget, max_num_seqs=3)
    if cached:  # what is found in the prefix cache has no logits
        generate(engine, [PROMPT])
    reference = logits_behind(model, PROMPT).log_softmax(-1)
    engine.add(7, PROMPT, greedy(3, prompt_logprobs=2))
    first, *rest = all_progress(engine)
    assert first.prompt is not None and first.cached == 0
    assert all(p.prompt is None for p in rest)
    expected = [float(reference[i, token]) for i, token in enumerate(PROMPT[1:])]
    assert [p.logprob for p in first.prompt] == pytest.approx(expected, abs=1e-4)
    assert [[i for i, _ in p.top] for p in first.prompt] == reference[:-1].topk(2).indices.tolist()


def test_logprobs_of_a_prompt_survive_preemption(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4, max_num_batched_tokens=4, max_num_seqs=2)
    engine.add(0, PROMPT, greedy(4, prompt_logprobs=0))
    engine.step()
    engine.scheduler.preempt(engine.scheduler.running[0])
    first = all_progress(engine)[0]
    reference = logits_behind(model, PROMPT).log_softmax(-1)
    assert first.prompt is not None
    expected = [float(reference[i, token]) for i, token in enumerate(PROMPT[1:])]
    assert [p.logprob for p in first.prompt] == pytest.approx(expected, abs=1e-4)


def test_a_forbidden_token_has_a_log_probability_that_json_can_hold(model: Decoder) -> None:
    engine = tiny_engine(model)
    engine.add(0, PROMPT, greedy(1, logprobs=3, logit_bias=((3, 100.0),)))
    (item,) = all_progress(engine)
    assert item.token == 3
    assert item.logprobs is not None and math.isfinite(item.logprobs.logprob)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 16, 17])
def test_forks_share_the_prompt_and_answer_as_if_alone(model: Decoder, length: int, prefix_cache: bool) -> None:
    prompt = [(7 * i) % 320 for i in range(length)]
    params = [SamplingParams(max_tokens=9, seed=i, ignore_eos=True) for i in range(5)]
    alone = [generate(tiny_engine(model), [prompt], p)[0] for p in params]
    engine = tiny_engine(model, block_size=4, prefix_cache=prefix_cache)
    for id, p in enumerate(params):
        engine.add(id, prompt, p, leader=0 if id else None)
    computed = 0
    found: dict[int, list[int | None]] = {}
    while engine.has_work:
        before = {s.id: s.num_computed for s in engine.scheduler.running}
        for item in engine.step():
            found.setdefault(item.id, []).append(item.token)
        computed += sum(s.num_computed - before.get(s.id, length - 1) for s in engine.scheduler.running if s.id)
        shared = [s for s in engine.scheduler.running if len(s.block_table) > (length - 1) // 4]
        for sequence in shared:  # what is written to is nobody else's
            assert engine.blocks.blocks[sequence.block_table[-1]].ref_count == 1
    assert [found[id] for id in range(5)] == alone
    assert engine.blocks.num_used == 0
    assert computed <= 4 * 9  # one token of the prompt each, and the answers


def test_a_fork_whose_leader_is_gone_computes_for_itself(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4, prefix_cache=False)
    engine.add(0, PROMPT, greedy(9))
    engine.add(1, PROMPT, greedy(9), leader=0)
    engine.abort(0)
    assert [p.token for p in all_progress(engine)] == generate(tiny_engine(model), [PROMPT], greedy(9))[0]


def test_what_is_released_is_zero_and_scrubbing_empties_the_cache_too(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4)
    engine.add(0, PROMPT, greedy(9))
    engine.add(1, PROMPT[:3], greedy(2))
    all_progress(engine)
    named = [i for i, block in enumerate(engine.blocks.blocks) if block.hash is not None]
    unnamed = [i for i, block in enumerate(engine.blocks.blocks) if block.hash is None]
    assert engine.runner.residue(unnamed) == 0
    assert named and engine.runner.residue(named) > 0  # the prefix cache, until it is scrubbed
    assert engine.scrub() == 0
    assert engine.runner.residue(list(range(len(engine.blocks.blocks)))) == 0
    assert generate(engine, [PROMPT])[0] == generate(tiny_engine(model), [PROMPT])[0]
    assert engine.stats.prefix_hits == 0


def test_scrubbing_leaves_running_sequences_alone(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4)
    engine.add(0, PROMPT, greedy(9))
    progress = engine.step() + engine.step()
    assert engine.scrub() == 0
    progress += all_progress(engine)
    assert [p.token for p in progress] == generate(tiny_engine(model), [PROMPT], greedy(9))[0]


def test_an_aborted_sequence_leaves_nothing_behind(model: Decoder) -> None:
    engine = tiny_engine(model, block_size=4, prefix_cache=False)
    engine.add(0, PROMPT, greedy(9))
    engine.step()
    assert engine.scheduler.running[0].status is Status.RUNNING
    engine.abort(0)
    assert engine.runner.residue(list(range(64))) == 0
