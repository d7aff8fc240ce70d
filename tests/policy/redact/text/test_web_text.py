from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.redact.evaluate import find_labelled
from policy.redact.text.web_text import revealed


@pytest.mark.parametrize(
    ("written", "seen"),
    [("a%40b", "a@b"), ("%C3%A9t%c3%a9", "été"), ("a&#64;b", "a@b"), ("a&#x40;b", "a@b"), ("a&commat;b", "a@b"),
     ("1&nbsp;2", "1\u00a02"), ("x &amp;&amp; y", "x && y")],
)  # fmt: skip
def test_what_a_browser_would_read_is_read(written, seen):
    assert revealed(written).text == seen


@pytest.mark.parametrize("text", ["100 %", "50%", "%zz", "%C3%28", "%ff", "a & b", "&nosuchname;", "&#;", "x %4", ""])
def test_what_spells_nothing_stays_as_it_is(text):
    assert revealed(text).text == text


@given(st.text(max_size=20), st.text(max_size=20))
def test_every_character_leads_back_to_its_spelling(plain, hidden):
    text = quote(plain, safe="") + quote(hidden, safe="&%;")
    view = revealed(text)
    places = [view.span(at, at + 1) for at in range(len(view.text))]
    assert [first for first, _ in places] == [0, *(last for _, last in places)][: len(places)]
    assert all(revealed(text[first:last]).text == view.text[at] for at, (first, last) in enumerate(places))


@pytest.mark.parametrize(
    ("text", "label"),
    [("GET /a?mail=alice%40example.org&x=1", "email"), ("alice&#64;example.org", "email"),
     ("?iban=DE89%203704%200044%200532%200130%2000", "iban"),
     ("IBAN&nbsp;DE89&nbsp;3704&nbsp;0044&nbsp;0532&nbsp;0130&nbsp;00", "iban")],
)  # fmt: skip
def test_personal_data_inside_urls_and_html_is_found_as_it_was_written(text, label):
    (start, end, found) = find_labelled(text)[0]
    assert found == label
    assert "example" in text[start:end] or text[start:end].startswith("DE89")
    assert text[start:end].endswith(("org", "00"))


@pytest.mark.parametrize(
    ("text", "seen"),
    [("/a?phone=0511+18+00&x=1", "/a?phone=0511 18 00&x=1"), ("name=Eva+Horn&city=Bad+Ems&x",
    "name=Eva Horn&city=Bad Ems&x"),
     ("?a=1&numero+de+DNI=12345678+Z", "?a=1&numero de DNI=12345678 Z"), ("?a=1&tel=+49+151", "?a=1&tel=+49 151"),
     ("?x=1&mail=a+b%40example.org", "?x=1&mail=a+b@example.org")],
)  # fmt: skip
def test_a_plus_in_the_data_of_a_form_is_a_blank(text, seen):
    assert revealed(text).text == seen


@pytest.mark.parametrize("text", ["a+b@example.org & c", "?mail=a+b@example.org&x=1", "x = a+b & c", "1+1=2"])
def test_another_plus_stays(text):
    assert revealed(text).text == text
