"""Mixtures of experts under the runner that works ahead: the plain runner's tokens, on the kernels' twins anywhere, on
kernels and CUDA graphs where there is a GPU."""

import random
from typing import Any

import pytest

from backend.engine.core.sampling import SamplingParams
from backend.models.decoders.decoder import Decoder
from tests.backend.engine import test_batch_invariance as invariance
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import GPU, GRAPHS, ahead, assert_idle
from tests.backend.models.decoders.test_mixture import MIXTURES, mixture
from tests.backend.tiny import generate, greedy, tiny_engine

LENGTHS = (1, 5, 17, 33, 60, 90, 7)


@pytest.fixture(scope="module", params=MIXTURES)
def model(request: pytest.FixtureRequest) -> Decoder:
    return mixture(request.param, 3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(2)
    return [[rng.randrange(320) for _ in range(n)] for n in LENGTHS]


@pytest.fixture(scope="module")
def expected(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    return generate(tiny_engine(model), prompts)


@GRAPHS
@pytest.mark.parametrize(
    "changes", [{}, {"max_num_batched_tokens": 17, "block_size": 32}, {"num_blocks": 12, "max_model_len": 120}], ids=str
)
def test_batched_chunked_preempted_in_any_pages_and_from_the_cache(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], changes: dict[str, Any], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, **changes)
    for _ in range(2):
        assert generate(engine, prompts) == expected
        assert_idle(engine)
    assert generate(engine, [prompts[5]]) == [expected[5]]  # alone: steps of a single row


@GRAPHS
def test_guesses_are_checked_in_one_step_and_change_nothing(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, drafter=Oracle(dict(enumerate(expected)), 0.3))
    assert generate(engine, prompts) == expected
    assert engine.stats.draft_tokens_accepted > 0
    assert_idle(engine)


@pytest.mark.parametrize("name", MIXTURES)
def test_batch_invariant_answers_are_the_same_alone_together_chunked_guessed_and_preempted(
    name: str, prompts: list[list[int]]
) -> None:
    """To the last bit on a GPU, and by logits that are far apart elsewhere (see `test_batch_invariance`)."""
    model = mixture(name, 5)
    sampled = SamplingParams(max_tokens=12, temperature=0.7, top_p=0.95, seed=9, ignore_eos=True)
    for params in (greedy(12), sampled) if GPU else (greedy(12),):
        single = invariance.engine_of(model, kernels=invariance.KERNELS, graphs=False, ahead=0, prefix_cache=False)
        alone = [invariance.answers_of(single, [prompt], params)[0] for prompt in prompts]
        for changes in ({}, {"max_num_batched_tokens": 32}):
            engine = invariance.engine_of(model, kernels=invariance.KERNELS, **changes)
            assert invariance.answers_of(engine, prompts, params, invariance.preempting(2)) == alone
        known = {id: [token or 0 for token in tokens] for id, tokens in enumerate(alone)}
        guessing = invariance.engine_of(model, kernels=invariance.KERNELS, drafter=Oracle(known, 0.3))
        assert invariance.answers_of(guessing, prompts, params) == alone
