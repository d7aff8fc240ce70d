import math
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.core.sampling import SamplingParams
from backend.engine.cpu.sampler import NUCLEUS_GUESS, Draw, sample, truncate, uniform
from backend.marks.scheme import MarkKey, shard_key

VOCAB = 50


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1, "temperature": 1.0, **changes})


def frequencies(logits: torch.Tensor, p: SamplingParams, draws: int = 4000) -> dict[int, float]:
    tokens = sample(logits.expand(draws, -1), [Draw(p, position) for position in range(draws)])
    return {t: n / draws for t, n in Counter(tokens).items() if t is not None}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_softmax_says(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    expected = (logits / temperature).softmax(-1)
    seen = frequencies(logits, params(temperature=temperature, seed=3))
    for token, probability in enumerate(expected.tolist()):
        assert abs(seen.get(token, 0.0) - probability) < 4 * math.sqrt(probability / 4000) + 1e-3


def test_truncated_draws_come_as_often_as_the_kept_probabilities_say() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    seen = frequencies(logits, params(top_k=2, seed=1))
    expected = logits[:2].softmax(-1).tolist()
    assert seen.keys() == {0, 1}
    assert abs(seen[0] - expected[0]) < 0.03


def test_temperature_nought_is_greedy() -> None:
    logits = torch.randn(8, VOCAB)
    draws = [Draw(params(temperature=0.0, seed=i), i) for i in range(8)]
    assert sample(logits, draws) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("changes", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_the_narrowest_settings_are_greedy_too(changes: dict[str, float]) -> None:
    logits = torch.randn(8, VOCAB)
    assert sample(logits, [Draw(params(**changes), i) for i in range(8)]) == logits.argmax(-1).tolist()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_is_drawn_the_same_alone_and_among_any_others(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 6))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(rows, VOCAB) * 3
    draws = [
        Draw(
            params(
                temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
                top_k=data.draw(st.sampled_from([0, 1, 5, 1000])),
                top_p=data.draw(st.sampled_from([0.1, 0.7, 1.0])),
                seed=data.draw(st.integers(-(2**63), 2**63 - 1)),
            ),
            data.draw(st.integers(0, 10_000)),
        )
        for _ in range(rows)
    ]
    together = sample(logits, draws)
    assert [sample(logits[i : i + 1], [draws[i]])[0] for i in range(rows)] == together
    assert sample(logits.flip(0), draws[::-1])[::-1] == together


def test_random_numbers_follow_seed_and_position_and_nothing_else() -> None:
    assert uniform(5, 7) == uniform(5, 7)
    seeds = [*range(-20, 20), 2**62, 2**62 + 1, -(2**63), 2**63 - 1]
    numbers = [uniform(seed, position) for seed in seeds for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= u < 1 for u in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.03


@pytest.mark.parametrize("size", [5, NUCLEUS_GUESS, NUCLEUS_GUESS + 1, 3000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_k", [0, 3, 700])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.99, 1.0])
def test_the_kept_set_is_that_of_the_definition(size: int, spread: float, top_k: int, top_p: float) -> None:
    torch.manual_seed(size)
    logits = torch.randn(size).double() * spread  # double: the oracle's own rounding must not decide
    order = logits.argsort(descending=True)
    kept = order[: top_k or size]
    probabilities = logits[kept].softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    expected = kept[before < top_p] if top_p < 1 else kept
    actual, ids = truncate(logits, top_k, top_p)
    assert ids.tolist() == expected.tolist()
    torch.testing.assert_close(actual / actual.sum(), logits[expected].softmax(-1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("p", [params(), params(temperature=0.0), params(top_p=0.5), params(top_k=3)])
def test_a_row_that_is_not_numbers_gives_none_and_harms_no_other(bad: float, p: SamplingParams) -> None:
    logits = torch.randn(3, VOCAB)
    clean = sample(logits, [Draw(p, i) for i in range(3)])
    logits[1, 4] = bad
    assert sample(logits, [Draw(p, i) for i in range(3)]) == [clean[0], None, clean[2]]


def test_a_row_of_nothing_but_minus_infinity_gives_none() -> None:
    assert sample(torch.full((1, VOCAB), float("-inf")), [Draw(params(), 0)]) == [None]


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = torch.zeros(4)
    logits[2] = float("-inf")
    assert 2 not in frequencies(logits, params(seed=9))


@pytest.mark.parametrize("changes", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_over_keys_marked_tokens_come_as_often_as_unmarked_ones(changes: dict[str, float]) -> None:
    """The mark does not distort: five standard deviations of 4,000 draws, each by a key and context of its own."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    p = params(temperature=0.8, **changes)
    probabilities = torch.zeros(5)
    kept, ids = truncate(logits / 0.8, int(p.top_k), p.top_p, p.min_p)
    probabilities[ids] = kept / kept.sum()
    marked = [
        Draw(msgspec.structs.replace(p, mark=shard_key(number.to_bytes(32, "big"), number)), 9, [number, 2, 3])
        for number in range(4000)
    ]
    seen = Counter(sample(logits.expand(4000, -1), marked))
    for token, probability in enumerate(probabilities.tolist()):
        allowed = 5 * math.sqrt(4000 * probability * (1 - probability))
        assert abs(seen.get(token, 0) - 4000 * probability) <= allowed, (token, seen)


def test_a_marked_draw_depends_on_key_and_context_and_not_on_seed_or_position() -> None:
    logits = torch.randn(1, 2000)
    key, other = shard_key(bytes(32), 0), shard_key(bytes(32), 1)

    def drawn(mark: MarkKey, context: list[int], seed: int = 0, position: int = 5) -> int | None:
        return sample(logits, [Draw(params(seed=seed, mark=mark, temperature=2.0), position, context)])[0]

    assert drawn(key, [1, 2, 3]) == drawn(key, [1, 2, 3], seed=9, position=70)
    assert len({drawn(key, [1, 2, last]) for last in range(8)}) > 4
    assert len({drawn(mark, [last, 2, 3]) for mark in (key, other) for last in range(4)}) > 4
