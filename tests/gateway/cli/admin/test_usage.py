import csv
import io
import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.database.tables.usage import LedgerRow
from tests.fakes.lab import open_control
from tests.fakes.ledger_sums import sum_up

DAY = "2026-11-20"


@pytest.fixture
def data(tmp_path):
    control = open_control(tmp_path / "data")
    for tenant in ("acme", "globex"):
        control.create_tenant(tenant)
        control.create_project(tenant, "main", purpose="support", legal_basis="contract")
    with control._database.write() as session:
        for number, tenant in enumerate(["acme", "acme", "globex"]):
            session.add(
                LedgerRow(
                    tenant=tenant,
                    request_id=f"r{number}",
                    project="main",
                    key_id="k1",
                    model="small",
                    region="eu-fr-par",
                    backend="b",
                    accepted_at=0.0,
                    outcome="completed",
                    day=DAY,
                    tokens_in=900_000,
                    tokens_cached=0,
                    tokens_out=100_000,
                    estimated=False,
                    backend_ms=1500,
                    price=1,
                    nano_eur=250_000_000,
                )
            )
    sum_up(control._database)
    control._database.close()
    return tmp_path / "data"


@pytest.fixture
def domicile(data):
    def run(*arguments, status=0):
        done = CliRunner().invoke(app, [*arguments, "--data", str(data)])
        assert done.exit_code == status, done.output
        return done.output

    return run


def test_usage_is_shown_as_a_table_and_as_json(domicile):
    table = domicile("usage", "show")
    assert "acme" in table
    assert "0.5" in table
    lines = json.loads(domicile("usage", "show", "--by", "tenant", "--json"))
    assert [(line["tenant"], line["requests"], line["eur"]) for line in lines] == [
        ("acme", 2, 0.5),
        ("globex", 1, 0.25),
    ]
    assert lines[0]["eur_per_million_tokens"] == 0.25
    assert json.loads(domicile("usage", "show", "--by", "day", "--until", "2026-11-19", "--json")) == []
    (line,) = json.loads(domicile("usage", "show", "--by", "", "globex", "--json"))
    assert (line["tenant"], line["requests"]) == (None, 1)


def test_a_dimension_or_a_tenant_that_is_not_there_is_told(domicile):
    assert "name one of tenant, project, key" in domicile("usage", "show", "--by", "colour", status=2)
    assert "no tenant 'nobody'" in domicile("usage", "show", "nobody", status=1)


def test_the_ledger_is_exported_as_csv_or_json_and_never_over_a_file(domicile, tmp_path):
    rows = list(csv.DictReader(io.StringIO(domicile("usage", "export", "acme"))))
    assert [row["request_id"] for row in rows] == ["r0", "r1"]
    objects = [json.loads(line) for line in domicile("usage", "export", "--json").splitlines()]
    assert [row["nano_eur"] for row in objects] == [250_000_000] * 3
    file = tmp_path / "november.csv"
    domicile("usage", "export", "--output", str(file), "--since", DAY, "--until", DAY)
    assert len(file.read_text().splitlines()) == 4
    assert "exists" in domicile("usage", "export", "--output", str(file), status=1)


@pytest.mark.parametrize("day", ["yesterday", "2026-02-30", "2026-11-30T12:00"])
def test_what_is_no_day_is_told_with_one_that_is(domicile, day):
    said = domicile("usage", "show", "acme", "--since", day, status=2)
    assert "no day of the calendar" in said and "2026-11-30" in said


def test_an_export_into_a_folder_that_is_not_there_names_the_folder(domicile, tmp_path):
    said = domicile("usage", "export", "-o", str(tmp_path / "no" / "x.csv"), status=1)
    assert f"no folder {tmp_path / 'no'}; create it" in said


def test_prices_are_set_and_listed(domicile):
    domicile("usage", "create-price", "small", "--input", "0.02", "--output", "0.05")
    shown = json.loads(
        domicile(
            "usage",
            "create-price",
            "small",
            "--input",
            "0.03",
            "--output",
            "0.05",
            "--cached",
            "0.01",
            "--valid-from",
            "2099-01-01",
            "--json",
        )
    )
    assert (shown["number"], shown["cached"]) == (2, 0.01)
    assert datetime.fromisoformat(shown["valid_from"]) == datetime(2099, 1, 1, tzinfo=UTC)
    assert [price["number"] for price in json.loads(domicile("usage", "list-prices", "--json"))] == [1, 2]
    assert "0.02" in domicile("usage", "list-prices")


@pytest.mark.parametrize("wrong", ["-1", "much", "NaN", "0.00000001"])
def test_a_price_that_is_none_is_refused(domicile, wrong):
    domicile("usage", "create-price", "small", f"--input={wrong}", "--output", "1", status=2)
    assert json.loads(domicile("usage", "list-prices", "--json")) == []


def test_limits_are_set_shown_listed_and_taken_away(domicile):
    domicile("limit", "update", "acme", "--rpm", "600", "--eur-per-month", "99.5")
    domicile("limit", "update", "acme", "--tpm", "1000", "--rpm", "none")
    domicile("limit", "update", "acme", "--project", "main", "--concurrent", "0")
    shown = json.loads(domicile("limit", "show", "acme", "--json"))
    assert (shown["requests_per_minute"], shown["tokens_per_minute"], shown["eur_per_month"]) == (None, 1000, 99.5)
    assert [row["concurrent_requests"] for row in json.loads(domicile("limit", "list", "acme", "--json"))] == [None, 0]
    assert "main" in domicile("limit", "list", "acme")


WRONG = ("--rpm=-1", "--rpm=0.5", "--tpm=1e3", "--concurrent=many", "--eur-per-day=-0.1", "--eur-per-day=inf")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_limit_that_is_none_is_refused_and_named(domicile, wrong):
    said = domicile("limit", "update", "acme", wrong, status=2)
    assert wrong.partition("=")[2] in said
    assert json.loads(domicile("limit", "list", "acme", "--json")) == []


def test_a_limit_command_that_names_no_limit_or_nobody_says_so(domicile):
    assert "name at least one, as --rpm 600" in domicile("limit", "update", "acme", status=2)
    assert "no tenant 'nobody'" in domicile("limit", "update", "nobody", "--rpm", "1", status=1)
    assert "no key" in domicile("limit", "show", "acme", "--key", "k9", status=1)
