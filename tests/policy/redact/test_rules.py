"""The files of rules: what they must hold so that a new country, vendor or language is one entry."""

import re

import pytest
from stdnum import luhn

from policy.redact.addresses.grammar import grammar
from policy.redact.detectors.secret_formats import INSIDE, PREFIXED
from policy.redact.ids.kinds import IDS, TRAITS, Needs, _kind
from policy.redact.payment.vat_kinds import VAT, vat_number
from policy.redact.text.value_identity import EXACT, NUMBER, SIGNED


def test_every_kind_can_be_found_by_a_name_or_alone():
    for kind, each in IDS.items():
        assert each.names or kind == "mrz", kind
        assert each.shapes or each.read_as or each.needs is Needs.NAME, kind
        assert all(name == name.lower() for name in each.names), kind


def test_the_patterns_of_kinds_compile():
    for each in IDS.values():
        re.compile(each.written)
        re.compile(each.plausible)


ENTRY = {"shapes": ["999999999"], "check": "stdnum.luhn", "needs": "name", "names": ["member no"]}


def test_an_entry_with_a_check_of_the_library_or_of_ours_is_a_kind():
    assert _kind(ENTRY).is_valid is luhn.is_valid
    assert _kind({**ENTRY, "check": "own.is_file_number"}).is_valid("12345678")


@pytest.mark.parametrize(
    "wrong", [{"check": "os.system"}, {"check": "own.nothing"}, {"needs": "luck"}, {"traits": ["odd"]}]
)
def test_an_entry_that_names_what_is_not_there_is_refused(wrong):
    with pytest.raises((ValueError, KeyError, AttributeError)):
        _kind({**ENTRY, **wrong})


def test_an_entry_names_when_two_spellings_are_one_number_or_has_the_rule_of_its_traits():
    assert _kind(ENTRY).identity is NUMBER
    assert _kind({**ENTRY, "traits": ["signed"]}).identity is SIGNED
    assert _kind({**ENTRY, "identity": "exact"}).identity is EXACT
    with pytest.raises(ValueError, match="no identity is called loose; it is one of exact, number, signed, mail"):
        _kind({**ENTRY, "identity": "loose"})


def test_traits_are_those_that_are_documented():
    assert {trait for each in IDS.values() for trait in each.traits} <= TRAITS


def test_every_key_begins_with_its_prefix():
    assert len(PREFIXED) > 100
    for prefix, pattern in PREFIXED.items():
        assert pattern.pattern.startswith(re.escape(prefix))
    assert all(each.before >= 0 and re.escape(each.sign)[:1] for each in INSIDE)


def test_every_kind_of_street_has_a_language():
    rules = grammar()
    assert {"de", "fr", "es", "it", "pl"} <= {language for known in rules.in_front.values() for language in known} | {
        "de"
    }
    assert set(rules.languages_behind) == set(rules.behind)
    assert rules.loose_behind.search("Bahnhof ") and not rules.loose_behind.search("Hauptstraße ")


def test_every_country_with_a_vat_number_has_an_entry_that_can_be_checked():
    prefixes = {number.prefix for numbers in VAT.by_head.values() for number in numbers}
    assert prefixes >= {"AT", "BE", "EL", "CHE", "NO", "GB", "SK"}
    assert len(prefixes) == 31
    for numbers in VAT.by_head.values():
        for number in numbers:
            assert number.is_valid(number.sample) in (True, False)
            assert number.pattern.fullmatch(number.sample), number.prefix


@pytest.mark.parametrize("wrong", [{"check": "os.path"}, {"checks": "half"}, {"check": "stdnum.nowhere"}])
def test_an_entry_that_is_no_vat_number_is_refused(wrong):
    entry = {"prefix": "XX", "shape": "99", "check": "stdnum.luhn"} | wrong
    with pytest.raises((KeyError, ValueError, ImportError)):
        vat_number(entry)


def test_a_vat_number_may_be_checked_without_its_prefix():
    number = vat_number({"prefix": "XX", "shape": "9999", "check": "stdnum.luhn", "checks": "number"})
    assert number.is_valid("XX4242") is luhn.is_valid("4242")
