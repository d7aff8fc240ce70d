"""What detectors share of a text: its words, its small letters, its digits."""

import pytest

from policy.redact.text.reading import Reading


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("12, 34", []),
        ("Numéro: 12", ["numero"]),
        ("a1b _c", ["a", "b", "c"]),
        ("dateOfBirth", ["dateofbirth", "ofbirth", "birth"]),
        ("Łódź и Ελλάδα", ["lodz", "и", "ελλαδα"]),
    ],
)
def test_every_word_begins_where_it_is_said_to(text, words):
    reading = Reading(text)
    assert reading.words == words
    assert [reading.folded[at : at + len(word)] for word, at in zip(words, reading.starts, strict=True)] == words
    assert reading.heads == [word[:3] for word in words]
    assert reading.initials == set(reading.heads)


def test_beginnings_may_be_asked_for_before_the_words():
    assert Reading("My birthDate").starts == [0, 3, 8]
    assert Reading("My birthDate").words_from(frozenset({"dat"})) == [8]
    assert Reading("My birthDate").words_from(frozenset({"date"})) == []


@pytest.mark.parametrize("text", ["Größe İstanbul ß", "ÀÁÂÃÄÅÇÈÉÊËÌÍÎÏÑÒÓ", "αβγ абв", "e\u0301"])
def test_a_text_without_marks_is_as_long_as_with_them(text):
    assert len(Reading(text).folded) == len(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("call 4O7l now, all of you", "call 4071 now, all of you"),
        ("first 4O7 and last l2, I see 12 owls", "first 407 and last 12, I see 12 owls"),
        ("tel (O)30 4 l 9", "tel (0)30 4 1 9"),
        ("4 O 7 l 9 O 3", "4 0 7 1 9 0 3"),
        ("all 12 of us", None),
        ("Ole 12", None),
    ],
)
def test_letters_are_digits_only_beside_digits(text, plain):
    assert Reading(text).with_plain_digits == plain
