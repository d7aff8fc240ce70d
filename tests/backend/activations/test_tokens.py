"""A text that was drawn in other tokens than its tokenizer's is read in those, by the digests of its commitment."""

import random

import pytest

from backend.activations.answer_commitment import Chunk, digest_of
from backend.activations.largest_activations import CHUNK
from backend.activations.tokens import Spelling

WORDS = ["", *"abcdefgh ", "ab", "cd", "abc", "abcd", " a", " ab", "efgh", "fg", "gh", "bcd"]
SPELLING = Spelling([word.encode() for word in WORDS])
WHOLE = [WORDS.index(word) for word in ("abcd", " ab", "cd", "efgh", " a", "abc")]


def drawn(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(WHOLE, k=count)


def chunks_of(tokens: list[int]) -> list[Chunk]:
    starts = range(0, len(tokens), CHUNK)
    ends = [min(start + CHUNK, len(tokens)) for start in starts]
    return [Chunk(end - start, digest_of(tokens[: end - 1]), 1, None) for start, end in zip(starts, ends, strict=True)]  # type: ignore[arg-type]


def test_tokens_of_the_tokenizer_are_taken_as_they_are() -> None:
    tokens = drawn(70)
    assert SPELLING.recovered(tokens, chunks_of(tokens)) == (tokens, 3)
    assert SPELLING.recovered([*tokens, 1, 2], chunks_of(tokens))[1] == 3, "what follows does not matter"
    assert SPELLING.recovered(tokens[:-1], chunks_of(tokens))[1] == 3, "nor does the last, which nothing follows"


@pytest.mark.parametrize("at", [0, 5, 30, 31, 32, 40, 68])
def test_a_word_in_other_pieces_is_found_in_each_chunk(at: int) -> None:
    tokens = drawn(70)
    tokens[at : at + 1] = [WORDS.index("ab"), WORDS.index("cd")]
    read = [*tokens[:at], WORDS.index("abcd"), *tokens[at + 2 :]]
    assert SPELLING.recovered(read, chunks_of(tokens)) == (tokens, 3)


def test_pieces_across_the_tokenizer_s_words_are_found() -> None:
    tokens = [*drawn(10), WORDS.index(" a"), WORDS.index("bcd"), WORDS.index("e"), *drawn(40, 1)]
    read = [*tokens[:10], WORDS.index(" ab"), WORDS.index("cd"), *tokens[12:]]
    assert SPELLING.recovered(read, chunks_of(tokens)) == (tokens, 2)


def test_one_in_each_chunk_is_found() -> None:
    read = drawn(90)
    for at in (3, 40, 70):
        read[at] = WORDS.index("abcd")
    tokens = list(read)
    for at in (70, 40, 3):
        tokens[at : at + 1] = [WORDS.index("a"), WORDS.index("bcd")]
    assert SPELLING.recovered(read, chunks_of(tokens)) == (tokens, 3)


def test_another_text_is_not_made_to_fit() -> None:
    tokens = drawn(70)
    other = [*tokens[:40], WORDS.index("g"), *tokens[41:]]
    assert SPELLING.recovered(other, chunks_of(tokens))[1] == 1
    assert SPELLING.recovered(drawn(70, 2), chunks_of(tokens))[1] == 0
    assert SPELLING.recovered([], chunks_of(tokens)) == ([], 0)
    assert SPELLING.recovered(tokens[:20], chunks_of(tokens))[1] == 0
