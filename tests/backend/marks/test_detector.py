import math
import random
from itertools import pairwise

import pytest

from backend.marks.detector import gamma_tail, is_detectable, p_value, pairs_of, score, scores
from backend.marks.scheme import CONTEXT, SHARDS, marked_context, random_word, random_words, shard_key, word_table

KEY = bytes(range(32))


def unmarked(seed: int, length: int = 120) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(500) for _ in range(length)]


def marked(shard: int, length: int = 120, choices: int = 8) -> list[int]:
    """A text whose tokens are each drawn among that many equally likely ones."""
    rng, key = random.Random(shard), shard_key(KEY, shard)
    tokens: list[int] = []
    while len(tokens) < length:
        candidates = rng.sample(range(500), choices)
        context = marked_context(tokens, 0, len(tokens))
        if context is None:
            tokens.append(candidates[0])
        else:
            words = random_words(key, context, 500)
            tokens.append(min(candidates, key=lambda token: words[token]))
    return tokens


@pytest.mark.parametrize(
    ("n", "total", "expected"),
    [(1, 1.0, math.exp(-1)), (2, 3.0, 4 * math.exp(-3)), (3, 2.0, 5 * math.exp(-2)), (0, 0, 1)],
)
def test_the_tail_is_that_of_a_sum_of_exponentials(n: int, total: float, expected: float) -> None:
    assert math.isclose(gamma_tail(n, total), expected)


def test_the_tail_of_long_texts_is_finite_and_falls() -> None:
    tails = [gamma_tail(8000, total) for total in (7000.0, 8000.0, 8500.0, 9500.0, 40_000.0)]
    assert all(0 <= later < earlier <= 1 for earlier, later in pairwise(tails))
    assert 0.49 < tails[1] < 0.51


def test_p_values_of_unmarked_texts_are_spread_evenly() -> None:
    """By one key: of 2,000 texts as many under 0.05 as five standard deviations allow."""
    key = shard_key(KEY, 0)
    below = sum(score(key, pairs_of(unmarked(seed, 24))).p_value < 0.05 for seed in range(2000))
    assert abs(below - 100) < 5 * math.sqrt(2000 * 0.05 * 0.95)


def test_of_unmarked_texts_no_more_are_found_than_the_level_says_for_all_shards_together() -> None:
    found = sum(p_value(KEY, pairs_of(unmarked(seed, 60))) <= 0.05 for seed in range(300))
    assert found <= 15 + 5 * math.sqrt(15)


def test_a_marked_text_is_found_by_its_own_key_alone() -> None:
    for shard in (0, 5, SHARDS - 1):
        pairs = pairs_of(marked(shard))
        assert p_value(KEY, pairs) < 1e-9
        assert p_value(bytes(32), pairs) > 1e-4
        assert score(shard_key(KEY, shard + 1), pairs).p_value > 1e-5


def test_repetition_does_not_make_a_text_marked() -> None:
    once = unmarked(7, 40)
    assert pairs_of(once * 30)[: len(pairs_of(once))] == pairs_of(once)
    assert len(pairs_of(once * 30)) == len(pairs_of(once)) + CONTEXT  # those over the seam


def test_an_edited_text_keeps_what_was_left_alone() -> None:
    rng = random.Random(3)
    tokens = [token if rng.random() > 0.15 else rng.randrange(500) for token in marked(1, 250)]
    assert p_value(KEY, pairs_of(tokens)) < 1e-4


def test_an_answer_is_detectable_only_if_there_was_something_to_choose() -> None:
    key = shard_key(KEY, 2)
    assert is_detectable(key, marked(2))
    assert not is_detectable(key, marked(2, 12)), "short"
    assert not is_detectable(key, marked(2, choices=1)), "certain"
    assert not is_detectable(key, unmarked(1))
    assert not is_detectable(key, [])


def test_texts_too_short_for_a_context_say_nothing() -> None:
    assert p_value(KEY, pairs_of([1, 2])) == 1.0
    assert scores([shard_key(KEY, 0)], [])[0].p_value == 1.0


def test_the_table_has_the_words_of_the_scheme() -> None:
    keys = [shard_key(KEY, shard) for shard in range(3)]
    pairs = pairs_of([5, 70_000, 131_071, 9, 262_143, 0, 4096, 4095])
    table = word_table(keys, pairs)
    assert [[int(word) for word in row] for row in table] == [
        [random_word(key, *pair) for pair in pairs] for key in keys
    ]
