"""What a token is committed to is the state that it was drawn from: alone, batched, preempted, guessed, ahead, forked,
behind a cached prefix, in chunks and in parts of a model."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from backend.activations.answer_commitment import Committer, distance
from backend.activations.largest_activations import CHUNK, MOST, Words, row_of
from backend.engine.core.sampling import SamplingParams
from backend.engine.drafting.ngram_drafter import NgramDrafter
from backend.engine.engine import Engine
from backend.kernels.reference import largest_activations
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import ahead
from tests.backend.engine.test_engine import NaiveAttention
from tests.backend.tiny import tiny_engine, tiny_model

PROMPTS = [[5, 9, 5, 200, 31], [7, 64, 8, 90], [3] * 20, [1, 2, 3, 4, 5, 6, 7], [11] * 40]
WIDTH = 192
Told = dict[int, list[tuple[int, bytes | None]]]
GRAPHS = ["none"] + ["whole", "pieces"] * torch.cuda.is_available()


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(3, hidden_size=WIDTH, head_dim=16, num_heads=4)


def committing(seed: int, **changes: Any) -> SamplingParams:
    settings = {"max_tokens": 40, "temperature": 0.9, "ignore_eos": True, "commits": True, "seed": seed}
    return SamplingParams(**{**settings, **changes})


def told(engine: Engine, params: list[SamplingParams], seed: int = 0, prompts: list[list[int]] = PROMPTS) -> Told:
    """Of all prompts in one batch; with a seed, sequences are preempted now and then."""
    rng, found = random.Random(seed), Told()
    for i, p in enumerate(params):
        engine.add(i, prompts[i], p)
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            found.setdefault(item.id, []).append((item.token, item.activations))
        if seed and engine.scheduler.running and rng.random() < 0.2:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
    return found


@torch.inference_mode()
def by_definition(model: Decoder, prompt: list[int], answer: list[int]) -> list[Words]:
    """The states behind the prompt and behind each token but the last, from one prefill."""
    tokens = prompt + answer[:-1]
    at = torch.arange(len(tokens))
    states = model.states(torch.tensor(tokens), at, NaiveAttention(), at[len(prompt) - 1 :])
    return [row_of(row.numpy().tobytes()) for row in largest_activations(states, MOST)]


def assert_committed(model: Decoder, found: Told, prompts: list[list[int]] = PROMPTS, most: float = 0.2) -> None:
    """Each row is of its own token: by comparison of whole chunks, and of each row's largest value."""
    for id, answer in found.items():
        tokens, committer = [token for token, _ in answer], Committer(prompts[id], WIDTH)
        for token, row in answer:
            assert row is not None
            assert len(row) == 4 * MOST
            committer.add(token, row)
        expected, made = by_definition(model, prompts[id], tokens), committer.finish()
        assert [chunk.rows for chunk in made.chunks] == [CHUNK, len(tokens) - CHUNK]
        for at, chunk in enumerate(made.chunks):
            own = distance(chunk, expected[at * CHUNK : at * CHUNK + chunk.rows], WIDTH)
            assert own.steps <= most, (id, at, own)
        for (_, row), words in zip(answer, expected, strict=True):
            ours = row_of(row or b"")
            assert len(np.intersect1d(ours & 0xFFFF, words & 0xFFFF)) >= MOST - 4


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_num_batched_tokens": 16}, {"block_size": 4, "num_blocks": 256}, {"prefix_cache": False}],
    ids=str,
)
def test_each_token_is_committed_to_the_state_it_was_drawn_from(model: Decoder, changes: dict[str, Any]) -> None:
    assert_committed(model, told(tiny_engine(model, **changes), [committing(i) for i in range(5)], seed=1))


def test_in_deterministic_mode_the_bits_do_not_depend_on_company_or_preemption(model: Decoder) -> None:
    engine = tiny_engine(model, batch_invariant=True)
    alone = told(engine, [committing(0)])
    assert_committed(model, alone)
    batched = told(tiny_engine(model, batch_invariant=True), [committing(i) for i in range(3)], seed=2)
    assert batched[0] == alone[0]


def test_only_tokens_that_are_kept_are_committed_to(model: Decoder) -> None:
    params = [committing(i) for i in range(4)]
    plain = told(tiny_engine(model), params)
    answers = {id: [token for token, _ in answer] for id, answer in plain.items()}
    for wrong in (0.0, 0.3):
        engine = tiny_engine(model, drafter=Oracle(answers, wrong))
        assert_committed(model, told(engine, params))
        assert engine.stats.draft_tokens_accepted > 0
    assert_committed(model, told(tiny_engine(model, drafter=NgramDrafter(sizes=(1,))), params))


def test_forks_and_cached_prefixes_are_committed_to_as_well(model: Decoder) -> None:
    engine, prompt = tiny_engine(model), PROMPTS[4]
    engine.add(0, prompt, committing(0))
    engine.add(1, prompt, committing(1), leader=0)
    found = Told()
    while engine.has_work:
        for item in engine.step():
            found.setdefault(item.id, []).append((item.token or 0, item.activations))
    assert found[0] != found[1]
    assert_committed(model, found, [prompt, prompt])
    assert_committed(model, told(engine, [committing(7)], prompts=[prompt]), [prompt])
    assert engine.stats.prefix_hits


@pytest.mark.parametrize("changes", [{"frequency_penalty": 1.5, "logit_bias": ((3, 4.0),)}, {"logprobs": 2}], ids=str)
def test_shaped_and_reported_draws_are_committed_to(model: Decoder, changes: dict[str, Any]) -> None:
    assert_committed(model, told(tiny_engine(model), [committing(i, **changes) for i in range(3)], seed=3))
    assert_committed(model, told(ahead(model), [committing(i, **changes) for i in range(3)], seed=3), most=0.5)


def test_who_does_not_ask_gets_nothing_beside_one_who_does(model: Decoder) -> None:
    for engine in (tiny_engine(model), ahead(model)):
        found = told(engine, [committing(0), committing(1, commits=False)])
        assert all(row for _, row in found[0])
    assert not any(row for _, row in told(tiny_engine(model), [committing(0, commits=False)])[0])


@pytest.mark.parametrize("graphs", GRAPHS)
def test_a_runner_that_is_ahead_of_the_host_commits_to_the_same(model: Decoder, graphs: str) -> None:
    params = [committing(i) for i in range(4)]
    found = told(ahead(model, graphs=graphs), params, seed=1)
    assert_committed(model, found, most=0.5)
    answers = {id: [token for token, _ in answer] for id, answer in found.items()}
    engine = ahead(model, graphs=graphs, drafter=Oracle(answers, 0.2))
    assert_committed(model, told(engine, params), most=0.5)
    assert engine.stats.draft_tokens_accepted > 0


def test_its_deterministic_mode_commits_to_the_same_in_any_company(model: Decoder) -> None:
    """To the last bit on a GPU; the kernels' twins add rows of a batch in an order that depends on it."""
    found = told(ahead(model, invariant=True), [committing(i) for i in range(3)], seed=4)
    assert_committed(model, found, most=0.5)
    if torch.cuda.is_available():
        assert found[0] == told(ahead(model, invariant=True), [committing(0)])[0]
