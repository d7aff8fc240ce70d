"""Names from a model's shares and from the words themselves; the shares are given here, no model is asked."""

import re

import pytest

from policy.redact.names.name_lists import is_inflected, is_place
from policy.redact.names.name_words import names_of


def found(text: str, **shares: float) -> list[str]:
    """What counts as a name where the model gives each word its share, and others none."""
    tokens = [(word.start(), word.end(), shares.get(word[0], 0.0)) for word in re.finditer(r"\w+", text)]
    return [text[start:end] for start, end in sorted(set(names_of(text, tokens)))]


def test_a_word_of_a_longer_name_is_one_alone_too():
    text = "Anna Lindqvist called. Later Lindqvist paid, and Lindqvists order went out."
    assert found(text, Anna=0.9, Lindqvist=0.9) == ["Anna Lindqvist", "Lindqvist", "Lindqvists"]


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("Turkiets folkmängd ökar.", {"Turkiets": 0.9}),
        ("Iako nije tako.", {"Iako": 0.92}),
        ("Assim foi.", {"Assim": 0.9}),
        ("Los reemplazos del Vel Satis son caros.", {"Vel": 0.2, "Satis": 0.2}),
    ],
)
def test_places_and_words_that_begin_a_sentence_are_no_names(text, shares):
    assert found(text, **shares) == []


@pytest.mark.parametrize(
    ("text", "shares", "name"),
    [
        ("Iako Marko Marić zna", {"Iako": 0.9, "Marko": 0.5, "Marić": 0.2}, "Marko Marić"),
        ("als Richard III. siegte", {"Richard": 0.7, "III": 0.5}, "Richard III."),
        ("von Lucas Cranach dem Älteren.", {"Lucas": 0.9, "Cranach": 0.9}, "Lucas Cranach dem Älteren"),
        ("by H. Bruce Humberstone in", {"Bruce": 0.4, "Humberstone": 0.3}, "H. Bruce Humberstone"),
        ("the Andrew Marr Show on", {"Andrew": 0.9, "Marr": 0.9, "Show": 0.1}, "Andrew Marr"),
        ("bivša supruga Brada Pitta je", {"Brada": 0.19, "Pitta": 0.18}, "Brada Pitta"),
        ("kazao je Costa jučer", {"Costa": 0.02}, "Costa"),
        ("il tedesco Rummenigge segna", {"Rummenigge": 0.01}, "Rummenigge"),
    ],
)
def test_a_name_is_whole_and_nothing_but_a_name(text, shares, name):
    assert found(text, **shares) == [name]


def test_a_weak_share_is_enough_for_a_surname_that_is_known_and_for_no_other_word():
    assert found("today Kowalczyk came", Kowalczyk=0.06) == ["Kowalczyk"]
    assert found("today Plumbus came", Plumbus=0.06) == []


def test_of_german_a_noun_behind_an_article_needs_more_than_a_lone_name():
    assert found("Da hat der Kipler nicht das Bild", Kipler=0.3) == []
    assert found("Da hat auch Kipler nicht das Bild", Kipler=0.52) == ["Kipler"]
    assert found("Bestandteile nicht von Zitat und der Rest", Zitat=0.45) == []


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("a kernel with SELinux and", {"SELinux": 0.95}),
        ("the GtkTable widget, GVariant", {"GtkTable": 0.9, "GVariant": 0.9}),
        ("writes to WAL or GPU first, by PAM", {"WAL": 0.9, "GPU": 0.9, "PAM": 0.99}),
        ("ACME GENERAL TERMS, UNESCO", {"ACME": 0.9, "GENERAL": 0.1, "UNESCO": 0.9}),
        ("Typ   Flaggen   Zweck   Ausgabe", {"Flaggen": 0.6, "Zweck": 0.6, "Ausgabe": 0.6}),
        ("Korisnička lozinka. Lozinka je dobra", {"Lozinka": 0.9}),
        ("Magyar. Ungherese. Húngaro.", {"Ungherese": 0.9, "Húngaro": 0.9}),
        ("il Lago Alberto è", {"Lago": 0.05, "Alberto": 0.5}),
        ("i Huragan Wilma uderzył", {"Huragan": 0.99, "Wilma": 0.99}),
        ("sold to Loqate Inc in May, and by Palantir Technologies", {"Loqate": 0.5, "Palantir": 0.5}),
        ("wohnt in der Ejby kommune", {"Ejby": 0.96}),
        ("thank you, President, and the Senator", {"President": 0.8, "Senator": 0.8}),
    ],
)
def test_identifiers_common_words_places_companies_and_offices_are_no_names(text, shares):
    assert found(text, **shares) == []


