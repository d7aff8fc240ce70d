import random

import pytest

from policy.redact.national_ids import IDS, find_national_ids
from tests.vectors.redaction.generate import FRAMES, NUMBERS, SAME_NUMBER, number


def kinds(text: str) -> list[tuple[str, str]]:
    return [(kind, text[start:end]) for start, end, kind in find_national_ids(text, 0)]


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_countrys_number_is_found_whole_under_its_own_kind(kind):
    rng = random.Random(kind)
    language, names, _ = NUMBERS[kind]
    for name in names:
        value = number(kind, rng)
        found = kinds(FRAMES[language].replace("{}", name, 1).replace("{}", value))
        assert found[:1] == [(SAME_NUMBER.get(kind, kind), value)]


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if not IDS[kind].alone])
def test_a_number_with_a_weak_check_is_left_alone_where_nothing_names_it(kind):
    value = number(kind, random.Random(kind))
    assert kind not in [found for found, _ in kinds(f"Row 7: {value} in stock")]


def test_a_name_decides_so_that_a_slip_is_not_taken_for_another_kind():
    assert kinds("OIB 44051401359") == [], "a PESEL by its digits, no OIB"
    assert kinds("PESEL 44051401359") == [("pl_pesel", "44051401359")]
    assert kinds("PESEL 44051401358") == []


def test_a_general_name_lets_any_kind_count():
    assert kinds("national id: 44051401359")[0][1] == "44051401359"


def test_a_name_far_away_names_nothing():
    assert kinds("BSN " + "and so on " * 8 + "111222333") == []


def test_letters_that_grow_in_small_shift_no_place():
    assert kinds("İİİ PESEL 44051401359") == [("pl_pesel", "44051401359")]


def test_what_stands_before_the_start_is_context_only():
    text = "PESEL 44051401359 and 44051401359"
    assert list(find_national_ids(text, 6)) == [(6, 17, "pl_pesel")]
    assert list(find_national_ids(text, 18)) == []
