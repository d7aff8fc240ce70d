import pytest

from policy.redact.payment.iban import find_ibans
from policy.redact.text.reading import Reading


def ibans(text: str) -> list[str]:
    return [text[start:end] for start, end in find_ibans(text, 0)]


@pytest.mark.parametrize(
    "iban", ["DE89 3704\n0044 0532 0130 00", "GB29 NWBK 6016\r\n1331 9268 19", "FR14 2004 1010 0505\n> 0001 3M02 606"]
)
def test_an_iban_that_a_letter_wraps_is_found_whole(iban):
    assert ibans(f"Konto {iban}, danke") == [iban]


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704\n0044 0532 0130 01",  # a slip
        "DE89\n3704 0044\n0532 0130 00",  # a column of numbers
        "DE89 3704 0044\n\n0532 0130 00",
        "DE89 3704 0044\n0532 0130 0012a7",
    ],
)
def test_lines_of_other_numbers_are_no_iban(text):
    assert ibans(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "口座はDE89370400440532013000です",
        "N°éDE89370400440532013000",
        "an DEO9370400440532013000",
        "(GB29NWBK60161331926819)",
    ],
)
def test_a_text_that_knows_its_words_finds_as_much_as_one_that_does_not(text):
    assert list(find_ibans(Reading(text), 0)) == list(find_ibans(text, 0))
