"""What followed before is guessed to follow again."""

from hypothesis import given
from hypothesis import strategies as st

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.drafting.ngram_drafter import WINDOW, NgramDrafter


def sequence(tokens: list[int], id: int = 0) -> Sequence:
    return Sequence(id, tokens, SamplingParams(max_tokens=100), arrival=0)


def guess(tokens: list[int], most: int = 4) -> list[int]:
    (found,) = NgramDrafter().propose([(sequence(tokens), most)])
    return found


def test_a_phrase_that_comes_again_is_continued_as_before() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 7, 9, 9, 1, 2, 3, 4]) == [5, 6, 7, 9]


def test_the_longer_match_wins_over_the_later_one() -> None:
    assert guess([1, 2, 3, 4, 5, 8, 3, 4, 6, 8, 1, 2, 3, 4], 1) == [5]


def test_of_two_matches_the_later_one_is_copied() -> None:
    assert guess([3, 4, 5, 8, 3, 4, 6, 7, 3, 4], 1) == [6]


def test_a_loop_is_continued_into_itself() -> None:
    assert guess([7, 8, 9, 7, 8, 9, 7, 8, 9], 5) == [7, 8, 9, 7, 8]
    assert guess([5, 5, 5], 4) == [5, 5, 5, 5]


def test_nothing_is_guessed_where_nothing_recurs() -> None:
    assert guess([1, 2, 3, 4, 5]) == guess([1]) == guess([1, 2]) == []


def test_each_sequence_has_a_memory_of_its_own_and_loses_it() -> None:
    drafter = NgramDrafter()
    first, second = sequence([1, 2, 3, 1, 2], 1), sequence([1, 2, 9, 1, 2], 2)
    assert drafter.propose([(first, 1), (second, 1)]) == [[3], [9]]
    drafter.forget(1)
    assert drafter.propose([(sequence([1, 2, 4, 1, 2], 1), 1), (second, 1)]) == [[4], [9]]
    drafter.forget(77)


def test_it_looks_back_no_further_than_its_window() -> None:
    far = [1, 2, 3, *range(10, 10 + WINDOW), 1, 2]
    assert guess(far) == []
    assert guess([*far[2:5], 1, 2, 3, 1, 2]) == [3, 1, 2, 3]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 59))
def test_growing_token_by_token_it_guesses_as_when_it_sees_all_at_once(
    tokens: list[int], most: int, begin: int
) -> None:
    drafter = NgramDrafter()
    grown = sequence(tokens[:begin])
    for token in tokens[begin:]:
        drafter.propose([(grown, most)])
        grown.tokens.append(token)
    assert drafter.propose([(grown, most)]) == [guess(tokens[: max(begin, len(tokens))], most)]


@given(st.lists(st.integers(0, 2), min_size=3, max_size=40), st.integers(1, 6))
def test_a_guess_is_what_followed_an_earlier_place_that_ends_alike(tokens: list[int], most: int) -> None:
    found = guess(tokens, most)
    if not found:
        grams = [tuple(tokens[i : i + 2]) for i in range(len(tokens) - 2)]
        assert tuple(tokens[-2:]) not in grams
        return
    assert len(found) == most
    whole = tokens + found
    assert any(
        whole[at - 2 : at] == tokens[-2:] and all(whole[at + i] == found[i] for i in range(most))
        for at in range(2, len(tokens))
    )
