"""The metamorphic matrix: one request, the same tokens and log probabilities, however the engine computed them.

On a GPU the batch-invariant mode promises it bit for bit, in bfloat16, where logits tie often. Elsewhere the twins run
in float32 and tokens agree because logits are far apart: what is checked there is the way they are put together.
"""

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.speculation import Drafter
from backend.engine.engine import Engine
from backend.engine.gpu.captures import graph_sizes
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine_config import EngineConfig, size_cache
from backend.kernels import reference
from backend.kernels.interface import kernels_for
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from tests.backend.engine.drafters import Oracle
from tests.backend.tiny import greedy, tiny_model

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
ANSWER = 40 if GPU else 16
LENGTHS = (1, 17, 40, 90, 150)


def rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = x.new_empty(len(x), len(weight))
    for to, row in zip(out, x, strict=True):
        to.copy_(F.linear(row.clone(), weight, bias))  # cloned: where a row lies decides how a library sums it up
    return out


def rows_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    *,
    batch_invariant: bool = False,
    out: Tensor | None = None,
    **more: Any,
) -> Tensor:
    assert batch_invariant
    out = torch.zeros_like(q) if out is None else out.zero_()
    one = torch.tensor([0, 1])
    bounds = query_start.tolist()
    for table, begin, end, length in zip(block_tables, bounds[:-1], bounds[1:], seq_lens.tolist(), strict=True):
        for row in range(begin, end):
            before = torch.tensor([length - (end - 1 - row)])
            mine = q[row : row + 1].clone()
            out[row] = reference.paged_attention(mine, key_cache, value_cache, table[None], one, before, **more)[0]
    return out


BY_ROWS: Any = SimpleNamespace(
    **{**vars(reference), "invariant_linear": rows_linear, "paged_attention": rows_attention}
)
"""Twins that promise what the kernels do: what becomes of a row has one order of sums, whatever rows come with it."""
KERNELS: Any = None if GPU else BY_ROWS


def engine_of(
    model: Decoder,
    *,
    graphs: bool = GPU,
    ahead: int = 1,
    drafter: Drafter | None = None,
    kernels: Any = None,
    **changes: Any,
) -> Engine:
    settings: dict[str, Any] = {"model": "", "num_blocks": 256, "max_num_seqs": 24, "max_num_batched_tokens": 256}
    config = EngineConfig(**{**settings, **changes})
    cache = size_cache(config, model.config, 4)
    on_device = copy.deepcopy(model).to(DEVICE, DTYPE)
    pages = KVCache(model.config, cache.num_blocks, config.block_size, DTYPE, str(DEVICE))
    runner = GraphRunner(
        kind_of(model.config, batch_invariant=True)(on_device, kernels or kernels_for(DEVICE)),
        pages,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=cache.max_model_len,
        speculates=drafter is not None,
        batch_invariant=True,
    )
    runner.ahead = ahead
    if graphs:
        runner.capture(graph_sizes(config.max_num_seqs))
        while runner.prepare():
            pass
    return Engine(on_device, config, cache, runner=runner, drafter=drafter)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(5, head_dim=64, hidden_size=192, intermediate_size=320, num_layers=3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(320) for _ in range(n)] for n in LENGTHS]


@pytest.fixture(scope="module", params=[0.0, 0.7], ids=["greedy", "sampled"])
def params(request: pytest.FixtureRequest) -> SamplingParams:
    return (
        greedy(ANSWER)
        if request.param == 0
        else SamplingParams(max_tokens=ANSWER, temperature=request.param, top_p=0.95, seed=9, ignore_eos=True)
    )


@pytest.fixture(scope="module")
def telling(params: SamplingParams) -> SamplingParams:
    """The same, with log probabilities."""
    return msgspec.structs.replace(params, logprobs=3)


Answers = list[list[int | None]]
Told = list[list[TokenLogprobs]]  # of each sequence: its prompt's, where asked for, then its answer's


def answers_of(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, disturb: Callable[[Engine], None] | None = None
) -> Answers:
    tokens: dict[int, list[int | None]] = {}
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, params)
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
        if disturb:
            disturb(engine)
    return [tokens[id] for id in range(len(prompts))]


def preempting(seed: int) -> Callable[[Engine], None]:
    rng = random.Random(seed)

    def disturb(engine: Engine) -> None:
        if engine.scheduler.running and rng.random() < 0.2:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))

    return disturb


@pytest.fixture(scope="module")
def alone(model: Decoder, prompts: list[list[int]], params: SamplingParams) -> Answers:
    """Each by itself, whole, kernel by kernel, step by step."""
    engine = engine_of(model, graphs=False, ahead=0, prefix_cache=False)
    return [answers_of(engine, [prompt], params)[0] for prompt in prompts]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ahead": 0},
        {"graphs": False},
        {"prefix_cache": False},
        {"max_num_batched_tokens": 32},
        {"max_num_batched_tokens": 57},
        {"block_size": 32, "num_blocks": 128},
        {"block_size": 64, "num_blocks": 64},
        {"num_blocks": 24, "max_model_len": 256},
        {"max_num_seqs": 2, "max_num_batched_tokens": 64},
    ],
    ids=str,
)
def test_together_in_any_chunks_pages_and_steps(
    model: Decoder, prompts: list[list[int]], params: SamplingParams, alone: Answers, changes: dict[str, Any]
) -> None:
    engine = engine_of(model, **changes)
    assert answers_of(engine, prompts, params) == alone
    assert answers_of(engine, prompts, params) == alone  # from the prefix cache, where there is one


