"""DORA's register of information: template and column codes, values by their formats, empty where the entity judges."""

import csv
import io
import re

import pytest

from audit.incidents.pack_inputs import (
    Activity,
    Backend,
    Contract,
    Evidence,
    Operator,
    Party,
    Store,
    Subprocessor,
    Terms,
)
from audit.registers.dora import dora_files, layout
from audit.registers.pack_tables import BOM, Flows
from audit.registers.ropa import ropa_processor

LEI = re.compile(r"^[A-Z0-9]{18}[0-9]{2}$")
ENTITY_LEI, PROVIDER_LEI, OPERATOR_LEI = "529900T8BM49AURSDO55", "969500KN90DZLHUN3566", "213800WSGIIZCXF1P572"
KNOWN = Evidence(
    controller=Party(name="Bank SE", country="DE", lei=ENTITY_LEI),
    processor=Party(name="Domicile SAS", country="FR", lei=PROVIDER_LEI),
    contract=Contract(
        reference="C-1", start="2026-01-01", end="2027-12-31", governing_law="DE", notice_days_entity=90, function="F1"
    ),
    operators=(
        Operator(
            id="op", entity="Op SAS", head_office="FR", ultimate_parent="Op SAS", parent_country="FR", lei=OPERATOR_LEI
        ),
    ),
    subprocessors=(Subprocessor(operator="op", name="Cool Housing", country="SE"),),
    backends=(
        Backend(id="a", region="par", compute_country="FR", storage_country="DE", operator="op"),
        Backend(id="b", region="par", compute_country="FR", storage_country="DE", operator="op"),
        Backend(id="c", region="par", compute_country="US", storage_country="US", operator="op", revoked_at="2026-02"),
    ),
    terms=(Terms(policy_hash="a" * 64, metadata_days=365, content_days=30),),
)


def template(name: str, evidence: Evidence = KNOWN) -> list[dict[str, str]]:
    text = dora_files(evidence)[f"dora/{name}.csv"]
    assert not text.startswith(BOM)
    return list(csv.DictReader(io.StringIO(text)))


def test_every_template_has_its_column_codes_as_header_even_without_rows() -> None:
    for name, columns in layout()["templates"].items():
        header = dora_files(Evidence())[f"dora/{name.lower()}.csv"].splitlines()[0].split(",")
        assert header == [f"c{code}" for code in columns["columns"]]


def test_the_templates_have_as_many_columns_as_the_published_layout() -> None:
    counts = {name: len(one["columns"]) for name, one in layout()["templates"].items()}
    expected = {"B_01.01": 6, "B_02.01": 5, "B_02.02": 18, "B_03.02": 3, "B_05.01": 12, "B_05.02": 7}
    assert counts == expected | {"B_06.01": 10, "B_07.01": 12}
    for one in layout()["templates"].values():
        assert list(one["columns"]) == [f"{10 * at:04d}" for at in range(1, len(one["columns"]) + 1)]


def test_a_service_states_where_it_computes_and_stores_once_for_each_pair_of_places() -> None:
    (row,) = template("b_02.02")
    assert (row["c0010"], row["c0020"], row["c0030"]) == ("C-1", ENTITY_LEI, PROVIDER_LEI)
    assert (row["c0130"], row["c0140"], row["c0150"]) == ("eba_GA:FR", "eba_BT:x28", "eba_GA:DE")
    assert (row["c0160"], row["c0120"], row["c0100"]) == ("eba_GA:FR", "eba_GA:DE", "90")
    assert row["c0170"] == row["c0180"] == ""


def test_no_storage_is_stated_where_no_policy_keeps_content() -> None:
    none = Terms(policy_hash="a" * 64, metadata_days=365, content_days=0)
    (row,) = template("b_02.02", KNOWN.model_copy(update={"terms": (none,)}))
    assert (row["c0140"], row["c0150"]) == ("eba_BT:x29", "")


def test_the_supply_chain_ranks_processor_operator_and_sub_processor() -> None:
    rows = template("b_05.02")
    assert [(row["c0050"], row["c0030"], row["c0060"]) for row in rows] == [
        ("1", PROVIDER_LEI, ""),
        ("2", OPERATOR_LEI, PROVIDER_LEI),
        ("3", "[Cool Housing]", OPERATOR_LEI),
    ]


