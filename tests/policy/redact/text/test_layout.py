import pytest

from policy.redact.evaluate import find_labelled
from policy.redact.text.layout import without_layout


def found(text: str) -> list[tuple[str, str]]:
    return [(text[start:end], label) for start, end, label in find_labelled(text)]


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("_a1_ b", "*a1* b"),
        ("(__DE89__)", "(**DE89**)"),
        ("снимка _7_.", "снимка *7*."),
        ("a call of the customer came in at 0511\n180 0102", "a call of the customer came in at 0511 180 0102"),
    ],
)
def test_emphasis_and_broken_lines_are_read_through_character_for_character(written, seen):
    assert without_layout(written) == seen
    assert len(written) == len(seen)


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_name and my__variable",
        "личен_номер_на_чужденец=7",
        "a _ b _ c",
        "path/_x_/y",
        "short 0511\n180 0102",
        "row;of;cells;that;is;long;enough;to;be;prose;0511\n180;0102",
        "this line of a log took as many seconds as 412\n2025-05-12 next",
        "he lives as far as we know in Hauptstrasse 12\n10115 Berlin",
        "the first thing of the list of things is 12\n2. the second",
    ],
)
def test_other_underscores_and_lines_of_their_own_stay(text):
    assert without_layout(text) == text


@pytest.mark.parametrize(
    ("text", "value", "label"),
    [
        ("Konto __DE89 3704 0044 0532 0130 00__.", "DE89 3704 0044 0532 0130 00", "iban"),
        ("IP _2a01:4f8::1_", "2a01:4f8::1", "ip"),
        ("PESEL: _44051401359_", "44051401359", "national_id.pl_pesel"),
        ("Geburtsdatum: __12.05.1980__", "12.05.1980", "date_of_birth"),
    ],
)
def test_what_is_emphasised_is_found_without_its_underscores(text, value, label):
    assert found(text) == [(value, label)]


def test_emphasis_over_a_long_text_takes_time_in_proportion():
    text = "_a " * 20_000
    assert without_layout(text) == text