@pytest.mark.parametrize("wrong", [0.0, 0.4])
@pytest.mark.parametrize("graphs", [False, True] if GPU else [False])
def test_with_guesses_right_and_wrong(
    model: Decoder, prompts: list[list[int]], params: SamplingParams, alone: Answers, wrong: float, graphs: bool
) -> None:
    known = {id: [token or 0 for token in tokens] for id, tokens in enumerate(alone)}
    engine = engine_of(model, graphs=graphs, drafter=Oracle(known, wrong))
    assert answers_of(engine, prompts, params) == alone
    assert engine.stats.draft_tokens_accepted > 0


def test_preempted_at_any_time(
    model: Decoder, prompts: list[list[int]], params: SamplingParams, alone: Answers
) -> None:
    assert answers_of(engine_of(model, max_num_batched_tokens=64), prompts, params, preempting(2)) == alone


def test_among_strangers_who_come_and_go(
    model: Decoder, prompts: list[list[int]], params: SamplingParams, alone: Answers
) -> None:
    rng = random.Random(3)
    visitors = iter(range(1000, 1060))

    def disturb(engine: Engine) -> None:
        visitor = next(visitors, None)
        if visitor is not None and len(engine._sequences) < 20:
            engine.add(visitor, [rng.randrange(320) for _ in range(rng.randrange(1, 70))], greedy(rng.randrange(1, 20)))
        if rng.random() < 0.2:
            engine.abort(rng.randrange(1000, 1060))

    assert answers_of(engine_of(model), prompts, params, disturb) == alone


def told_of(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, disturb: Callable[[Engine], None] | None = None
) -> Told:
    told: dict[int, list[TokenLogprobs]] = {}
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, params)
    while engine.has_work:
        for item in engine.step():
            if item.id in range(len(prompts)):
                assert item.logprobs is not None
                told.setdefault(item.id, []).extend([*(item.prompt or []), item.logprobs])
        if disturb:
            disturb(engine)
    return [told[id] for id in range(len(prompts))]


@pytest.fixture(scope="module")
def told_alone(model: Decoder, prompts: list[list[int]], telling: SamplingParams) -> Told:
    engine = engine_of(model, kernels=KERNELS, graphs=False, ahead=0, prefix_cache=False)
    told = [told_of(engine, [prompt], telling)[0] for prompt in prompts]
    assert all(len(one) == ANSWER for one in told)
    return told


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_num_batched_tokens": 32}, {"prefix_cache": False}, {"block_size": 64, "num_blocks": 64},
     {"num_blocks": 24, "max_model_len": 256}],
    ids=str,
)  # fmt: skip
def test_log_probabilities_together_in_any_chunks_and_pages_and_from_the_cache(
    model: Decoder, prompts: list[list[int]], telling: SamplingParams, told_alone: Told, changes: dict[str, Any]
) -> None:
    engine = engine_of(model, kernels=KERNELS, **changes)
    assert told_of(engine, prompts, telling) == told_alone
    assert told_of(engine, prompts, telling) == told_alone  # from the prefix cache, where there is one


def test_log_probabilities_when_preempted_at_any_time(
    model: Decoder, prompts: list[list[int]], telling: SamplingParams, told_alone: Told
) -> None:
    engine = engine_of(model, kernels=KERNELS, max_num_batched_tokens=64)
    assert told_of(engine, prompts, telling, preempting(2)) == told_alone
    assert engine.stats.preemptions > 0


@pytest.fixture(scope="module")
def telling_all(telling: SamplingParams) -> SamplingParams:
    """The same, with those of the prompt's tokens."""
    return msgspec.structs.replace(telling, prompt_logprobs=2, max_tokens=6)


@pytest.fixture(scope="module")
def all_told_alone(model: Decoder, prompts: list[list[int]], telling_all: SamplingParams) -> Told:
    engine = engine_of(model, kernels=KERNELS, graphs=False, ahead=0, prefix_cache=False)
    told = [told_of(engine, [prompt], telling_all)[0] for prompt in prompts]
    assert [len(one) for one in told] == [len(prompt) - 1 + 6 for prompt in prompts]
    return told


@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 32}, {"block_size": 64, "num_blocks": 64}], ids=str)
def test_log_probabilities_of_prompts_together_in_any_chunks_and_pages(
    model: Decoder, prompts: list[list[int]], telling_all: SamplingParams, all_told_alone: Told, changes: dict[str, Any]
) -> None:
    engine = engine_of(model, kernels=KERNELS, **changes)
    assert told_of(engine, prompts, telling_all) == all_told_alone
    assert told_of(engine, prompts, telling_all) == all_told_alone  # with a cache that may not serve them
    assert told_of(engine, prompts, telling_all, preempting(2)) == all_told_alone
