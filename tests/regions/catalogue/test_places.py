"""The real places of the package: every fact has a source that was read, and what nobody read is refused."""

from datetime import date
from pathlib import Path

import pytest

from policy.decision.compile import compile_policy
from policy.document.document import load_document
from policy.presets import PRESETS, preset_document
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.region_facts import place_facts
from regions.catalogue.region_verdict import evaluate_region
from regions.catalogue.rows import UNREAD
from regions.errors import CatalogueError

DAY = date(2026, 11, 30)
PLACES = Catalogue.places()
REGIONS = {region.id: region for region in PLACES.regions}
OPERATORS = {operator.id: operator for operator in PLACES.operators}
ROWS = (*PLACES.operators, *PLACES.regions, *PLACES.registers, *PLACES.claims)
AMERICAN = {"aws", "microsoft", "google-cloud"}
PAGE = Path(__file__).parents[3] / "docs" / "regions.md"
BEGIN, END = "<!-- places: written by `python -m tests.regions.catalogue.test_places` -->", "<!-- end of places -->"
NO_OWNER = """\
policy: places
version: 1
residency: {process_in: EEA+adequate, store_in: EEA+adequate, transfer_basis: [intra_eea, adequacy]}
"""
READ = """\
version: "ours"
extends: places
operators:
regions:
subprocessor_registers:
  - id: scaleway
    version: "contract of 2026-11-01, annex 3"
    subprocessors:
      - {name: Support SAS, country: COUNTRY, does: support}
    valid_from: 2026-11-30
    source: the signed contract
"""


def verdict(region, policy, catalogue=PLACES):
    document = preset_document(policy) if policy in PRESETS else load_document(policy)
    compiled = compile_policy(document, None, catalogue.country_sets())
    return evaluate_region(compiled, catalogue, catalogue.region(region, DAY), DAY)


def rules(judged):
    return {reason.rule for reason in judged.decision.reasons}


