"""The map of countries: what a tile says, and that no country with a call is left out."""

import re
from xml.etree import ElementTree

import pytest

from gateway.console.drawing.country_map import PARTS, Country, countries_of, draw, kinds_of, parts_of
from gateway.console.language import NAMES, language

NOWHERE = {"allowed": True, "region": "gone"}


def place(country, calls, storage=None, operator="Scaleway", basis="intra_eea"):
    return {
        "country": country, "calls": calls, "storage_country": storage or country, "operator": operator, "basis": basis
    }  # fmt: skip


def test_calls_are_summed_by_country_of_computation_and_data_by_country_of_storage():
    places = [place("FR", 3), place("FR", 2, "DE", "OVH"), place("US", 7, "DE", "Acme", "scc:c-1")]
    by_code = {each.code: each for each in countries_of(places, (), {})}
    assert {code: (one.ran, one.stored) for code, one in by_code.items()} == {
        "US": (7, 0), "FR": (5, 3), "DE": (0, 9),
    }  # fmt: skip
    assert by_code["FR"].operators == {"Scaleway": 3, "OVH": 2}
    assert by_code["US"].bases == {"scc:c-1": 7} and by_code["DE"].bases == {}


def test_countries_with_most_calls_come_first():
    assert [one.code for one in countries_of([place("DE", 1), place("FR", 2, "AT")], (), {})] == ["FR", "DE", "AT"]


@pytest.mark.parametrize(("verdicts", "allowed"), [([True], True), ([False], False), ([False, True, False], True)])
def test_a_country_is_allowed_if_one_of_its_regions_is(verdicts, allowed):
    regions = {f"r{at}": {"compute_country": "SE"} for at in range(3)}
    judged = [{"region": f"r{at}", "allowed": one} for at, one in enumerate(verdicts)]
    assert [each.allowed for each in countries_of((), judged, regions)] == [allowed]


def test_a_region_without_a_known_country_is_on_no_tile():
    assert countries_of((), [NOWHERE], {}) == []
    assert countries_of((), [NOWHERE], {"gone": {"compute_country": None}}) == []


@pytest.mark.parametrize(
    ("bases", "kinds"),
    [
        (["intra_eea"], ["intra_eea"]),
        (["scc:contract-7", "intra_eea"], ["intra_eea", "scc"]),
        (["adequacy:2000/518/EC+scc:x"], ["adequacy", "scc"]),
        (["unheard_of"], ["unheard_of"]),
        ([], []),
    ],
)
def test_the_kinds_of_bases_come_in_the_order_of_their_need_of_safeguards(bases, kinds):
    assert kinds_of(bases) == kinds


def test_every_tile_has_a_place_of_its_own_and_a_name_in_each_language():
    codes = [code for _, rows in PARTS for row in rows for code in row.split() if code != ".."]
    assert len(codes) == len(set(codes)) > 70
    for name in NAMES:
        assert not [code for code in codes if f"country.{code}" not in language(name).texts]
    assert all(len({len(row.split()) for row in rows}) == 1 for _, rows in PARTS)


def test_a_country_without_a_place_gets_a_tile_if_something_was_there_and_none_otherwise():
    there = [Country(code, ran=1) for code in ("GL", "FO", "FR", "PA", "JM", "CU")] + [Country("GI", allowed=True)]
    parts = dict(parts_of(there))
    assert parts["others"] == ["GL FO PA JM", "CU"]
    assert "others" not in dict(parts_of([Country("FR", ran=1)]))


def test_a_tile_shows_calls_storage_basis_and_the_policy():
    one = Country("FR", 12_345, 3, {}, {"adequacy:x": 1}, True)
    image = draw(["FR"], [one], "Europe", lambda each: f"{each.code}!")
    tree = ElementTree.fromstring(image)
    classes = " ".join(each.get("class", "") for each in tree.iter())
    assert all(name in classes for name in ("shade4", "may", "stored", "adequacy"))
    assert [each.text for each in tree.iter() if each.tag.endswith("title")] == ["FR!"]
    assert ">12k<" in image


def test_a_country_without_calls_is_plain_and_every_call_gives_a_shade():
    most, least, none = Country("DE", ran=5_000_000), Country("FR", ran=1), Country("IT")
    image = draw(["DE FR IT"], [most, least, none], "x", lambda each: each.code)
    assert re.findall(r"shade\d", image) == ["shade4", "shade1", "shade0"]
    assert ">5M<" in image and image.count('class="basis') == 2


def test_what_somebody_wrote_is_text_and_an_unknown_basis_no_class():
    bad = Country('<x>"', 1, 1, {}, {'"><script>': 1})
    image = draw(['<x>"'], [bad], '"><script>', lambda each: "<script>")
    assert "<script" not in image and ElementTree.fromstring(image) is not None
    assert 'class="basis other"' in image
