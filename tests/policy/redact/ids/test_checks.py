import random

import pytest
from stdnum.be import ssn
from stdnum.de import idnr
from stdnum.fi import hetu
from stdnum.no import fodselsnummer
from stdnum.pt import cc, nif
from stdnum.ro import cnp
from stdnum.si import emso

from policy.redact.ids import checks as id_checks

VALID = [
    (id_checks.is_german_health_insurance_number, "A123456780"),
    (id_checks.is_german_pension_number, "15070649C103"),
    (id_checks.is_document_number, "L898902C36"),
    (id_checks.is_hungarian_health_number, "037687210"),
    (id_checks.is_hungarian_tax_number, "8071592153"),
    (id_checks.is_latvian_personal_code, "16117519997"),
    (id_checks.is_luxembourg_number, "1893120105732"),
    (id_checks.is_portuguese_insurance_number, "11837456884"),
    (id_checks.is_spanish_insurance_number, "369996237295"),
]


@pytest.mark.parametrize(("check", "number"), VALID)
def test_a_published_number_passes_and_no_other_last_digit_does(check, number):
    assert [number[:-1] + digit for digit in "0123456789" if check(number[:-1] + digit)] == [number]


QUICK = [  # our sum first, the library's word last
    (id_checks.is_belgian_national_number, ssn, "ymd", 5), (id_checks.is_german_tax_number, idnr, "", 11),
    (id_checks.is_norwegian_birth_number, fodselsnummer, "dmy", 5), (id_checks.is_portuguese_tax_number, nif, "", 9),
    (id_checks.is_portuguese_citizen_card, cc, "", 12), (id_checks.is_romanian_personal_number, cnp, "1ymd", 6),
    (id_checks.is_yugoslav_personal_number, emso, "dm", 9), (id_checks.is_finnish_identity_code, hetu, "dmy-", 4),
]  # fmt: skip


@pytest.mark.parametrize(("check", "library", "dated", "digits"), QUICK)
def test_a_quick_sum_refuses_nothing_that_the_library_accepts(check, library, dated, digits):
    rng = random.Random(str(check))
    parts = {"d": lambda: rng.randint(1, 28), "m": lambda: rng.randint(1, 12), "y": lambda: rng.randint(0, 99)}
    valid = 0
    for _ in range(4000):
        head = "".join(f"{parts[sign]():02}" if sign in parts else sign for sign in dated)
        number = head + "".join(rng.choice("0123456789") for _ in range(digits))
        assert check(number) == library.is_valid(number)
        valid += check(number)
    assert valid > 3


def test_a_finnish_code_may_have_lost_its_century_and_a_phone_is_none():
    assert id_checks.is_finnish_identity_code("131052308T") and id_checks.is_finnish_identity_code("131052-308T")
    assert not id_checks.is_finnish_identity_code("131052308U")
    assert not id_checks.is_finnish_identity_code("0701071886")


@pytest.mark.parametrize(("number", "is_one"), [
    ("904486283", True), ("AB1234567", True), ("X00T47123", True), ("590123456789", True), ("12345", False),
    ("ABCDEFGH1", False),    ("1234567890123", False), ("ÄB1234567", False), ("2024", False),
])  # fmt: skip
def test_a_travel_document_has_six_to_twelve_signs_and_few_letters(number, is_one):
    assert id_checks.is_travel_document(number) is is_one


@pytest.mark.parametrize(
    "check",
    [*(check for check, _ in VALID), *(check for check, *_ in QUICK), id_checks.is_hungarian_personal_number],
)
@pytest.mark.parametrize("text", ["", "A", "1", "000", "ABCDEFGHIJKL", "٣" * 10, "99999999A999", "A" * 400, "-" * 10])
def test_what_is_no_number_is_refused_and_nothing_raises(check, text):
    assert check(text) is False


def test_a_polish_card_is_checked_by_its_first_digit():
    assert [d for d in "0123456789" if id_checks.is_polish_identity_card(f"CDB{d}00336")] == ["6"]
    assert not id_checks.is_polish_identity_card("CD6600336")


def test_a_date_that_never_was_is_refused():
    assert not id_checks.is_luxembourg_number("1893130105732")
    assert not id_checks.is_latvian_personal_code("16137519997")


def test_a_latvian_code_of_the_new_kind_has_no_date_and_no_check():
    assert id_checks.is_latvian_personal_code("32137519997") and id_checks.is_latvian_personal_code("32137519998")
    assert not id_checks.is_latvian_personal_code("3213751999")


def test_a_spanish_serial_below_ten_million_may_be_checked_without_its_zeros():
    assert id_checks.is_spanish_insurance_number("281234567840")
    assert id_checks.is_spanish_insurance_number("080123456763") == (81234567 % 97 == 63)
    assert not id_checks.is_spanish_insurance_number("991234567840")


@pytest.mark.parametrize(
    ("number", "holds"),
    [
        ("181/815/08155", True),
        ("0181081508155", False),
        ("9181081508155", True),
        ("18181508155", False),
        ("abc", False),
    ],
)
def test_a_tax_offices_number_needs_its_separators_or_its_thirteen_digits(number, holds):
    assert id_checks.is_german_tax_office_number(number) is holds
