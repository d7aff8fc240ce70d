import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.redact.evaluate import find_labelled
from policy.redact.text.json_text import as_read, cut_escape, digits_of, escaped, map_values, unescape

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_values_mapped_to_themselves_leave_the_text_as_it_is(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert map_values(text, lambda inner: inner) == text


@given(json_values)
def test_mapped_values_leave_valid_json(value):
    def shouted(inner):
        if isinstance(inner, dict):
            return {name + "!": shouted(item) for name, item in inner.items()}
        if isinstance(inner, list):
            return [shouted(item) for item in inner]
        return inner + "!" if isinstance(inner, str) else inner

    mapped = map_values(json.dumps(value), lambda text: text if text.lstrip("-")[:1].isdigit() else text + "!")
    digits_first = any(ch.isdigit() for ch in json.dumps(value))
    assert digits_first or json.loads(mapped) == shouted(value)
    json.loads(mapped)


def test_names_strings_and_long_numbers_are_mapped_and_short_ones_are_not():
    seen = []
    map_values('{"a\\u0062": ["c", 12, -1234567, 1e3, true, null]}', lambda inner: seen.append(inner) or inner)
    assert seen == ["ab", "c", "-1234567"]


def test_a_name_that_stands_twice_hides_nothing():
    assert map_values('{"a": "x", "a": "y"}', str.upper) == '{"A": "X", "A": "Y"}'


@given(st.text(max_size=20))
def test_unescaping_reads_what_a_parser_reads(text):
    for ascii_only in (True, False):
        raw = json.dumps(text, ensure_ascii=ascii_only)
        assert unescape(raw).text == f'"{text}"'
    assert unescape(escaped(text)).text == text


@given(st.text(max_size=20), st.data())
def test_a_text_cut_inside_an_escape_waits_for_the_rest(text, data):
    raw = json.dumps(text)[1:-1]
    at = data.draw(st.integers(0, len(raw)))
    head = raw[:at]
    cut = cut_escape(head)
    assert unescape(raw[:cut]).text + unescape(raw[cut:]).text == text
    assert at - cut <= 11


@pytest.mark.parametrize(
    ("text", "cut"),
    [("ab\\", 2), ("ab\\\\", 4), ("\\u00e", 0), ("\\u00e9", 6), ("\\ud83d", 0), ("\\ud83d\\ude0", 0), 
     ("\\ud83d\\ude00", 12), ("\\ud83dx", 7), ("\\\\u00e", 6), ("plain", 5)],
)  # fmt: skip
def test_an_unfinished_escape_is_known(text, cut):
    assert cut_escape(text) == cut


@pytest.mark.parametrize(
    "number", ["4111111111111111", "4111111111111111.0", "4.111111111111111e15", "41111111111111110e-1"]
)
def test_a_whole_number_is_searched_as_its_digits_however_it_is_written(number):
    seen = []
    assert map_values(f'{{"card": {number}}}', lambda inner: seen.append(inner) or inner) == f'{{"card": {number}}}'
    assert seen == ["card", "4111111111111111"]


@pytest.mark.parametrize("number", ["1234567.25", "1e400", "1e30", "-1.5e-7"])
def test_a_number_that_is_not_whole_or_not_exact_is_searched_as_it_is_written(number):
    assert digits_of(number) == number


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_json_inside_json_is_read_through(depth):
    text = '{"ЕГН": "6908089410"}'
    for _ in range(depth):
        text = json.dumps({"arguments": text})
    (start, end, label) = find_labelled(text)[0]
    assert (text[start:end], label) == ("6908089410", "national_id.bg_egn")


def test_a_backslash_that_escapes_nothing_twice_stays():
    assert as_read(r"C:\\users\\new").text == r"C:\users\new"
