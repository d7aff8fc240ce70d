"""A number whose key, heading or word says that it counts is no phone and no identity number."""

import pytest

from policy.redact.detectors.detectors import DETECTORS, find_spans
from policy.redact.text.counts import counts, is_count
from policy.redact.text.reading import Reading


def found(text: str) -> list[tuple[str, str]]:
    return [(span.label, text[span.start : span.end]) for span in find_spans(Reading(text), 0, DETECTORS)]


@pytest.mark.parametrize("text", [
    "calls: 23456789", "fax_count=12345678, phone_count=998877665",
    '{"phone_calls": 12345678, "contactsTotal": 99887766}',
    '{"ssn_lookups_total": 123456789, "passport_scans": 1234567}',
    "name,calls,minutes\nnorth,23456789,345678\nsouth,34567891,456789",
    "phones sold: 12 345 678", "SSN lookups: 123456789", "Fax-Gerät Modell 4500-23-11", "Telefone verkauft: 23.456.789",
    "region;tel_count;ssn_checks\nnorth;23456789;123456789\nsouth;34567891;219099999\n",
])  # fmt: skip
def test_a_count_of_phones_or_numbers_is_neither(text):
    assert found(text) == []


@pytest.mark.parametrize("text", [
    "mobile 5.1.2.3456", "telephone-api 2.14.0.1289 released", "phone SDK 10.0.19045.3803", "dial plan 100-199 support",
    "ring buffer 4096 8192 16384", "contact angle 105.3 112.4 98.7", "mobile first: 360 800 375 667",
    "call stack 7 123 456",
])  # fmt: skip
def test_versions_and_things_that_begin_as_a_phone_does_are_none(text):
    assert found(text) == []


@pytest.mark.parametrize("text, phone", [
    ("phone: 23456789", "23456789"), ("Anna calls 0170 1234567", "0170 1234567"), ('{"phone": "23456789"}', "23456789"),
    ("calls: +49 170 1234567", "+49 170 1234567"),
    ("mobile app support, phone 23456789", "23456789"), ("Fax machine: 030 1234567", "030 1234567"),
    ("name;phone\nAnna;23456789\nBea;34567891\n", "23456789"), ("tel 01.23.45.67.89", "01.23.45.67.89"),
])  # fmt: skip
def test_a_phone_in_its_usual_form_stays_one(text, phone):
    assert ("phone", phone) in found(text)


@pytest.mark.parametrize(
    "text", ["ssn: 219-09-9999", "ssn_found: 219-09-9999", "ssn_checks: 219-09-9999", "SSN lookups: 219-09-9999"]
)
def test_an_identity_number_in_its_groups_stays_one_whatever_its_key_counts(text):
    assert found(text) == [("national_id.us_ssn", "219-09-9999")]


@pytest.mark.parametrize(
    "name", ["phoneCount", "calls", "ssn_lookups_total", "Phone Costs", "tel-p99", "HTTPRequestCount"]
)
def test_the_last_word_of_a_key_says_that_it_counts(name):
    assert counts(name)


@pytest.mark.parametrize(
    "name", ["phone", "count_phone", "total", "ssn", "phone_id", "caller", "discount", "ssn_found"]
)
def test_other_keys_count_nothing(name):
    assert not counts(name)


def test_a_number_with_a_trunk_zero_is_no_count():
    assert not is_count(Reading("phone_count: 01234567"), 13)
    assert is_count(Reading("phone_count: 11234567"), 13)