@pytest.mark.parametrize(
    ("text", "shares", "names"),
    [
        ("then McKibbon and DiCaprio and O'Neill left", {"McKibbon": 0.5, "DiCaprio": 0.5, "Neill": 0.5}, ["McKibbon",
        "DiCaprio", "O'Neill"]),
        ("NOMBRE: MARÍA GARCÍA LÓPEZ", {"MARÍA": 0.9, "GARCÍA": 0.9, "LÓPEZ": 0.9}, ["MARÍA GARCÍA LÓPEZ"]),
        ("hier Jean DUPONNEL habite", {"Jean": 0.5, "DUPONNEL": 0.4}, ["Jean DUPONNEL"]),
        ("so SCHMIDT, Anna und ANA RUIZ", {"SCHMIDT": 0.9, "Anna": 0.9, "ANA": 0.9, "RUIZ": 0.9}, ["SCHMIDT", "Anna",
        "ANA RUIZ"]),
        ("Sejdiu kaže da", {"Sejdiu": 0.1}, ["Sejdiu"]),
        ("Plumbus said so", {"Plumbus": 0.1}, ["Plumbus"]),
        ("članovi Đinđićeve obitelji", {}, ["Đinđićeve"]),
        ("Esat Jeknić came", {"Esat": 0.99, "Jeknić": 0.99}, ["Esat Jeknić"]),
    ],
)  # fmt: skip
def test_names_with_inner_capitals_verbs_of_speech_and_patronymics_are_found(text, shares, names):
    assert found(text, **shares) == names


def test_a_part_of_a_word_is_no_name_in_small_letters():
    assert list(names_of("en rezimer.", [(3, 7, 0.1), (7, 10, 0.99)])) == []
    assert list(names_of("en rezimer.", [(3, 10, 0.99)])) == [(3, 10)]


def test_lists_know_cases_and_genitives():
    assert is_place("Turkiets")
    assert not is_place("Lindqvist")
    assert is_inflected("Brada")
    assert not is_inflected("Plumbusa")


@pytest.mark.parametrize("name", ["Spelge", "Rinck", "Schmidt-Räntsch"])
def test_the_only_word_of_a_text_is_a_name_where_the_model_thinks_so(name):
    assert found(name, **dict.fromkeys(re.findall(r"\w+", name), 0.06)) == [name]
    assert found(name, **dict.fromkeys(re.findall(r"\w+", name), 0.04)) == []
    assert found(f"{name} redegør for", **dict.fromkeys(re.findall(r"\w+", name), 0.06)) == []


def test_the_only_word_of_a_text_is_no_name_if_it_is_a_common_one():
    assert found("Februar", Februar=0.6) == []
    assert found("Jedoch", Jedoch=0.6) == []


def test_a_word_that_the_text_has_in_lower_case_too_is_no_name():
    assert found("Plumbus is the plumbus of one.", Plumbus=0.9) == []
    assert found("Plumbus is one.", Plumbus=0.9) == ["Plumbus"]
    assert found("Mark said mark it.", Mark=0.9) == ["Mark"]


def test_an_inflected_surname_is_a_surname():
    assert found("na čelu s Havelom najbolja je", Havelom=0.06) == ["Havelom"]
    assert found("na čelu s Plumbusom najbolja je", Plumbusom=0.06) == []


def test_a_surname_that_begins_a_sentence_needs_little_but_in_english_where_surnames_are_words():
    assert found("Pavlov kunde vid sina försök", Pavlov=0.03) == ["Pavlov"]
    assert found("Carry me back to the house of the rising sun", Carry=0.03) == []


def test_particles_stand_between_a_verb_of_speech_and_a_name():
    assert found("rekao je de Kerchove u ponedjeljak", Kerchove=0.1) == ["Kerchove"]
    assert found("Edma Roger des Genettes kwam", Edma=0.9, Roger=0.9, Genettes=0.35) == ["Edma Roger des Genettes"]
