from datetime import date, timedelta

import pytest

from regions.catalogue.catalogue import Catalogue
from regions.errors import CatalogueError

TODAY = date(2026, 11, 27)
ROWS = """\
version: "1"
operators:
  - id: domicile-fr
    entity: Domicile France SAS
    head_office: FR
    ultimate_parent: Domicile France SAS
    parent_country: FR
    valid_from: 2026-01-01
    source: register
regions:
  - id: eu-fr-par
    name: Paris
    compute_country: FR
    storage_country: FR
    operator: domicile-fr
    valid_from: 2026-01-01
    source: contract
"""


@pytest.fixture(scope="module")
def catalogue():
    return Catalogue.load()


def facts(catalogue, region="eu-fr-par", day=TODAY):
    return catalogue.backend_facts(backend_id="b1", tenant="acme", region=region, models=["m"], day=day)


@pytest.mark.parametrize(
    "region, countries",
    [
        ("eu-fr-par", ("FR", "FR", "FR", "FR")),
        ("eu-de-fra", ("DE", "DE", "DE", "FR")),
        ("us-east", ("US", "US", "US", "US")),
    ],
)
def test_each_region_states_the_four_facts(catalogue, region, countries):
    known = facts(catalogue, region)
    assert (known.compute_country, known.storage_country, known.operator_hq, known.parent_country) == countries
    assert known.operator
    assert known.ultimate_parent
    assert (known.backend_id, known.tenant, known.region, known.models) == ("b1", "acme", region, ("m",))


def test_every_row_has_a_source_and_a_first_day(catalogue):
    for row in (*catalogue.operators, *catalogue.regions):
        assert row.source
        assert row.valid_from <= date(2026, 11, 30)
    assert catalogue.version == "2026-11-27 on 2026-11-30"


def test_an_unknown_region_has_no_facts_and_no_default(catalogue):
    known = facts(catalogue, "eu-it-mil")
    assert known.region == "eu-it-mil"
    assert known.compute_country is known.storage_country is known.operator is known.operator_hq is None
    assert known.parent_country is None


def test_facts_are_unknown_outside_the_days_a_row_is_valid():
    catalogue = Catalogue.parse(ROWS.replace("source: contract", "valid_to: 2026-06-30\n    source: contract"))
    assert facts(catalogue, day=date(2025, 12, 31)).compute_country is None
    assert facts(catalogue, day=date(2026, 1, 1)).compute_country == "FR"
    assert facts(catalogue, day=date(2026, 6, 30)).compute_country == "FR"
    assert facts(catalogue, day=date(2026, 7, 1)).compute_country is None


def test_an_operator_that_is_sold_changes_on_the_day():
    sold = """\
  - id: domicile-fr
    entity: Domicile France SAS
    head_office: FR
    ultimate_parent: Hyperion Holdings Inc.
    parent_country: US
    valid_from: 2026-07-01
    source: press release
regions:
"""
    text = ROWS.replace("source: register\n", "source: register\n    valid_to: 2026-06-30\n").replace(
        "regions:\n", sold
    )
    catalogue = Catalogue.parse(text)
    assert facts(catalogue, day=date(2026, 6, 30)).parent_country == "FR"
    assert facts(catalogue, day=date(2026, 7, 1)).parent_country == "US"


def test_an_operator_that_ended_leaves_its_facts_unknown():
    catalogue = Catalogue.parse(ROWS.replace("source: register", "valid_to: 2026-06-30\n    source: register"))
    known = facts(catalogue)
    assert known.compute_country == "FR"
    assert known.operator_hq is known.parent_country is None


def test_asking_for_a_row_that_is_not_there_names_those_that_are(catalogue):
    with pytest.raises(CatalogueError, match="there are eu-de-fra, eu-fr-par, us-east"):
        catalogue.region("eu-it-mil", TODAY)
    with pytest.raises(CatalogueError, match="there are none"):
        catalogue.operator("domicile-fr", date(2020, 1, 1))


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("storage_country: FR", "storage_country: UK", "line 14: .*did you mean GB"),
        ("storage_country: FR", "storage_country: EU", "line 14: .*no ISO 3166"),
        ("storage_country: FR", "storage_country: fr", "line 14: .*no ISO 3166"),
        ("storage_country: FR", "stored_in: FR", "storage_country"),
        ("source: contract", "source: ''", "source"),
        ("    source: contract\n", "", "source"),
        ("valid_from: 2026-01-01\n    source: contract", "valid_from: soon\n    source: contract", "line 16: .*date"),
        ("operator: domicile-fr", "operator: nobody", "names operator nobody"),
        ("id: eu-fr-par", "id: EU/FR", "line 11"),
        ("regions:", "regions: []\nplaces:", "places"),
        ("source: register", "source: register\n    valid_to: 2025-01-01", "before it begins"),
        ("name: Paris", "name: Paris\n    name: Lyon", "line"),
        ("name: Paris", "name: &a Paris", "line"),
        (ROWS, "", "empty"),
        (ROWS, "- a\n- b", "valid dictionary"),
    ],
)  # fmt: skip
def test_a_wrong_catalogue_is_refused_with_its_line(old, new, complaint):
    assert old in ROWS
    with pytest.raises(CatalogueError, match=complaint):
        Catalogue.parse(ROWS.replace(old, new, 1))


