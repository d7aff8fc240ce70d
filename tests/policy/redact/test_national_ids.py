# ruff: noqa: E501  # tables read better in one line a row
import random

import pytest

from policy.redact.id_kinds import IDS, Needs
from policy.redact.national_ids import find_national_ids
from policy.redact.reading import Reading
from tests.data.redaction.numbers import COUNTRIES, NUMBERS, number, with_a_slip
from tests.data.redaction.phrases import TUNED


def kinds(text: str) -> list[tuple[str, str]]:
    return [(kind, text[start:end]) for start, end, kind in find_national_ids(text, 0)]


def said(kind: str, name: str, value: str) -> str:
    frame = TUNED[NUMBERS[kind].lang[:2]][0].replace("{name}", "M.")
    return frame.replace("{called}", name).replace("{id}", value)


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_countrys_number_is_found_whole_under_its_own_kind(kind):
    rng = random.Random(kind)
    for name in (*NUMBERS[kind].names, *NUMBERS[kind].held_out):
        for _ in range(4):
            value = number(kind, rng)
            assert (kind, value) in kinds(said(kind, name, value)), name


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_with_a_slip_is_left_alone(kind):
    rng = random.Random(kind)
    for _ in range(4):
        if wrong := with_a_slip(number(kind, rng), IDS[kind].is_valid):
            assert kinds(said(kind, NUMBERS[kind].names[0], wrong)) == []


def test_all_of_the_eu_and_its_neighbours_have_a_number():
    eu = "at be bg cy cz de dk ee es fi fr gr hr hu ie it lt lu lv mt nl pl pt ro se si sk is li no ch"
    assert set(eu.split()) <= set(COUNTRIES) <= {kind[:2] for kind in IDS}


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if IDS[kind].needs >= Needs.COUNTRY])
def test_a_number_with_a_weak_check_is_left_alone_where_nothing_speaks_for_it(kind):
    value = number(kind, random.Random(kind))
    assert kind not in [found for found, _ in kinds(f"Row 7: {value} in stock")]


def test_a_weak_number_counts_in_a_text_of_its_country_unless_it_is_called_an_order():
    assert kinds("Klient Jan Nowak, 44051401359, prosi o kontakt.") == [("pl_pesel", "44051401359")]
    assert kinds("Zamówienie nr 44051401359 jest w drodze.") == []
    assert kinds("Der Kunde 44051401359 wartet auf Antwort.") == []


def test_a_name_decides_so_that_a_slip_is_not_taken_for_another_kind():
    assert kinds("OIB 44051401359") == [], "a PESEL by its digits, no OIB"
    assert kinds("PESEL 44051401359") == [("pl_pesel", "44051401359")]
    assert kinds("PESEL 44051401358") == []


def test_a_name_may_stand_behind_its_number_or_at_the_head_of_its_column():
    assert kinds("44051401359 is my PESEL.") == [("pl_pesel", "44051401359")]
    assert kinds("name,PESEL,city\nJan,44051401359,Gdynia\nEwa,02070803628,Sopot\n") == [
        ("pl_pesel", "44051401359"), ("pl_pesel", "02070803628")]  # fmt: skip
    assert kinds("| PESEL | x |\n|---|---|\n| 44051401359 | 1 |") == [("pl_pesel", "44051401359")]


@pytest.mark.parametrize("key", ["numero_de_securite_sociale", "numeroSecuriteSociale", "NIR", "nir"])
def test_names_are_read_in_the_spellings_of_programs_too(key):
    assert kinds(f'{{"{key}": "1 85 05 78 006 084 91"}}')[0][0] == "fr_nir"


def test_czech_and_slovak_numbers_are_told_apart_by_the_language_around_them():
    assert kinds("Moje rodné číslo je 850101/1234, děkuji, prosím o odpověď.")[:1] != [("sk_rc", "850101/1234")]
    value = number("sk_rc", random.Random(1))
    assert kinds(f"Moje rodné číslo je {value}, ďakujem, volám sa Ján.") == [("sk_rc", value)]
    assert kinds(f"Mé rodné číslo je {value}, děkuji, jmenuji se Jan.") == [("cz_rc", value)]


def test_a_general_name_lets_any_kind_count():
    assert kinds("national id: 44051401359")[0][1] == "44051401359"
    assert kinds("The Polish customer's national id: 44051401359") == [("pl_pesel", "44051401359")]


def test_a_name_far_away_names_nothing():
    assert kinds("BSN " + "and so on " * 8 + "111222333") == []


def test_letters_that_grow_in_small_shift_no_place():
    assert kinds("İİİ PESEL 44051401359") == [("pl_pesel", "44051401359")]


def test_what_stands_before_the_start_is_context_only():
    text = "PESEL 44051401359 and 44051401359"
    assert list(find_national_ids(text, 6)) == [(6, 17, "pl_pesel")]
    assert list(find_national_ids(text, 18)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [("44051401359 is my PESEL", "pl_pesel"), ("gave 44051401359 as the nr ewidencyjny PESEL", "pl_pesel"),
     ("{\"customerPesel\": \"44051401359\"}", "pl_pesel"), ("PESEL 44O5l4O1359", "pl_pesel"), ("hetu 131O52-3O8T", "fi_hetu"), ("tax identification number 57 243 441 804", "de_idnr"),
     ("his SSN was 039-14-4111", "us_ssn"), ("L01X00T471 is the Personalausweisnummer", "de_id"), ("pers.nr 811218-9876", "se_pnr")],
)  # fmt: skip
def test_a_name_before_or_behind_or_inside_another_word_names_its_number(text, kind):
    assert kind in [found for found, _ in kinds(text)]


@pytest.mark.parametrize("text", ["order 44051401358 (PESEL missing)", "5 people know what a PESEL is", "44051401358 is my PESEL",
                                  "PESEL: 44051401358, BSN: 111222334", "loss 0.69536181 after 12345.67890"])  # fmt: skip
def test_a_name_beside_a_number_that_is_none_finds_nothing(text):
    assert kinds(text) == []


def test_a_name_between_two_numbers_belongs_to_the_one_behind_it():
    assert kinds("111222333 BSN 123456782") == [("nl_bsn", "123456782")]


def test_english_words_speak_for_no_other_country():
    assert Reading("Could you check the number 57243441804 for me, is it on the list?").countries == frozenset()
