"""Marked answers: each token is the one that the scheme defines: alone, batched, preempted, guessed, ahead."""

import random
from typing import Any

import pytest
import torch

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.cpu.sampler import Draw, sample
from backend.engine.drafting.ngram_drafter import NgramDrafter
from backend.engine.engine import Engine
from backend.marks.scheme import marked_context, shard_key
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import ahead
from tests.backend.engine.test_semantics import logits_behind
from tests.backend.tiny import generate, tiny_engine, tiny_model

KEY = bytes(range(32))
PROMPTS = [[5, 9, 5, 200, 31], [7, 64, 8, 90], [3] * 20, [1, 2, 3, 4, 5, 6, 7]]


class Guesser(Oracle):
    """Whose wrong guesses are words of the small vocabulary, too."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [[token % 24 for token in guesses] for guesses in super().propose(wanted)]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(2, vocab_size=24, head_dim=16)  # as the kernels of a card take


def marked(seed: int, **changes: Any) -> SamplingParams:
    settings = {"max_tokens": 30, "temperature": 1.3, "ignore_eos": True, "mark": shard_key(KEY, seed)}
    return SamplingParams(**{**settings, "seed": seed, **changes})


def by_definition(model: Decoder, prompt: list[int], params: SamplingParams) -> list[int]:
    tokens = list(prompt)
    for _ in range(params.max_tokens):
        context = marked_context(tokens, len(prompt), len(tokens))
        (token,) = sample(logits_behind(model, tokens)[-1:], [Draw(params, len(tokens), context)])
        assert token is not None
        tokens.append(token)
    return tokens[len(prompt) :]


PARAMS = [marked(0), marked(1, top_k=5), marked(2, top_p=0.8, min_p=0.01), marked(3, min_p=0.05)]


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    prompts = [[token % 24 for token in prompt] for prompt in PROMPTS]
    return [by_definition(model, prompt, params) for prompt, params in zip(prompts, PARAMS, strict=True)]


def answers(engine: Engine, params: list[SamplingParams], seed: int = 0) -> list[list[int]]:
    """Of all prompts in one batch; with a seed, sequences are preempted now and then."""
    rng = random.Random(seed)
    for i, p in enumerate(params):
        engine.add(i, [token % 24 for token in PROMPTS[i]], p)
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            tokens.setdefault(item.id, []).append(item.token)
        if seed and engine.scheduler.running and rng.random() < 0.2:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
    return [tokens[i] for i in range(len(params))]


@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 16}, {"block_size": 4, "num_blocks": 256}], ids=str)
def test_answers_are_those_of_the_scheme(model: Decoder, expected: list[list[int]], changes: dict[str, Any]) -> None:
    assert answers(tiny_engine(model, **changes), PARAMS) == expected
    assert answers(tiny_engine(model, **changes), PARAMS, seed=1) == expected


def test_guesses_that_are_kept_have_the_mark_too(model: Decoder, expected: list[list[int]]) -> None:
    for wrong in (0.0, 0.3):
        engine = tiny_engine(model, drafter=Guesser(dict(enumerate(expected)), wrong))
        assert answers(engine, PARAMS) == expected
        assert engine.stats.draft_tokens_accepted > 0
    assert answers(tiny_engine(model, drafter=NgramDrafter(sizes=(1,))), PARAMS) == expected


def test_another_key_another_answer_and_none_the_seed_s_own(model: Decoder, expected: list[list[int]]) -> None:
    prompt = [token % 24 for token in PROMPTS[0]]
    (other,) = generate(tiny_engine(model), [prompt], marked(0, mark=shard_key(KEY, 1)))
    (without,) = generate(tiny_engine(model), [prompt], marked(0, mark=None))
    assert other[:3] == without[:3] == expected[0][:3]  # no context lies in the answer yet
    assert other != expected[0] != without != other


def test_greedy_answers_are_as_without_a_mark(model: Decoder) -> None:
    plain = generate(tiny_engine(model), [PROMPTS[3]], marked(0, temperature=0, mark=None))
    assert generate(tiny_engine(model), [PROMPTS[3]], marked(0, temperature=0)) == plain


@pytest.mark.parametrize("changes", [{"frequency_penalty": 1.5, "logit_bias": ((3, 4.0),)}, {"logprobs": 2}], ids=str)
def test_shaped_and_reported_draws_are_marked(model: Decoder, changes: dict[str, Any]) -> None:
    params = [marked(i, **changes) for i in range(4)]
    alone = [answers_alone(model, i, p) for i, p in enumerate(params)]
    assert answers(tiny_engine(model), params, seed=3) == alone
    assert alone != [answers_alone(model, i, marked(i, mark=None, **changes)) for i in range(4)]


def answers_alone(model: Decoder, i: int, params: SamplingParams) -> list[int]:
    (tokens,) = generate(tiny_engine(model), [[token % 24 for token in PROMPTS[i]]], params)
    return tokens


def test_several_answers_to_one_prompt_differ(model: Decoder) -> None:
    found = {tuple(generate(tiny_engine(model), [[1, 2, 3]], marked(i))[0]) for i in range(8)}
    assert len(found) == 8


@pytest.mark.parametrize("graphs", ["none"] + ["whole"] * torch.cuda.is_available())
def test_a_runner_that_is_ahead_of_the_host_marks_the_same(model: Decoder, graphs: str) -> None:
    """Its seeded draws are another generator's, so it is compared with itself: alone, preempted, and with guesses."""
    alone = [answers_of_one(ahead(model, graphs=graphs), i, p) for i, p in enumerate(PARAMS)]
    assert alone != [answers_of_one(ahead(model, graphs=graphs), i, marked(i, mark=None)) for i in range(4)]
    for seed in (0, 1):
        assert answers(ahead(model, graphs=graphs), PARAMS, seed) == alone
        engine = ahead(model, graphs=graphs, drafter=Guesser(dict(enumerate(alone)), 0.2))
        assert answers(engine, PARAMS, seed) == alone
        assert engine.stats.draft_tokens_accepted > 0
    for i, (tokens, params) in enumerate(zip(alone, PARAMS, strict=True)):
        assert follows_the_scheme(model, [token % 24 for token in PROMPTS[i]], tokens, params)


def answers_of_one(engine: Engine, i: int, params: SamplingParams) -> list[int]:
    (tokens,) = generate(engine, [[token % 24 for token in PROMPTS[i]]], params)
    return tokens


def follows_the_scheme(model: Decoder, prompt: list[int], answer: list[int], params: SamplingParams) -> bool:
    """Each token that is marked is the one that the plain sampler draws there; some are marked."""
    marks = 0
    for i, token in enumerate(answer):
        tokens = prompt + answer[:i]
        context = marked_context(tokens, len(prompt), len(tokens))
        if context is not None:
            marks += 1
            if sample(logits_behind(model, tokens)[-1:], [Draw(params, len(tokens), context)]) != [token]:
                return False
    return marks > 10
