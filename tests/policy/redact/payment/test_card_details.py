# tables read better in one line a row
"""Verification codes and dates of expiry of payment cards."""

import pytest

from policy.redact.actions.plan import KINDS, RedactionPlan
from policy.redact.detectors.detectors import DETECTORS, find_spans
from policy.redact.redactor import Redactor
from policy.redact.text.reading import Reading
from tests.policy.redact.layouts import LAYOUTS


def found(text: str) -> list[tuple[str, str]]:
    return [(span.label, text[span.start : span.end]) for span in find_spans(Reading(text), 0, DETECTORS)]


@pytest.mark.parametrize(
    "text",
    [
        "CVC: 123",
        "CVV 123",
        "cvv2=123",
        '"cvc": "123"',
        "Kartenprüfnummer: 123",
        "security code is 123",
        "cryptogramme visuel : 123",
        "código de seguridad: 123",
    ],
)
def test_a_code_is_found_behind_its_name(text):
    assert found(text) == [("card.verification", "123")]


@pytest.mark.parametrize(
    "text", ["CVC count 12345", "the CID 120 is fine", "CVE-2021-1234", "cvc1234x", "CVV: 12.345", "error code 123"]
)
def test_other_numbers_are_no_code(text):
    assert found(text) == []


def test_an_expiry_counts_beside_a_card_alone():
    assert ("card.expiry", "12/27") in found("Visa 4111 1111 1111 1111, exp 12/27")
    assert found("the milk: exp 12/27") == []


def test_a_plan_may_name_them_or_cards_in_general():
    assert {"card.verification", "card.expiry"} <= set(KINDS)
    body = {"model": "m", "prompt": "CVC: 123"}
    for label in ("card", "card.verification"):
        assert (
            Redactor(RedactionPlan({label: "mask"})).redact_body(body, LAYOUTS["completions"], "k7f3qw").body["prompt"]
            == "CVC: [CARD]"
        )
