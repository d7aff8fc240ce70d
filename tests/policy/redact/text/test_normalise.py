import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.redact.text.normalise import normalise


def test_ascii_is_the_same_object():
    text = "plain text 123"
    assert normalise(text).text is text


@pytest.mark.parametrize(
    ("written", "seen"),
    [("４１１１", "4111"), ("４\u200b１", "41"), ("a\u00a0b\u2009c\u202fd", "a b c d"),
     ("so\u00adft", "soft"), ("1\u20132\u22123", "1-2-3"), ("٤١", "41"), ("𝟒𝐚", "4a"), ("\ufeffx", "x"),
     ("ﬁ…½", "fi...1/2"), ("ﬃ", "ffi"), ("ŀ", "l"), ("㎏", "kg"), ("⑩⒈⑴", "101.(1)"), ("℡", "TEL"), ("ŉ", "n"), ("ﬅ",
     "st"),
     ("ﷲ", "الله"), ("ﻻ", "لا"), ("¨", " "), ("㏂", "a.m."), ("℃", "C"),
     ("Zürich €", "Zürich €")],
)  # fmt: skip
def test_a_character_is_read_as_what_it_stands_for(written, seen):
    assert normalise(written).text == seen


MIXED = st.one_of(st.characters(), st.sampled_from("\u200b\u00ad４ é-ﬁﬃ½⑩ŀ㎏ﷲ…¨"))


@given(st.text(alphabet=MIXED, max_size=30), st.data())
def test_every_slice_leads_back_to_what_was_written(text, data):
    view = normalise(text)
    if not view.text:
        return
    start = data.draw(st.integers(0, len(view.text) - 1))
    end = data.draw(st.integers(start + 1, len(view.text)))
    first, last = view.span(start, end)
    seen = normalise(text[first:last]).text
    assert view.text[start:end] in seen
    assert len(seen) - (end - start) <= _beside(text[first]) + _beside(text[last - 1])


def _beside(character: str) -> int:
    """How many more signs one character may bring with it."""
    return max(0, len(normalise(character).text) - 1)


@given(st.text(alphabet=MIXED, max_size=30))
def test_every_character_of_the_view_has_its_place_in_order(text):
    view = normalise(text)
    places = [view.span(at, at + 1) for at in range(len(view.text))]
    assert places == sorted(places)
    assert all(view.text[at] in normalise(text[first:last]).text for at, (first, last) in enumerate(places))


@given(st.text(alphabet=MIXED, max_size=30), st.integers(0, 30))
def test_a_text_cut_anywhere_reads_the_same(text, at):
    assert normalise(text[:at]).text + normalise(text[at:]).text == normalise(text).text
