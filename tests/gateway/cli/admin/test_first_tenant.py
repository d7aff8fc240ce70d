"""The way of a first tenant to its first answer: each command says which one comes next."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from policy.document.document import load_document

WEIGHTS = ("--weights", "small.gguf", "--region", "eu-fr-par")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(line, status=0, **environment):
        done = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "200", **environment})
        assert done.exit_code == status, done.output
        return done

    return invoke


def following(done):
    """The command that `done` names, None where it names none."""
    found = re.search(r"^next: (.*)$", done.stderr, re.MULTILINE)
    return found and found[1]


def test_the_commands_lead_from_an_empty_folder_to_the_gateway(run):
    command = following(run("domicile init --cell eu-1"))
    assert command == "domicile tenant create acme --preset eu-strict"
    command = following(run(command))
    assert command.startswith("domicile project create acme support ")
    command = following(run(command))
    assert command.startswith("domicile deployment create acme ")
    backend = "domicile backend create acme vllm --region eu-fr-par --url http://127.0.0.1:9 --model small --plain"
    run(backend)  # a server of its own is as good as a deployment
    made = run("domicile project create acme other --purpose x --legal-basis contract")
    assert following(made) == "domicile key create acme other"
    made = run(following(made))
    assert made.stdout.startswith("dom_live_")
    assert following(made) == "domicile up"


def test_without_a_preset_a_file_is_written_first(run, tmp_path):
    run("domicile init")
    command = following(run("domicile tenant create acme"))
    assert command == "domicile policy new acme --preset eu-strict --output acme.yaml"
    check, activate = following(run(command)).split(" && ")
    assert load_document((tmp_path / "acme.yaml").read_text()).policy == "acme"
    run(check)
    assert following(run(activate)).startswith("domicile project create acme ")
    assert "exists already" in run(command, status=1).stderr, "nothing is overwritten"


def test_a_document_is_printed_where_no_file_is_named(run):
    printed = run("domicile policy new acme --preset health")
    assert load_document(printed.stdout).extends == "eu-strict"
    assert following(printed) is None


@pytest.mark.parametrize("line", ["domicile policy new acme --preset strict", "domicile tenant create acme --preset x"])
def test_a_preset_that_there_is_not_is_refused_with_those_there_are(run, line):
    run("domicile init")
    assert "name one of eu-strict, gdpr-standard, health, finance" in run(line, status=2).stderr
    assert json.loads(run("domicile tenant list --json").stdout) == []


def test_a_preset_that_the_operator_forbids_leaves_a_tenant_without_a_policy_and_says_so(run, tmp_path):
    run("domicile init")
    (tmp_path / "first.yaml").write_text("policy: a\nversion: 1\nresidency: {process_in: [FR], store_in: [FR]}\n")
    run("domicile tenant create first")
    run("domicile policy activate first first.yaml")
    strict = "policy: operator\nversion: 1\nresidency: {process_in: [FR], store_in: [FR]}\n"
    (tmp_path / "operator.yaml").write_text(strict)
    run("domicile policy activate operator operator.yaml")
    refused = run("domicile tenant create acme --preset gdpr-standard", status=1)
    assert "acme was created, without a policy" in refused.stderr
    assert json.loads(run("domicile policy list acme --json").stdout) == []


def test_another_folder_is_part_of_the_next_command(run):
    assert following(run("domicile init --data cell")).startswith("DOMICILE_DATA=cell domicile tenant create")
    named = run("domicile tenant create acme", DOMICILE_DATA="cell")
    assert following(named).startswith("domicile policy new")


def test_machines_get_json_alone(run):
    run("domicile init")
    made = run("domicile tenant create acme --preset eu-strict --json")
    assert json.loads(made.stdout)["id"] == "acme"
    assert made.stderr == ""
