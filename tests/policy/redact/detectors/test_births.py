import pytest

from policy.redact.detectors.births import find_births


def found(text: str) -> list[str]:
    return [text[start:end] for start, end in find_births(text, 0)]


@pytest.mark.parametrize(
    ("text", "date"),
    [("born 12.05.1980 in Graz", "12.05.1980"), ("DOB 26.09.36", "26.09.36"),
    ("dáta breithe 04/10/1988, ligeadh isteach", "04/10/1988"), ("Née le 3 mars 1971 à Lyon", "3 mars 1971"),
     ("Geburtsdatum: 1980-05-12", "1980-05-12"), ("born on March 3rd, 1971", "March 3rd, 1971"),
     ("nacida el 3 de marzo de 1971", "3 de marzo de 1971"),
     ('{"birthDate": "1980/5/2"}', "1980/5/2"), ("date_of_birth=02-01-1990", "02-01-1990"),
     ("syntynyt 4. toukokuuta 1966", "4. toukokuuta 1966"),
     ("született 1966. május 4", "1966. május 4"), ("ur. 04.05.1966 w Łodzi", "04.05.1966"),
     ("γεννήθηκε στις 04/05/1966", "04/05/1966"),
     ("name;dob\nA;04/05/1966\n", "04/05/1966"), ("fæddur 04.05.1966", "04.05.1966")],
)  # fmt: skip
def test_a_date_of_birth_is_found_in_digits_and_in_words(text, date):
    assert found(text) == [date]


@pytest.mark.parametrize(
    "text",
    ["on 12.05.1980 the law changed", "born 3 times", "natural gas 12.05.1980", "Data: 12.05.1980", "geboren in 1980",
    "born\n12.05.1980",
     "The birth rate fell in many of the countries that were looked at until 12.05.1980"],
)  # fmt: skip
def test_another_date_is_left_alone(text):
    assert found(text) == []


def test_a_date_before_the_place_to_start_is_context_only():
    text = "born 12.05.1980"
    assert list(find_births(text, 8)) == []