def test_norway_is_a_country_and_not_false():
    known = facts(Catalogue.parse(ROWS.replace("storage_country: FR", "storage_country: NO")))
    assert known.storage_country == "NO"


def test_two_rows_of_one_id_may_not_overlap():
    again = ROWS[ROWS.index("  - id: eu-fr-par") :]
    with pytest.raises(CatalogueError, match="described twice on 2026-01-01"):
        Catalogue.parse(ROWS + again)
    later = again.replace("2026-01-01", "2026-07-01")
    with pytest.raises(CatalogueError, match="described twice on 2026-07-01"):
        Catalogue.parse(ROWS + later)


def test_an_installation_brings_its_own_file(tmp_path):
    path = tmp_path / "catalogue.yaml"
    path.write_text(ROWS, encoding="utf-8")
    assert Catalogue.load(path).version == "1"
    with pytest.raises(CatalogueError, match="cannot be read"):
        Catalogue.load(tmp_path / "none.yaml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CatalogueError, match="cannot be read"):
        Catalogue.load(path)


def test_it_hands_on_the_country_table_that_policy_keeps(catalogue):
    sets = catalogue.country_sets()
    assert "FR" in sets.known
    assert {m.country for m in sets.eu if m.valid_from <= TODAY + timedelta(0)} >= {"FR", "DE"}


REGISTERS = """\
subprocessor_registers:
  - {id: domicile-fr, version: "1", announced: 2025-12-01, subprocessors: [{name: Logs SA, country: FR, does: logs}], valid_from: 2026-01-01, valid_to: 2026-06-30, source: register}
  - {id: domicile-fr, version: "2", announced: 2026-06-01, objection_until: 2026-06-30, subprocessors: [{name: Logs Inc, country: US}], valid_from: 2026-07-01, valid_to: 2026-11-30, source: register}
certifications:
  - {id: c5, scheme: C5, of: eu-fr-par, scope: data centre, valid_from: 2026-01-01, valid_to: 2026-11-30, source: report}
  - {id: iso, scheme: ISO 27001, of: domicile-fr, scope: all, valid_from: 2026-03-01, valid_to: 2029-02-28, source: report}
"""  # noqa: E501


def test_the_register_of_sub_processors_is_that_of_the_day_and_names_its_version():
    kept = Catalogue.parse(ROWS + REGISTERS)
    first, second = facts(kept, day=date(2026, 6, 30)), facts(kept, day=date(2026, 7, 1))
    assert [(s.name, s.country) for s in first.subprocessors] == [("Logs SA", "FR")]
    assert [(s.name, s.country) for s in second.subprocessors] == [("Logs Inc", "US")]
    assert (first.subprocessors_version, second.subprocessors_version) == ("1", "2")


def test_a_register_that_ended_leaves_a_sub_processor_that_nobody_knows():
    known = facts(Catalogue.parse(ROWS + REGISTERS), day=date(2026, 12, 1))
    assert [s.country for s in known.subprocessors] == [None]
    assert known.subprocessors_version is None


def test_certificates_count_while_they_are_in_force_of_the_region_and_of_its_operator():
    kept = Catalogue.parse(ROWS + REGISTERS)
    assert facts(kept, day=date(2026, 2, 1)).certifications == ("C5",)
    assert facts(kept, day=TODAY).certifications == ("C5", "ISO 27001")
    assert facts(kept, day=date(2026, 12, 1)).certifications == ("ISO 27001",)
    assert facts(Catalogue.parse(ROWS), day=TODAY).certifications == ()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("of: eu-fr-par", "of: eu-xx", "certification c5 is of eu-xx, which is not there"),
        ("{id: domicile-fr, version: \"1\"", "{id: nobody, version: \"1\"", "of nobody belongs to no operator"),
        ("valid_from: 2026-07-01", "valid_from: 2026-06-30", "sub-processor register domicile-fr is described twice"),
        ("valid_to: 2026-11-30, source: report", "source: report", "valid_to: the value is not valid; field required"),
    ],
)  # fmt: skip
def test_a_wrong_register_or_certificate_is_refused(old, new, complaint):
    with pytest.raises(CatalogueError, match=complaint):
        Catalogue.parse(ROWS + REGISTERS.replace(old, new, 1))


def test_what_comes_along_names_the_source_of_registers_and_certificates_too(catalogue):
    for row in (*catalogue.registers, *catalogue.certifications):
        assert row.source
    assert facts(catalogue, "us-east").subprocessors_version == "1"
    assert set(facts(catalogue, "eu-de-fra").certifications) == {"C5", "ISO 27001"}
