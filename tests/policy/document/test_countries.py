import re

import pytest

from policy.decision.residency import country_rule
from policy.document.countries import builtin_countries

ON = builtin_countries().as_of


LINKED_OR_NEAR = "GL NC PF PM WF BL TF AW CW SX BQ SJ MC SM VA FO GG JE IM CH GB US".split()  # noqa: SIM905
ADEQUATE = set("AD AR BR CH FO GB GG IL IM JE KR NZ UY".split())  # noqa: SIM905


def members(name):
    rule = country_rule(name, builtin_countries())
    return {country for country in builtin_countries().known if rule.objection(country, ON, ()) is None}


def test_the_eu_has_27_states_and_the_eea_three_more():
    states = members("EU") - {"AX", "GF", "GP", "MF", "MQ", "RE", "YT"}
    assert len(states) == 27 and "GB" not in states
    assert members("EEA") - members("EU") == {"IS", "LI", "NO"}


@pytest.mark.parametrize("inside", ["AX", "GF", "GP", "MF", "MQ", "RE", "YT"])
def test_these_codes_are_inside_the_eu_though_they_look_far_away(inside):
    assert inside in members("EU")


@pytest.mark.parametrize("outside", LINKED_OR_NEAR)
def test_these_codes_are_outside_the_eea_though_they_look_near(outside):
    assert outside not in members("EEA")


def test_partial_decisions_admit_no_country_as_a_whole():
    adequate = members("EEA+adequate") - members("EEA")
    assert adequate == ADEQUATE
    assert {row.country for row in builtin_countries().adequacy if row.partial} == {"CA", "JP", "US"}


def test_every_row_has_a_known_code_and_a_decision_number():
    table = builtin_countries()
    assert len(table.known) == 249
    for row in table.adequacy:
        assert row.country in table.known and re.search(r"\d{2,4}/\d+", row.decision) and row.valid_from <= table.as_of
