import subprocess
import sys

import pytest

from policy.redact.payment.vat import find_vat_numbers
from policy.redact.text.reading import Reading


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


@pytest.mark.parametrize("text", ["ATU13585627", "I like FR83404833048", "番号ATU13585627、", "N° éDE136695976"])
def test_a_text_that_knows_its_words_finds_as_much_as_one_that_does_not(text):
    assert list(find_vat_numbers(Reading(text), 0)) == list(find_vat_numbers(text, 0)) != []


def test_no_number_of_any_country_loads_what_was_not_loaded_before():
    text = "ATU13585627 BE0428759497 LV44899189319 MT20732427 LU80647243 SK8379492143 HU14573145 SE612031800801"
    text += ", call +1 212 555 0187, +47 22123456"
    code = (
        "import sys; from policy.redact.evaluate import find_labelled\n"
        "from policy.redact.detectors.detectors import warm\n"
        f"warm(); before = set(sys.modules); found = find_labelled({text!r})\n"
        "assert len(found) > 5, found; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
