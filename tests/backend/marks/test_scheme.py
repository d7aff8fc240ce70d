import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.marks import scheme
from backend.marks.scheme import (
    CONTEXT,
    SHARDS,
    MarkKey,
    marked_context,
    nonce,
    random_word,
    random_words,
    shard_key,
    word_of,
)

KEY = MarkKey(bytes(range(32)))


def test_the_random_words_are_the_key_stream_of_rfc_8439() -> None:
    """Section 2.3.2: key 00..1f, nonce 000000090000004a00000000, block 1; its first state word is e4e7f110."""
    published = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9"
        "cbd083e8a2503c4e"
    )
    wanted = bytes.fromhex("000000090000004a00000000")
    context = [int.from_bytes(wanted[i : i + 4], "little") for i in range(0, 12, 4)]
    assert nonce(context) == wanted
    words = [int.from_bytes(published[i : i + 4], "little") for i in range(0, 64, 4)]
    assert [random_word(KEY, context, 1 + 256 * w) for w in range(16)] == words  # token 1 + 256 w is word w of block 1


def test_one_token_has_the_word_that_it_has_among_all() -> None:
    context = [5, 70_000, 131_071]
    words = random_words(KEY, context, 20_000)
    for token in (0, 1, 255, 256, 4095, 4096, 4351, 19_999):
        assert random_word(KEY, context, token) == words[token]
    assert len(set(words.tolist())) > 19_900  # each token has a word of its own


def test_a_token_keeps_its_word_in_a_larger_vocabulary() -> None:
    assert np.array_equal(random_words(KEY, [1, 2, 3], 5000), random_words(KEY, [1, 2, 3], 50_000)[:5000])
    owned = {word_of(token) for token in range(10_000)}
    assert len(owned) == 10_000


@pytest.mark.parametrize("other", [[1, 2, 5], [2, 2, 3], [1, 3, 2], [257, 2, 3], [1, 65_538, 3]])
def test_another_context_has_other_words(other: list[int]) -> None:
    assert (random_words(KEY, [1, 2, 3], 1000) != random_words(KEY, other, 1000)).mean() > 0.99


def test_each_shard_has_a_key_of_its_own_and_no_representation_shows_one() -> None:
    keys = [shard_key(bytes(32), shard) for shard in range(SHARDS)]
    assert len({key.key for key in keys}) == SHARDS
    assert shard_key(bytes(32), SHARDS + 3) == keys[3]
    assert shard_key(b"\1" + bytes(31), 3) != keys[3]
    assert repr(keys[0]) == str(keys[0]) == "MarkKey(...)"


def by_definition(tokens: list[int], start: int, position: int) -> list[int] | None:
    if position < start + CONTEXT:
        return None
    contexts = [tokens[at - CONTEXT : at] for at in range(start + CONTEXT, position + 1)]
    return None if contexts[-1] in contexts[:-1] else contexts[-1]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.data())
def test_a_context_is_marked_once_and_lies_in_the_answer(tokens: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(1, len(tokens)))
    start = data.draw(st.integers(1, position))
    assert marked_context(tokens, start, position) == by_definition(tokens, start, position)


def test_the_search_for_an_earlier_context_is_bounded() -> None:
    tokens = [9, 1, 2, 3, *range(100, 100 + scheme.HISTORY), 1, 2, 3]
    assert marked_context(tokens, 1, len(tokens)) == [1, 2, 3]
    assert marked_context(tokens[:4] + tokens[-3 - 100 :], 1, 107) is None
