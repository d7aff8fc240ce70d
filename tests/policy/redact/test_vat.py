import pytest

from policy.redact.reading import Reading
from policy.redact.vat import find_vat_numbers


@pytest.mark.parametrize(
    "number",
    ["DE136695976", "DE 136 695 976", "BE 0428.759.497", "FR 83 404 833 048", "ATU13585627", "NL004495445B01",
     "CHE-100.155.212 MWST", "IT00743110157"],
)  # fmt: skip
def test_a_vat_number_is_found_whole(number):
    text = f"VAT {number}, paid"
    assert [text[start:end] for start, end in find_vat_numbers(text, 0)] == [number]


@pytest.mark.parametrize(
    "text", ["DE136695977", "de136695976", "XDE136695976", "DE1366959761", "XX136695976", "00743110157"]
)
def test_what_is_no_vat_number_is_left_alone(text):
    assert list(find_vat_numbers(text, 0)) == []


@pytest.mark.parametrize(
    "text", ["USt-IdNr. de136695976.", "btw: nl004495445b01", "TVA fr40303265045", "uid/vat atu13585627"]
)
def test_small_letters_count_behind_its_name_in_one_piece(text):
    assert len(list(find_vat_numbers(Reading(text), 0))) == 1


@pytest.mark.parametrize(
    "text",
    ["file de136695976 here", "VAT x/de136695976", "VAT de136695976.pdf", "VAT de136695977", "VAT de 136 695 976"],
)
def test_small_letters_elsewhere_do_not(text):
    assert list(find_vat_numbers(Reading(text), 0)) == []


def test_an_italian_number_counts_where_it_is_named():
    assert list(find_vat_numbers("Partita IVA 00743110157", 0)) == [(12, 23)]
