"""An engine on several ranks beside the same on one: on cards where there are enough, else on the CPU with gloo."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher

from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from backend.models.families import mixtral
from backend.models.families.family import Experts
from tests.backend.parallel.crew import device_for
from tests.backend.parallel.hosted import HostedEngine
from tests.backend.tiny import generate, greedy, tiny_model, write_folder

SIZES = (2, 4) if not torch.cuda.is_available() else tuple(n for n in (2, 4) if torch.cuda.device_count() >= n)
PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(length)] for k, length in enumerate((1, 5, 20, 33, 70))]
SEEDED = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=5, ignore_eos=True)
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {
        "num_heads": 8, "num_kv_heads": 4, "head_dim": 16, "hidden_size": 64, "intermediate_size": 128,
        "qk_norm": True, "tie_word_embeddings": False, "num_layers": 3,
    },
    "mixtral": {
        "num_heads": 8, "num_kv_heads": 4, "head_dim": 16, "hidden_size": 64, "intermediate_size": 48,
        "experts": Experts(6, 2, 48, mixtral.NAMES),
    },
}  # fmt: skip
SAID: dict[str, dict[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 6, "num_experts_per_tok": 2},
}
DATE = LLMatcher.grammar_from_regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
HOST_BYTES = 4 << 20
ON_CPU = not torch.cuda.is_available()
NEAR = 0.02 if torch.cuda.is_available() else 1e-3  # kernels multiply float32 in TF32


Case = tuple[str, int, dict[str, Any]]  # a shape, ranks, and how the model is divided among them
CASES: list[Case] = [
    ("qwen3", 2, {"tensor_parallel_size": 2}),
    (
        "mixtral", 4,
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "expert_parallel": True, "redundant_experts": 1},
    ),
]  # fmt: skip
CASES = [case for case in CASES if case[1] in SIZES and (ON_CPU or "pipeline_parallel_size" not in case[2])]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def shape(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = case[0]
    folder = tmp_path_factory.mktemp(name) / "model"
    return write_folder(folder, tiny_model(7, **SHAPES[name]), **SAID[name])


def configured(folder: Path, **changes: Any) -> EngineConfig:
    settings = {
        "model": str(folder), "device": device_for(max(SIZES, default=1)), "num_blocks": 40, "max_num_seqs": 8,
        "max_num_batched_tokens": 64, "threads": 1, "max_model_len": 512,
    }  # fmt: skip
    return EngineConfig(**{**settings, **changes})


@pytest.fixture(scope="module")
def alone(shape: Path) -> Iterator[HostedEngine]:
    engine = HostedEngine(configured(shape))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def divided(case: Case, shape: Path) -> Iterator[HostedEngine]:
    engine = HostedEngine(configured(shape, speculation="ngram", host_cache_bytes=HOST_BYTES, **case[2]))
    yield engine
    engine.close()


def said(engine: HostedEngine, params: SamplingParams, prompts: list[list[int]] | None = None) -> list[list[int]]:
    answers: list[list[int]] = engine.ask(generate, prompts or PROMPTS, params)
    return answers


def test_ranks_say_greedily_what_one_says(alone: HostedEngine, divided: HostedEngine) -> None:
    assert said(divided, greedy(12)) == said(alone, greedy(12))


def test_ranks_draw_with_a_seed_what_one_draws(alone: HostedEngine, divided: HostedEngine) -> None:
    assert said(divided, SEEDED) == said(alone, SEEDED)


def test_penalties_biases_and_restrictions_hold_on_all_ranks(alone: HostedEngine, divided: HostedEngine) -> None:
    wanted = SamplingParams(
        max_tokens=12,
        temperature=0.7,
        seed=3,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        min_tokens=4,
        logit_bias=((9, 3.0),),
        bad_words=((17, 18),),
        allowed_token_ids=tuple(range(5, 200)),
        ignore_eos=True,
    )
    assert said(divided, wanted) == said(alone, wanted)


def reported(engine: Engine) -> list[tuple[int | None, float, list[float]]]:
    engine.add(900, PROMPTS[3], greedy(4, logprobs=3, prompt_logprobs=2))
    found = []
    while engine.has_work:
        for item in engine.step():
            assert item.logprobs is not None
            found.append((item.token, item.logprobs.logprob, [p.logprob for p in item.prompt or []]))
    return found


def test_log_probabilities_are_near_those_of_one(alone: HostedEngine, divided: HostedEngine) -> None:
    found = zip(divided.ask(reported), alone.ask(reported), strict=True)
    for (token, own, prompt), (token_alone, own_alone, prompt_alone) in found:
        assert token == token_alone
        assert own == pytest.approx(own_alone, abs=NEAR)
        assert prompt == pytest.approx(prompt_alone, abs=NEAR)


def test_a_repetitive_answer_whose_tokens_are_guessed_is_the_same(alone: HostedEngine, divided: HostedEngine) -> None:
    prompt = [5, 6, 7, 8] * 8
    assert said(divided, greedy(24), [prompt]) == said(alone, greedy(24), [prompt])


def test_all_ranks_scrub_their_blocks(divided: HostedEngine) -> None:
    said(divided, greedy(2))
    assert divided.ask(Engine.scrub) == 0


def test_all_ranks_sleep_and_wake(alone: HostedEngine, divided: HostedEngine) -> None:
    assert divided.ask(Engine.sleep) > alone.ask(Engine.sleep) > 0
    for engine in (divided, alone):
        engine.ask(Engine.wake)
    assert said(divided, greedy(12)) == said(alone, greedy(12))


def preemptions(engine: Engine) -> int:
    return engine.stats.preemptions


def test_more_sequences_than_blocks_are_preempted_alike(alone: HostedEngine, divided: HostedEngine) -> None:
    prompts = [[4 + (i + k) % 250 for i in range(120)] for k in range(10)]
    assert said(divided, greedy(16), prompts) == said(alone, greedy(16), prompts)
    assert divided.ask(preemptions) > 0


def always_copied(engine: Engine) -> None:
    """Whatever is measured here: a card computes so small a model faster than it copies."""
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]


def from_the_host(engine: Engine) -> tuple[int, int]:
    return engine.stats.host_hits, engine.scrub()


def test_blocks_come_back_from_the_host_of_all_ranks(alone: HostedEngine, divided: HostedEngine) -> None:
    asked = [[3 + (i * 11 + k) % 300 for i in range(200)] for k in range(5)]
    expected = [said(alone, greedy(8), [prompt]) for prompt in asked]
    divided.ask(always_copied)
    before, _ = divided.ask(from_the_host)
    for _ in range(2):
        assert [said(divided, greedy(8), [prompt]) for prompt in asked] == expected
    hits, residue = divided.ask(from_the_host)
    assert hits > before
    assert residue == 0


def test_a_form_is_followed_on_all_ranks(alone: HostedEngine, divided: HostedEngine) -> None:
    wanted = SamplingParams(max_tokens=20, temperature=0.8, seed=11, grammar=DATE)
    assert said(divided, wanted) == said(alone, wanted)


def rested(engine: Engine) -> list[int]:
    """As `run` does between requests."""
    while engine.prepare():
        pass
    return engine.stats.expert_pairs


def test_loads_of_ranks_that_hold_experts_are_counted_and_hot_ones_copied(case: Case, divided: HostedEngine) -> None:
    loads: list[int] = divided.ask(rested)
    if "expert_parallel" not in case[2]:
        assert loads == []
        return
    assert len(loads) == 2 and min(loads) > 0
    for j in range(4):  # several thousand pairs, so that copies move
        said(divided, greedy(2), [[4 + (i * (j + 2) + k) % 290 for i in range(400)] for k in range(2)])
    moved: list[int] = divided.ask(rested)
    assert sum(moved) > sum(loads) + 4000
    assert said(divided, greedy(12)) == said(divided, greedy(12))
