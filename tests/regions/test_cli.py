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
    assert answer["catalogue"] == "2026-11-27"
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


@pytest.mark.parametrize("command", ["list", "show"])
def test_help_has_an_example(command):
    assert "Example:" in run(command, "--help").output
