import pytest

from policy.redact import id_checks

VALID = [
    (id_checks.is_german_health_insurance_number, "A123456780"),
    (id_checks.is_german_pension_number, "15070649C103"),
    (id_checks.is_document_number, "L898902C36"),
    (id_checks.is_hungarian_health_number, "037687210"),
    (id_checks.is_hungarian_tax_number, "8071592153"),
    (id_checks.is_latvian_personal_code, "16117519997"),
    (id_checks.is_luxembourg_number, "1893120105732"),
]


@pytest.mark.parametrize(("check", "number"), VALID)
def test_a_published_number_passes_and_no_other_last_digit_does(check, number):
    assert [number[:-1] + digit for digit in "0123456789" if check(number[:-1] + digit)] == [number]


@pytest.mark.parametrize("check", [*(check for check, _ in VALID), id_checks.is_hungarian_personal_number])
@pytest.mark.parametrize("text", ["", "A", "1", "000", "ABCDEFGHIJKL", "٣" * 10, "99999999A999", "A" * 400, "-" * 10])
def test_what_is_no_number_is_refused_and_nothing_raises(check, text):
    assert check(text) is False


def test_a_date_that_never_was_is_refused():
    assert not id_checks.is_luxembourg_number("1893130105732")
    assert not id_checks.is_latvian_personal_code("32137519997")
