"""An engine on several ranks beside the same on one: on cards where there are enough, else on the CPU with gloo."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.process.ranks import Ranks
from tests.backend.parallel.crew import device_for
from tests.backend.tiny import generate, greedy, tiny_model, write_folder

SIZES = (2, 4) if not torch.cuda.is_available() else tuple(n for n in (2, 4) if torch.cuda.device_count() >= n)
PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(length)] for k, length in enumerate((1, 5, 20, 33, 70))]
SEEDED = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=5, ignore_eos=True)
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 16, "hidden_size": 64, "intermediate_size": 128},
    "qwen3": {
        "num_heads": 8, "num_kv_heads": 4, "head_dim": 16, "hidden_size": 64, "intermediate_size": 128,
        "qk_norm": True, "tie_word_embeddings": False,
    },
}  # fmt: skip
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
Made = Callable[..., Engine]


@pytest.fixture(scope="module", params=sorted(SHAPES))
def shape(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    folder = tmp_path_factory.mktemp(name) / "model"
    return write_folder(folder, tiny_model(7, **SHAPES[name]), architectures=[ARCHITECTURES[name]])


def configured(folder: Path, size: int, **changes: Any) -> EngineConfig:
    settings = {
        "model": str(folder), "device": device_for(max(SIZES, default=1)), "num_blocks": 64, "max_num_seqs": 8,
        "max_num_batched_tokens": 64, "threads": 1, "max_model_len": 512, "tensor_parallel_size": size,
    }  # fmt: skip
    return EngineConfig(**{**settings, **changes})


@pytest.fixture(scope="module")
def alone(shape: Path) -> Engine:
    return Engine.from_checkpoint(Checkpoint(shape, 512), configured(shape, 1))


@pytest.fixture(scope="module", params=SIZES)
def divided(request: pytest.FixtureRequest, shape: Path) -> Iterator[Engine]:
    config = configured(shape, request.param, speculation="ngram")
    ranks = Ranks(config, on_lost=print)
    engine = Engine.from_checkpoint(Checkpoint(shape, 512), config, team=ranks.join())
    ranks.await_ready()
    yield engine
    ranks.close()


def said(engine: Engine, params: SamplingParams) -> list[list[int]]:
    return generate(engine, PROMPTS, params)


def test_ranks_say_greedily_what_one_says(alone: Engine, divided: Engine) -> None:
    assert said(divided, greedy(12)) == said(alone, greedy(12))


def test_ranks_draw_with_a_seed_what_one_draws(alone: Engine, divided: Engine) -> None:
    assert said(divided, SEEDED) == said(alone, SEEDED)


def test_penalties_biases_and_restrictions_hold_on_all_ranks(alone: Engine, divided: Engine) -> None:
    wanted = SamplingParams(
        max_tokens=12, temperature=0.7, seed=3, frequency_penalty=0.5, repetition_penalty=1.2, min_tokens=4,
        logit_bias=((9, 3.0),), bad_words=((17, 18),), allowed_token_ids=tuple(range(5, 200)),
    )  # fmt: skip
    assert said(divided, wanted) == said(alone, wanted)


def test_log_probabilities_are_near_those_of_one(alone: Engine, divided: Engine) -> None:
    wanted = greedy(4, logprobs=3, prompt_logprobs=2)

    def reported(engine: Engine) -> list[Any]:
        engine.add(900, PROMPTS[3], wanted)
        found: list[Any] = []
        while engine.has_work:
            found += [(item.token, item.logprobs, item.prompt) for item in engine.step()]
        return found

    for (token, own, prompt), (token_alone, own_alone, prompt_alone) in zip(
        reported(divided), reported(alone), strict=True
    ):
        assert token == token_alone
        assert own.logprob == pytest.approx(own_alone.logprob, abs=1e-3)
        assert [p.logprob for p in prompt or []] == pytest.approx([p.logprob for p in prompt_alone or []], abs=1e-3)


def test_a_repetitive_answer_whose_tokens_are_guessed_is_the_same(alone: Engine, divided: Engine) -> None:
    prompt = [5, 6, 7, 8] * 8
    assert generate(divided, [prompt], greedy(24)) == generate(alone, [prompt], greedy(24))


def test_all_ranks_scrub_their_blocks(divided: Engine) -> None:
    said(divided, greedy(2))
    assert divided.scrub() == 0


def test_all_ranks_sleep_and_wake(alone: Engine, divided: Engine) -> None:
    given = divided.sleep()
    assert given > 0 and divided.asleep
    divided.wake()
    assert said(divided, greedy(12)) == said(alone, greedy(12))


def test_more_sequences_than_blocks_are_preempted_alike(alone: Engine, divided: Engine) -> None:
    prompts = [[4 + (i + k) % 250 for i in range(90)] for k in range(12)]
    assert generate(divided, prompts, greedy(40)) == generate(alone, prompts, greedy(40))
    assert divided.stats.preemptions > 0


def test_a_form_is_followed_on_all_ranks(alone: Engine, divided: Engine) -> None:
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "a" /[b-f]{3,9}/ "z"'}]})
    wanted = SamplingParams(max_tokens=20, temperature=0.8, seed=11, grammar=grammar)
    assert said(divided, wanted) == said(alone, wanted)
