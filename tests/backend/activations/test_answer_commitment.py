"""Commitments to activations have the properties that TOPLOC publishes, and say when tokens differ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.activations.answer_commitment import (
    HEAD,
    OCTAVE,
    Commitment,
    Committer,
    Distance,
    Malformed,
    digest_of,
    distance,
)
from backend.activations.field import PRIME, evaluated, injective_modulus, interpolated, inverse
from backend.activations.largest_activations import CHUNK, MOST, largest, row_of

WIDTH = 576
PROMPT = [5, 6, 7]


def bits_of(states: np.ndarray) -> np.ndarray:
    """bfloat16, rounded to nearest even, as integers."""
    words = states.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint32)


def rows_of(states: np.ndarray) -> list[bytes]:
    """As a device packs them: by definition, from all of a state."""
    found = []
    for bits in bits_of(states):
        order = np.lexsort((np.arange(len(bits)), -(bits & 0x7FFF).astype(np.int64)))[:MOST]
        found.append((bits[order] << 16 | order.astype(np.uint32)).astype("<u4").tobytes())
    return found


def states(count: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, width)).astype(np.float32)


def committed(of: np.ndarray, tokens: list[int] | None = None, prompt: list[int] = PROMPT) -> Commitment:
    committer = Committer(prompt, of.shape[1])
    for token, row in zip(tokens or range(len(of)), rows_of(of), strict=True):
        committer.add(token, row)
    return committer.finish()


def distances(commitment: Commitment, again: np.ndarray) -> list[Distance]:
    rows = [row_of(row) for row in rows_of(again)]
    return [
        distance(chunk, rows[at * CHUNK : at * CHUNK + chunk.rows], commitment.width)
        for at, chunk in enumerate(commitment.chunks)
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=40, unique=True), st.randoms())
def test_a_polynomial_goes_through_its_points(places: list[int], random: object) -> None:
    rng = np.random.default_rng(len(places))
    values = rng.integers(0, PRIME, len(places))
    x = np.array(places, dtype=np.int64)
    (found,) = interpolated(x[None], values[None])
    assert found.max() < PRIME
    assert found.min() >= 0
    assert (evaluated(found, x) == values).all()


def test_inverses_are_inverses() -> None:
    values = np.arange(1, PRIME, dtype=np.int64)
    assert (values * inverse(values) % PRIME == 1).all()
    assert (inverse(-values) * values % PRIME == PRIME - 1).all()


def test_places_stay_apart_by_the_modulus() -> None:
    assert injective_modulus(np.array([1, 2, 3])) == PRIME
    for places in ([0, PRIME], [3, PRIME + 3, 9, 2 * PRIME + 3]):
        modulus = injective_modulus(np.array(places))
        assert modulus < PRIME
        assert len({place % modulus for place in places}) == len(places)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 70])
def test_the_same_states_are_at_no_distance(count: int) -> None:
    made = states(count)
    for one in distances(committed(made), made):
        assert (one.exponents, one.mean, one.median, one.steps) == (one.values, 0, 0, 0)
        assert one.values == MOST


def test_its_size_is_bounded_and_it_reads_back_the_same() -> None:
    for count in (1, 32, 300):
        made = committed(states(count))
        raw = made.to_bytes()
        assert len(raw) <= 300 * -(-count // 32)
        again = Commitment.from_bytes(raw)
        assert again.to_bytes() == raw
        assert [one.rows for one in again.chunks] == [32] * (count // 32) + [count % 32] * bool(count % 32)


def test_states_narrower_than_the_number_of_values_are_taken_whole() -> None:
    made = states(33, width=48)
    commitment = Commitment.from_bytes(committed(made).to_bytes())
    assert [one.values for one in distances(commitment, made)] == [MOST, 48]
    assert all(one.steps == 0 for one in distances(commitment, made))


def test_small_changes_are_near_and_other_states_far() -> None:
    made = states(96)
    noise = np.random.default_rng(9).normal(0, 1, made.shape)
    near = distances(committed(made), made * (1 + 0.002 * noise))
    further = distances(committed(made), made * (1 + 0.02 * noise))
    for a, b, c in zip(near, further, distances(committed(made), states(96, seed=1)), strict=True):
        assert a.exponents > 110
        assert a.mean < 3
        assert a.steps < b.steps < c.steps
        assert c.exponents < 20  # an exponent is equal by chance once in some tens


def test_one_sign_that_differs_is_seen() -> None:
    made = states(32)
    other = made.copy()
    at = np.unravel_index(np.abs(made).argmax(), made.shape)
    other[at] = -other[at]
    (found,) = distances(committed(made), other)
    assert found.exponents == MOST - 1
    assert found.steps == pytest.approx(OCTAVE / MOST)


def test_equal_magnitudes_are_taken_in_the_order_of_their_places() -> None:
    made = np.ones((2, WIDTH), dtype=np.float32)
    assert largest([row_of(row) for row in rows_of(made)], WIDTH).places.tolist() == list(range(MOST))


def test_digests_are_of_what_was_read_before_the_last_state() -> None:
    tokens = list(range(100, 140))
    made = committed(states(40), tokens)
    assert made.prompt == digest_of(PROMPT)
    assert [one.tokens for one in made.chunks] == [digest_of(tokens[:31]), digest_of(tokens[:39])]
    other = committed(states(40), [*tokens[:39], 7])
    assert [one.tokens for one in other.chunks] == [one.tokens for one in made.chunks]  # nothing was drawn behind it
    assert committed(states(40), [7, *tokens[1:]]).chunks[0].tokens != made.chunks[0].tokens
    assert committed(states(40), tokens, [5, 6, 8]).prompt != made.prompt


@pytest.mark.parametrize("change", ["cut", "longer", "version", "empty", "modulus", "no tokens", "not an element"])
def test_what_is_no_commitment_is_refused(change: str) -> None:
    raw = committed(states(33)).to_bytes()
    wrong = {
        "cut": raw[:-1],
        "longer": raw + b"\0",
        "version": b"\2" + raw[1:],
        "empty": b"",
        "modulus": raw[: HEAD.size + 8] + b"\0\0" + raw[HEAD.size + 10 :],
        "no tokens": raw[:1] + bytes(4) + raw[5:],
        "not an element": raw[: HEAD.size + 10] + b"\xff\xff" + raw[HEAD.size + 12 :],
    }
    with pytest.raises(Malformed, match="; "):
        Commitment.from_bytes(wrong[change])
