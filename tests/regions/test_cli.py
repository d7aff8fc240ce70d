import json

import pytest
from typer.testing import CliRunner

from regions.cli import app


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_list_shows_the_four_facts_of_every_region():
    shown = run("list")
    assert shown.exit_code == 0
    for word in ("eu-fr-par", "eu-de-fra", "us-east", "2026-11-27"):
        assert word in shown.output


def test_list_gives_json_that_a_program_can_read():
    answer = json.loads(run("list", "--json").output)
    assert answer["catalogue"] == "2026-11-27 on 2026-11-30"
    us = next(row for row in answer["regions"] if row["region"] == "us-east")
    assert (us["compute_country"], us["operator_hq"], us["parent_country"]) == ("US", "US", "US")


def test_show_names_the_source_of_each_fact():
    shown = run("show", "eu-de-fra")
    assert shown.exit_code == 0
    assert "Domicile France SAS" in shown.output
    assert "operator source" in shown.output
    assert json.loads(run("show", "eu-de-fra", "--json").output)["parent_country"] == "FR"


def test_before_a_region_opened_it_is_not_there():
    assert json.loads(run("list", "--json", "--on", "2020-01-01").output)["regions"] == []
    refused = run("show", "eu-fr-par", "--on", "2020-01-01")
    assert refused.exit_code == 1
    assert "there is no region 'eu-fr-par' on 2020-01-01" in refused.stderr


@pytest.mark.parametrize("command", [("show", "eu-xx"), ("list", "--catalogue", "/none.yaml")])
def test_what_is_not_there_is_a_sentence_and_exit_1(command):
    refused = run(*command)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("command", ["list", "show", "check"])
def test_help_has_an_example(command):
    assert "Example:" in run(command, "--help").output


def test_check_judges_every_region_by_every_preset():
    shown = run("check", "--on", "2026-11-28")
    assert shown.exit_code == 0
    assert "eu-fr-par: allowed by health, transfer basis intra_eea" in shown.output
    assert "us-east: refused by eu-strict\n  us-east: computes in US, policy asks for EU" in shown.output


def test_check_says_by_which_rule_a_region_is_refused_and_exits_with_1(tmp_path):
    policy = tmp_path / "acme.yaml"
    policy.write_text("policy: acme\nversion: 1\nresidency: {process_in: [DE], store_in: [DE]}\n")
    refused = run("check", "eu-fr-par", "--policy", str(policy), "--json", "--on", "2026-11-28")
    assert refused.exit_code == 1
    (verdict,) = json.loads(refused.output)["regions"]
    assert (verdict["region"], verdict["policy"], verdict["allowed"]) == ("eu-fr-par", "acme", False)
    assert [reason["rule"] for reason in verdict["reasons"]] == ["residency.process_in", "residency.store_in"]
    both = run("check", "eu-fr-par", "eu-de-fra", "--policy", str(policy), "--on", "2026-11-28")
    assert both.exit_code == 0
    assert "eu-de-fra: allowed by acme" in both.output


def test_a_region_is_checked_at_an_hour_when_the_policy_answers(tmp_path):
    policy = tmp_path / "night.yaml"
    policy.write_text(
        "policy: night\nversion: 1\nresidency: {process_in: EU, store_in: EU}\n"
        'hours: {from: "22:00", until: "05:00", zone: UTC}\n'
    )
    assert run("check", "eu-fr-par", "--policy", str(policy), "--on", "2026-11-28").exit_code == 0


@pytest.mark.parametrize("text", ["policy: a\nversion: 1\nresidency: {process_in: UK}\n", "\x00", "policy: a"])
def test_a_policy_that_cannot_be_read_is_a_sentence(tmp_path, text):
    policy = tmp_path / "bad.yaml"
    policy.write_text(text)
    refused = run("check", "--policy", str(policy))
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: ")


ADD = ("create", "eu-office", "--country", "DE", "--operator", "acme-it", "--source", "register")


def test_an_own_place_is_added_and_then_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("DOMICILE_DATA", str(tmp_path))
    added = run(*ADD, "--entity", "Acme IT GmbH", "--parent", "Acme AG", "--parent-country", "AT", "--json")
    assert json.loads(added.output)["region"] == "eu-office"
    shown = json.loads(run("show", "eu-office", "--json").output)
    assert (shown["operator"], shown["ultimate_parent"], shown["parent_country"]) == ("Acme IT GmbH", "Acme AG", "AT")
    assert (tmp_path / "catalogue.yaml").stat().st_mode & 0o777 == 0o644
    assert run(*ADD).exit_code == 1, "it is there already"


def test_a_place_is_added_to_the_file_that_is_named(tmp_path):
    file = tmp_path / "places.yaml"
    assert run(*ADD, "--entity", "Acme IT GmbH", "--catalogue", str(file)).exit_code == 0
    assert "eu-office" in run("list", "--catalogue", str(file)).output


def test_a_place_that_cannot_be_added_changes_nothing(tmp_path):
    refused = run(*ADD, "--data", str(tmp_path))
    assert refused.exit_code == 1
    assert "names operator acme-it, which is not in the catalogue" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    gone = run(*ADD, "--entity", "Acme", "--data", str(tmp_path / "none"))
    assert gone.exit_code == 1
    assert gone.stderr.startswith("error: ")
