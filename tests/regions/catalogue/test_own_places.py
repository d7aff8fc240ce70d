from datetime import date

import pytest

from regions.catalogue.catalogue import Catalogue
from regions.catalogue.own_places import with_place
from regions.errors import CatalogueError

DAY = date(2026, 11, 30)
OPERATOR = {
    "id": "acme-it", "entity": "Acme IT GmbH", "head_office": "DE", "ultimate_parent": "Acme: Holding # AG",
    "parent_country": "CH", "valid_from": DAY, "source": "register",
}  # fmt: skip
PLACE = {
    "id": "eu-office", "name": "Büro, \"Süd\"", "compute_country": "NO", "storage_country": "NO",
    "operator": "acme-it", "valid_from": DAY, "source": "lease",
}  # fmt: skip
OWN = """\
version: "7"   # ours
operators:
  # who runs it
  - id: acme-it
    entity: Acme IT GmbH
    head_office: DE
    ultimate_parent: Acme IT GmbH
    parent_country: DE
    valid_from: 2026-01-01
    source: register
regions:
- id: eu-hall
  name: Hall
  compute_country: DE
  storage_country: DE
  operator: acme-it
  valid_from: 2026-01-01
  source: lease

certifications: []
"""


def facts(text, region):
    return Catalogue.parse(text).backend_facts(backend_id="b", tenant="acme", region=region, models=["m"], day=DAY)


def test_a_first_place_is_added_above_those_of_the_package():
    text = with_place(None, PLACE, OPERATOR, DAY)
    known = facts(text, "eu-office")
    assert (known.compute_country, known.operator, known.ultimate_parent) == (
        "NO",
        "Acme IT GmbH",
        "Acme: Holding # AG",
    )
    assert facts(text, "eu-fr-par") == Catalogue.load().backend_facts(
        backend_id="b", tenant="acme", region="eu-fr-par", models=["m"], day=DAY
    )
    assert Catalogue.parse(text).version == f"2026-11-30 on {Catalogue.load().version}"


def test_a_place_of_an_operator_that_is_known_needs_no_other_row():
    text = with_place(None, {**PLACE, "operator": "domicile-fr"}, None, DAY)
    assert facts(text, "eu-office").operator_hq == "FR"


def test_an_owner_that_is_unknown_is_written_so_and_read_back_as_unknown():
    unowned = {**OPERATOR, "ultimate_parent": "unknown", "parent_country": "unknown"}
    text = with_place(None, {**PLACE, "storage_country": "unknown"}, unowned, DAY)
    known = facts(text, "eu-office")
    assert known.ultimate_parent is known.parent_country is known.storage_country is None
    assert (known.operator, known.operator_hq) == ("Acme IT GmbH", "DE")
    assert text.count('"unknown"') == 3 and "null" not in text


def test_what_else_a_file_says_stays_as_it_was_written():
    text = with_place(OWN, PLACE, None, DAY)
    assert set(OWN.splitlines()) - set(text.splitlines()) == {'version: "7"   # ours'}
    known = Catalogue.parse(text)
    assert [region.id for region in known.regions] == ["eu-hall", "eu-office"], "the package's own do not hold here"
    assert known.version == "2026-11-30"


def test_each_change_of_a_day_has_a_version_of_its_own():
    text, versions = None, []
    for number in range(12):
        text = with_place(text, {**PLACE, "id": f"eu-{number}"}, OPERATOR if number == 0 else None, DAY)
        versions.append(Catalogue.own_version(text))
    assert versions == ["2026-11-30", *(f"2026-11-30.{number}" for number in range(2, 13))]


@pytest.mark.parametrize(
    "place, operator, words",
    [
        ({**PLACE, "compute_country": "UK"}, OPERATOR, "did you mean GB"),
        ({**PLACE, "id": "../x"}, OPERATOR, "id:"),
        ({**PLACE, "operator": "nope"}, None, "names operator nope"),
        ({**PLACE, "source": ""}, OPERATOR, "source:"),
        (PLACE, {**OPERATOR, "head_office": "EU"}, "country code"),
    ],
)
def test_what_is_no_place_is_refused(place, operator, words):
    with pytest.raises(CatalogueError, match=words):
        with_place(None, place, operator, DAY)


def test_a_place_or_an_operator_is_not_described_twice():
    text = with_place(None, PLACE, OPERATOR, DAY)
    with pytest.raises(CatalogueError, match="region eu-office is described twice"):
        with_place(text, PLACE, None, DAY)
    with pytest.raises(CatalogueError, match="operator acme-it is described twice"):
        with_place(text, {**PLACE, "id": "eu-other"}, OPERATOR, DAY)


@pytest.mark.parametrize("text", ["version: '1'\noperators: []\nregions: []\n", "nonsense", "- a\n"])
def test_a_file_that_a_row_cannot_be_added_to_is_refused(text):
    with pytest.raises(CatalogueError):
        with_place(text, PLACE, OPERATOR, DAY)


def test_a_file_that_extends_anything_else_is_refused():
    with pytest.raises(CatalogueError, match="extends"):
        Catalogue.parse(OWN + "extends: other\n")


def test_a_row_of_the_own_file_holds_in_place_of_the_packages():
    own = OWN.replace("eu-hall", "eu-fr-par") + "extends: domicile\n"
    assert facts(own, "eu-fr-par").compute_country == "DE"
    assert len([region for region in Catalogue.parse(own).regions if region.id == "eu-fr-par"]) == 1
