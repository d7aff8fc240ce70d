"""Greedy answers of the real model, token for token those of transformers' generate."""

from typing import Any

import pytest
import torch

from backend.engine.engine import Engine
from backend.engine_config import EngineConfig, size_cache
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy
from tests.conftest import CAMPAIGN

pytestmark = [pytest.mark.model, pytest.mark.campaign]

NEW_TOKENS = 12 if CAMPAIGN else 5
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain the GDPR in one sentence.",
    "What is 2 + 2?",
    "Translate 'good morning' into German.",
    "Name three rivers of Europe.",
    "Why is the sky blue?",
    "Who wrote Faust?",
    "Give me a recipe for pancakes.",
    "What does a notary do?",
    "Schreibe einen Satz über das Meer.",
    "¿Qué hora es?",
    "Summarise: the cat sat on the mat and then it went to sleep in the sun.",
    "List the planets.",
    "What is an IBAN?",
    "Tell me a joke about compilers.",
    "How do I boil an egg?",
    "🙂🙃 what do these mean?",
    "def fibonacci(n):",
    "Define sovereignty.",
]


@pytest.fixture(scope="module")
def prompts(smollm: Checkpoint) -> list[list[int]]:
    asked = QUESTIONS if CAMPAIGN else QUESTIONS[::2]
    return [smollm.text.encode_chat([{"role": "user", "content": question}]) for question in asked]


@pytest.fixture(scope="module")
def expected(smollm_reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = smollm_reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def engine(decoder: Decoder, smollm: Checkpoint, **changes: int | bool) -> Engine:
    config = EngineConfig(**{"model": "demo", "num_blocks": 256, "max_num_batched_tokens": 256, **changes})
    return Engine(decoder, config, size_cache(config, decoder.config, 4), smollm.text.eos_ids)


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    return generate(engine, prompts, greedy(NEW_TOKENS, ignore_eos=False))


def test_alone(
    smollm: Checkpoint, smollm_decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    assert [answers(engine(smollm_decoder, smollm), [p])[0] for p in prompts] == expected


def test_batched_with_fifteen_others(
    smollm: Checkpoint, smollm_decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    assert answers(engine(smollm_decoder, smollm, max_num_seqs=16), prompts) == expected


def test_chunked_under_a_small_budget(
    smollm: Checkpoint, smollm_decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    small = engine(smollm_decoder, smollm, max_num_batched_tokens=24, max_num_seqs=16, block_size=4, num_blocks=512)
    assert answers(small, prompts) == expected


def test_preempted_for_want_of_blocks(
    smollm: Checkpoint, smollm_decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    poor = engine(smollm_decoder, smollm, num_blocks=22, block_size=8, prefix_cache=False)
    assert answers(poor, prompts) == expected
    assert poor.stats.preemptions > 0


def test_from_the_prefix_cache(
    smollm: Checkpoint, smollm_decoder: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    warm = engine(smollm_decoder, smollm)
    assert answers(warm, prompts) == expected  # they share the system turn
    before = warm.stats.prefix_hits
    assert answers(warm, prompts) == expected
    assert warm.stats.prefix_hits - before == sum((len(p) - 1) // 16 * 16 for p in prompts)