def test_at_least_twelve_real_operators_have_places():
    assert len({region.operator for region in PLACES.regions}) >= 12
    assert {region.operator for region in PLACES.regions} == set(OPERATORS)
    assert not any("example" in row.source for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{type(row).__name__}-{row.id}")
def test_every_row_names_a_source_that_was_read_on_a_day(row):
    assert "https://" in row.source or "http://" in row.source
    assert row.read_on is not None and row.read_on <= DAY
    assert row.valid_from >= row.read_on
    for one in row.sources:
        assert "http" in one.source
        assert one.read_on <= DAY


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_nobody_is_said_to_have_no_subprocessors(operator):
    """A list that nobody read is `unknown`; an empty one would let every policy pass."""
    facts = PLACES.backend_facts(backend_id="b", tenant="t", region=first_of(operator.id), models=["m"], day=DAY)
    assert UNREAD in facts.subprocessors
    assert facts.certifications == ()


def first_of(operator):
    return next(region.id for region in PLACES.regions if region.operator == operator)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_allows_a_place_whose_subprocessors_nobody_read(region, preset):
    judged = verdict(region, preset)
    assert not judged.allowed
    assert "residency.subprocessors" in rules(judged)


@pytest.mark.parametrize("region", [one.id for one in PLACES.regions if one.operator in AMERICAN])
def test_places_in_the_eu_under_american_control_are_refused_for_their_owner(region):
    assert PLACES.region(region, DAY).compute_country in {"DE", "FR", "NL", "IE"}
    for preset in ("eu-strict", "finance", "health"):
        assert "residency.operator.ultimate_parent" in rules(verdict(region, preset))


def test_a_mexican_owner_of_a_german_place_is_refused_like_an_american_one():
    assert "residency.operator.ultimate_parent" in rules(verdict("exoscale-de-fra-1", "eu-strict"))
    assert "residency.operator.head_office" in rules(verdict("exoscale-de-fra-1", "eu-strict"))


@pytest.mark.parametrize("region", ["hetzner-fsn1", "mistral-la-plateforme", "stackit-model-serving"])
def test_an_unknown_fact_is_refused_even_by_a_policy_that_asks_for_no_owner(region):
    assert "facts.missing" in rules(verdict(region, NO_OWNER))


def test_a_certificate_that_is_only_claimed_satisfies_no_policy():
    asks = NO_OWNER + "backend: {certifications: [ISO 27001]}\n"
    assert "backend.certifications" in rules(verdict("stackit-eu01", asks))
    assert place_facts(PLACES, REGIONS["stackit-eu01"], DAY)["claimed"] == "ISO 27001"
    assert place_facts(PLACES, REGIONS["stackit-eu01"], DAY)["certifications"] == "none"


def test_a_register_of_the_installation_says_what_nobody_had_read():
    known = Catalogue.parse(READ.replace("COUNTRY", "FR"))
    assert known.version == f"ours on {PLACES.version}"
    judged = verdict("scaleway-fr-par", "eu-strict", known)
    assert judged.allowed, judged
    assert not verdict("ovh-gra", "eu-strict", known).allowed


@pytest.mark.parametrize("country", ["US", "unknown"])
def test_a_register_with_an_outsider_or_a_part_that_nobody_read_is_refused(country):
    text = READ.replace("{name: Support SAS, country: COUNTRY, does: support}", "unknown").replace("COUNTRY", country)
    if country != "unknown":
        text = READ.replace("COUNTRY", country)
    judged = verdict("scaleway-fr-par", "eu-strict", Catalogue.parse(text))
    assert rules(judged) == {"residency.subprocessors"}


def test_the_part_of_a_list_that_was_read_is_judged_by_name():
    judged = verdict("nebius-eu-north1", "eu-strict")
    because = " ".join(reason.because for reason in judged.decision.reasons)
    assert "Nebius Inc. is in US" in because
    assert "the list was not read" in because


def test_shown_are_the_sources_their_days_and_what_is_second_hand():
    shown = place_facts(PLACES, REGIONS["exoscale-de-fra-1"], DAY)
    assert (shown["read_on"], shown["operator_read_on"]) == ("2026-11-30", "2026-11-30")
    assert shown["operator_source"].startswith("https://www.exoscale.com/dpa/")
    assert "second-hand, read on 2026-11-30" in shown["other_sources"]
    assert shown["subprocessors"] == "unknown (the list was not read)"
    assert set(shown["second_hand"].split(", ")) >= {"compute_country", "parent_country"}
    assert "entity" not in shown["second_hand"]


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("head_office: CH", "head_office:", "head_office: .*write unknown"),
        ("head_office: CH", "head_office: UNKNOWN", "no ISO 3166"),
        ("facts: [parent_country]", "facts: [owner]", "sources name owner, no known fact"),
        ("facts: [parent_country]", "facts: [ultimate_parent]", "sources name ultimate_parent, no known fact"),
        ("facts: [parent_country]", "facts: [parent_country, parent_country]", "parent_country twice"),
        ("facts: [parent_country]", "facts: []", "names no fact"),
        ("read_on: 2026-11-30}", "read_on: soon}", "read_on"),
        (", read_on: 2026-11-30}", "}", "read_on"),
        ("subprocessors: unknown", "subprocessors: Unknown", "subprocessors"),
        ("of: akenes", "of: nobody", "certification c5 is of nobody"),
        ("extends: places", "extends: everything", "extends"),
    ],
)
def test_rows_that_say_less_than_they_seem_to_are_refused(old, new, complaint):
    text = """\
version: "1"
extends: places
operators:
  - id: akenes
    entity: Akenes SA
    head_office: CH
    ultimate_parent: unknown
    parent_country: MX
    subprocessors: unknown
    valid_from: 2026-11-30
    source: contract
    sources:
      - {facts: [parent_country], source: report, read_on: 2026-11-30}
regions:
claims:
  - {id: c5, scheme: C5, of: akenes, scope: all, valid_from: 2026-11-30, source: contract}
"""
    assert Catalogue.parse(text)
    assert old in text
    with pytest.raises(CatalogueError, match=complaint):
        Catalogue.parse(text.replace(old, new))


def test_the_table_of_places_in_the_documentation_is_up_to_date():
    assert table() in PAGE.read_text(encoding="utf-8")


def table():
    """Each place with its four facts; a fact that is known second-hand alone is marked with an asterisk."""
    head = "| region | computes | stores | operator | in | ultimate parent | in | claimed |"
    lines = [BEGIN, head, "|---|---|---|---|---|---|---|---|"]
    for region in PLACES.regions:
        operator = OPERATORS[region.operator]
        claims = PLACES.claimed({region.id, operator.id}, DAY)
        cells = (
            f"`{region.id}`",
            cell(region, "compute_country"),
            cell(region, "storage_country"),
            *(cell(operator, name) for name in ("entity", "head_office", "ultimate_parent", "parent_country")),
            ", ".join(claims) or "none",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, END])


def cell(row, fact):
    value = getattr(row, fact) or "unknown"
    return f"{value}*" if fact in set(row.second_hand_facts()) else value


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + table() + rest.partition(END)[2], encoding="utf-8")
