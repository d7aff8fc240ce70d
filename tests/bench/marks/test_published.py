"""The published marks that ours are measured beside: their random numbers, and detectors that unmarked texts pass."""

import random
from statistics import fmean

import pytest
import torch

from backend.engine.core.sampling import SamplingParams
from backend.engine.cpu.sampler import Draw
from bench.marks.published import CONTEXT, SynthId, Vllm, once, philox

VOCAB = 500


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter, key, words):
    """Random123, ``kat_vectors``."""
    assert tuple(map(int, philox(counter, key))) == words


def marked(scheme, length=150, seed=0):
    """Draws from a wide distribution, as the engine asks for them."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tokens = [rng.randrange(VOCAB) for _ in range(CONTEXT)]
    for position in range(length):
        logits = torch.randn(VOCAB, generator=generator) * 2
        tokens.append(scheme.draw(logits, Draw(SamplingParams(max_tokens=1, seed=seed), position, tokens[-CONTEXT:])))
    return tokens


@pytest.mark.parametrize("scheme", [Vllm(), SynthId()], ids=lambda one: one.name)
def test_a_marked_text_is_found_and_by_no_other_key(scheme):
    tokens = marked(scheme)
    assert scheme.p_value(tokens) < 1e-6
    assert scheme.p_value(tokens[:CONTEXT]) >= 0.01, "nothing to look at"
    assert Vllm(43).p_value(tokens) > 1e-3


@pytest.mark.parametrize("scheme", [Vllm(), SynthId()], ids=lambda one: one.name)
def test_p_values_of_unmarked_texts_are_as_uniform_as_they_should_be(scheme):
    rng = random.Random(3)
    found = [scheme.p_value([rng.randrange(VOCAB) for _ in range(120)]) for _ in range(120)]
    assert 0.38 < fmean(found) < 0.62
    assert sum(p <= 0.05 for p in found) <= 15


def test_a_context_that_occurs_again_counts_once():
    assert len(once([1, 2, 3, 4, 5] * 4)) == 5 + CONTEXT
    assert once([7])[0] == ((0xFFFFFFFF,) * CONTEXT, 7)
