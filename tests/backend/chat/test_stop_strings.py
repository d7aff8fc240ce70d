from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chat.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    stream = StopStrings(stops)
    shown = [stream.feed(p) for p in pieces]
    return [*shown, stream.flush()], stream.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (["END"], ["all of it"], "all of it", False),
        (["END"], ["cut ENDhere"], "cut ", True),
        (["END"], ["over E", "N", "D tokens"], "over ", True),
        (["END"], ["nearly EN"], "nearly EN", False),
        (["END"], ["nearly EN", "d"], "nearly ENd", False),
        (["aab"], ["aaab"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["x"], ["1x2x3"], "1", True),
        (["\n\n"], ["a\n", "\nb"], "a", True),
        (["bc", "abcd"], ["abcd"], "a", True),  # "bc" is complete first
        (["abc", "bc"], ["abc"], "", True),  # both are complete at once: the earlier beginning
        (["€"], ["5 €"], "5 ", True),
        ([], ["END"], "END", False),
    ],
)
def test_the_text_is_cut_before_the_stop_that_is_complete_first(
    stops: list[str], pieces: list[str], text: str, matched: bool
) -> None:
    shown, did_match = run(stops, pieces)
    assert ("".join(shown), did_match) == (text, matched)


def test_nothing_is_held_back_that_cannot_become_a_stop() -> None:
    stream = StopStrings(["END", "NOW"])
    assert stream.feed("hello E") == "hello "
    assert stream.feed("x") == "Ex"
    assert stream.feed("N") == ""
    assert stream.feed("NO") == "N"
    assert stream.feed("pe") == "NOpe"


def test_nothing_is_shown_after_a_match() -> None:
    stream = StopStrings(["x"])
    assert stream.feed("axb") == "a"
    assert stream.feed("more") == ""
    assert stream.flush() == ""


texts = st.text("ab€", max_size=14)


@given(st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3), texts, st.lists(st.integers(0, 14), max_size=5))
def test_the_answer_does_not_depend_on_where_the_tokens_end(stops: list[str], text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    whole, _ = run(stops, list(text))
    cut, matched = run(stops, pieces)
    assert "".join(cut) == "".join(whole)
    assert matched == any(s in text for s in stops)
    assert not any(s in "".join(cut) for s in stops)
    assert text.startswith("".join(cut))
