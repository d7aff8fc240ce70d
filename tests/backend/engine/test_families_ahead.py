"""Families that depart from Llama under the runner that works ahead: the plain runner's tokens, on the kernels' twins
anywhere, on kernels and CUDA graphs where there is a GPU."""

import random
from typing import Any

import msgspec
import pytest

from backend.engine.core.sampling import SamplingParams
from backend.engine.gpu.graph_runner import GraphRunner
from backend.models.decoders.decoder import Decoder
from tests.backend.engine import test_batch_invariance as invariance
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import GPU, GRAPHS, ahead, assert_idle, told
from tests.backend.tiny import generate, greedy, tiny_engine
from tests.backend.tiny_families import FAMILIES, tiny_family

LENGTHS = (1, 5, 17, 33, 60, 90, 7)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_family(request.param, 3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(2)
    return [[rng.randrange(320) for _ in range(n)] for n in LENGTHS]


@pytest.fixture(scope="module")
def expected(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    return generate(tiny_engine(model), prompts)


@GRAPHS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 17, "block_size": 32},
        {"num_blocks": 12, "max_model_len": 120},
        {"max_num_seqs": 3, "prefix_cache": False},
    ],
    ids=str,
)
def test_batched_chunked_preempted_in_any_pages_and_from_the_cache(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], changes: dict[str, Any], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, **changes)
    for _ in range(2):
        assert generate(engine, prompts) == expected
        assert_idle(engine)
    if not changes:
        assert engine.stats.prefix_hits > 0
    assert generate(engine, [prompts[5]]) == [expected[5]]  # alone: steps of a single row


@GRAPHS
@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_guesses_are_checked_in_one_step_and_change_nothing(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], wrong: float, graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, drafter=Oracle(dict(enumerate(expected)), wrong))
    assert generate(engine, prompts) == expected
    assert engine.stats.draft_tokens_accepted > 0
    assert_idle(engine)


@GRAPHS
def test_shaped_and_reported_draws_are_those_of_the_plain_runner(
    model: Decoder, prompts: list[list[int]], graphs: str
) -> None:
    """With log probabilities of answers and prompts: caps and scales of logits are in them."""
    shapes: list[dict[str, Any]] = [
        {"logprobs": 2}, {"logprobs": 0, "prompt_logprobs": 1}, {"repetition_penalty": 1.6}, {"presence_penalty": 1.5},
    ]  # fmt: skip
    params = [greedy(8, **shapes[i % len(shapes)]) for i in range(len(prompts))]
    wanted = told(tiny_engine(model), prompts, params)
    found = told(ahead(model, graphs=graphs), prompts, params)
    assert [[i.token for i in one] for one in found] == [[i.token for i in one] for one in wanted]
    seen = 0
    for one, other in zip(found, wanted, strict=True):
        for item, reference in zip(one, other, strict=True):
            for mine, theirs in zip(
                [*(item.prompt or []), *([item.logprobs] if item.logprobs else [])],
                [*(reference.prompt or []), *([reference.logprobs] if reference.logprobs else [])],
                strict=True,
            ):
                assert mine.logprob == pytest.approx(theirs.logprob, abs=2e-3)
                seen += 1
    assert seen > 30


@GRAPHS
def test_a_context_that_no_window_reaches_goes_by_the_roads_of_whole_attention(
    prompts: list[list[int]], graphs: str
) -> None:
    """Without windows a batch may share a prefix, but for a cap that this kernel does not know."""
    for name in ("gemma2", "gemma3"):
        model = tiny_family(name, 4, sliding_window=512)
        assert not model.config.windows
        assert model.config.plain_attention == (name == "gemma3")
        assert generate(ahead(model, graphs=graphs), prompts) == generate(tiny_engine(model), prompts)


def test_a_batch_with_a_capped_model_never_shares_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.engine.gpu import graph_runner

    monkeypatch.setattr(graph_runner, "SHARED_TOKENS", 64)
    monkeypatch.setattr(graph_runner, "SHARED_SEQUENCES", 3)
    lengths: dict[str, set[int]] = {}
    for name in ("gemma2", "gemma3"):
        model = tiny_family(name, 4, sliding_window=512)
        head = [(7 * i) % 320 for i in range(100)]
        together = [[*head, i, i + 1] for i in range(5)]
        found: list[int] = []
        find = GraphRunner._common_prefix

        class Watched(GraphRunner):
            def _common_prefix(self, batch: Any, found: list[int] = found, find: Any = find) -> int:
                found.append(find(self, batch))
                return found[-1]

        engine = ahead(model, graphs="whole" if GPU else "none", runs_on=Watched, max_num_batched_tokens=512)
        assert generate(engine, together) == [generate(tiny_engine(model), [prompt])[0] for prompt in together]
        lengths[name] = set(found)
    assert lengths == {"gemma2": {0}, "gemma3": {64}}


@pytest.mark.parametrize("name", FAMILIES)
def test_batch_invariant_answers_are_the_same_alone_together_chunked_guessed_and_preempted(
    name: str, prompts: list[list[int]]
) -> None:
    """To the last bit on a GPU, and by logits that are far apart elsewhere (see `test_batch_invariance`)."""
    model = tiny_family(name, 5, head_dim=64)
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
        assert guessing.stats.draft_tokens_accepted > 0


def test_seeded_draws_are_the_same_alone_batched_and_chunked(model: Decoder, prompts: list[list[int]]) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.9, top_k=40, seed=3, ignore_eos=True)
    alone = [generate(ahead(model), [prompt], params)[0] for prompt in prompts]
    assert generate(ahead(model, max_num_batched_tokens=16), prompts, params) == alone
    assert alone != generate(tiny_engine(model), prompts, msgspec.structs.replace(params, temperature=0.0))
