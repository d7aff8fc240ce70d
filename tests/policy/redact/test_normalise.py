import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.redact.normalise import normalise


def test_ascii_is_the_same_object():
    text = "plain text 123"
    assert normalise(text).text is text


@pytest.mark.parametrize(
    ("written", "seen"),
    [("４１１１", "4111"), ("４\u200b１", "41"), ("a\u00a0b\u2009c\u202fd", "a b c d"), 
     ("so\u00adft", "soft"), ("1\u20132\u22123", "1-2-3"), ("٤١", "41"), ("𝟒𝐚", "4a"), ("\ufeffx", "x"), ("ﬁ…½", "ﬁ…½"),
     ("Zürich €", "Zürich €")],
)  # fmt: skip
def test_a_character_is_read_as_what_it_stands_for(written, seen):
    assert normalise(written).text == seen


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\u200b\u00ad４ é-")), max_size=30), st.data())
def test_every_slice_leads_back_to_what_was_written(text, data):
    view = normalise(text)
    if not view.text:
        return
    start = data.draw(st.integers(0, len(view.text) - 1))
    end = data.draw(st.integers(start + 1, len(view.text)))
    first, last = view.span(start, end)
    assert normalise(text[first:last]).text == view.text[start:end]


@given(st.text(max_size=30), st.integers(0, 30))
def test_a_text_cut_anywhere_reads_the_same(text, at):
    assert normalise(text[:at]).text + normalise(text[at:]).text == normalise(text).text
