"""Rows of a person's data without a heading: what each cell is, from the others."""

import random

import phonenumbers
import pytest

from policy.redact.contacts.records import records_in
from policy.redact.evaluate import find_labelled
from policy.redact.ids.kinds import SAME_NUMBER
from policy.redact.text.reading import Reading
from tests.data.redaction.numbers import NUMBERS, number
from tests.data.redaction.values import country_of

_PHONE = phonenumbers.PhoneNumberFormat
# Without a check, so that a cell may be anything.
_UNCHECKED = {"li_peid", "cy_id", "mt_id"}


def found(text: str) -> list[tuple[str, str]]:
    return [(text[start:end], label) for start, end, label in find_labelled(text)]


def phone_of(country: str) -> str:
    example = phonenumbers.example_number_for_type(country, phonenumbers.PhoneNumberType.MOBILE)
    assert example is not None
    return phonenumbers.format_number(example, _PHONE.INTERNATIONAL)


@pytest.mark.parametrize("kind", sorted(set(NUMBERS) - _UNCHECKED))
@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
def test_an_id_in_the_last_column_of_a_row_without_a_heading_keeps_its_own_label(kind, separator):
    rng = random.Random(f"{kind}{separator}")
    country = kind[:2].upper()
    for head in ("", f"name{separator}mail{separator}phone{separator}id\n"):
        value = "".join(filter(str.isalnum, number(kind, rng))) if rng.random() < 0.5 else number(kind, rng)
        cells = ("Mara Testowa", f"mara.t@mail.example.{country_of(NUMBERS[kind].lang).lower()}", phone_of(country))
        labels = dict(found(head + separator.join((*cells, value)) + "\n"))
        assert labels[cells[1]] == "email"
        assert labels[cells[2]] == "phone"
        same = SAME_NUMBER.get(kind, kind)
        got = labels[value].removeprefix("national_id.")
        assert SAME_NUMBER.get(got, got) == same


@pytest.mark.parametrize(
    ("row", "phone"),
    [
        ("Iwo Siwczak|512 657 823|dagmara35@example.pl|YBZ776400", "512 657 823"),
        ("Lorena Matias,mirandabeatriz@example.pt,912 193 220,14483587483", "912 193 220"),
        ("name;cnp;mail;phone\nConstantina;1580625129028;c@example.ro;021-120-0215\n", "021-120-0215"),
        ("row,id,mail,phone\n1,137012278375,o@berglund.se,070-171-99-39\n", "070-171-99-39"),
    ],
)
def test_the_phone_of_a_record_is_no_id(row, phone):
    assert (phone, "phone") in found(row)


@pytest.mark.parametrize(
    "row",
    [
        "2026-01-03;alice@example.org;+49 30 901820;order 1483512;17.50",
        "alice@example.org;12;4000;shipped",
        "To: alice@example.org, bob@example.org, carol@example.org, 1234",
    ],
)
def test_other_cells_of_a_record_are_no_id(row):
    assert {label for _, label in found(row)} <= {"email", "phone"}


def test_a_row_without_a_phone_or_an_address_is_no_record():
    assert list(records_in(Reading("Anna;anna@example.org;x\nAnna;+49 30 901820;x;y\n"), 0)) == []


def test_a_record_tells_its_countries_by_how_much_speaks_for_them():
    record = next(iter(records_in(Reading("Jan;jan@example.pl;+48 512 345 678;44051401458"), 0)))
    assert max(record.countries, key=record.countries.__getitem__) == "pl"
    assert record.others == ((35, 46),)


def test_the_part_before_the_start_is_no_cell():
    text = "Jan;jan@example.pl;+48 512 345 678;44051401458"
    assert list(records_in(Reading(text), text.index("+48"))) == []