def test_without_a_processor_the_operator_is_of_rank_one() -> None:
    rows = template("b_05.02", KNOWN.model_copy(update={"processor": Party()}))
    assert [(row["c0050"], row["c0030"]) for row in rows] == [("1", OPERATOR_LEI), ("2", "[Cool Housing]")]


def test_codes_have_the_formats_that_the_published_validation_rules_ask_for() -> None:
    for row in template("b_05.01"):
        if row["c0020"] == "eba_qCO:qx2000":
            assert LEI.match(row["c0010"])
        if row["c0070"] == "eba_CT:x212" and row["c0010"]:
            assert row["c0020"] == "eba_qCO:qx2000"
        assert re.fullmatch(r"(eba_GA:[A-Z]{2})?", row["c0080"])
    for row in template("b_02.02"):
        assert row["c0080"] > row["c0070"]


@pytest.mark.parametrize("name", ["b_06.01", "b_07.01"])
def test_what_only_the_financial_entity_can_judge_stays_empty(name: str) -> None:
    filled = {code for row in template(name) for code, value in row.items() if value}
    assert filled <= {"c0010", "c0020", "c0030", "c0040"}


def test_the_long_form_names_each_column_and_who_fills_it() -> None:
    text = dora_files(KNOWN)["dora_register.csv"]
    assert text.startswith(BOM)
    rows = list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))
    by_column = {row["column"]: row for row in rows}
    assert by_column["B_02.02.0150"]["filled_by"] == "this pack"
    assert by_column["B_07.01.0050"] | {"row": ""} == {
        "template": "B_07.01",
        "template_name": "Assessment of the ICT services",
        "row": "",
        "column": "B_07.01.0050",
        "column_name": "Substitutability of the ICT third-party service provider",
        "value": "",
        "filled_by": "the financial entity",
    }


def test_a_register_without_anything_still_names_the_columns_of_the_entity() -> None:
    assert "B_01.01.0010" in dora_files(Evidence())["dora_register.csv"]


RECORD_IN = {country: Store(name="the record", country=country, setting="sinks.record") for country in ("DE", "NL")}


@pytest.mark.parametrize(("country", "expected"), [("DE", ["DE"]), ("NL", ["DE", "NL"])])
def test_kept_content_is_stored_where_the_record_is(country: str, expected: list[str]) -> None:
    rows = template("b_02.02", KNOWN.model_copy(update={"stores": (RECORD_IN[country],)}))
    assert [row["c0150"] for row in rows] == [f"eba_GA:{one}" for one in expected]


def test_content_that_only_an_earlier_policy_kept_is_not_stated_as_stored() -> None:
    now = Terms(policy_hash="b" * 64, metadata_days=365, content_days=0)
    activity = Activity(id="support", policy_hash=now.policy_hash)
    changed = KNOWN.model_copy(update={"terms": (*KNOWN.terms, now), "activities": (activity,)})
    (row,) = template("b_02.02", changed)
    assert (row["c0140"], row["c0150"]) == ("eba_BT:x29", "")


@pytest.mark.parametrize(
    ("dates", "listed"),
    [
        ({}, True),
        ({"valid_from": "2026-03-01"}, True),
        ({"valid_from": "2026-03-02"}, False),
        ({"valid_to": "2026-03-01"}, True),
        ({"valid_to": "2026-02-28"}, False),
    ],
)
def test_a_sub_processor_is_in_the_chain_while_it_is_in_force(dates: dict[str, str], listed: bool) -> None:
    below = Subprocessor(operator="op", name="Cool Housing", country="SE", **dates)
    known = KNOWN.model_copy(update={"subprocessors": (below,), "as_of": "2026-03-01"})
    assert ("[Cool Housing]" in [row["c0030"] for row in template("b_05.02", known)]) is listed
    assert ("Cool Housing" in ropa_processor({"x": Flows()}, known)[0]["subprocessors"]) is listed
