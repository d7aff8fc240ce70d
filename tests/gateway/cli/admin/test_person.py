import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from gateway.cli.admin import tenant as control_cli
from gateway.cli.admin.person import person_app
from gateway.identity.keys import parse_key
from gateway.installation.installation import Installation

app = Typer()
for group in (control_cli.tenant_app, person_app):
    app.add_typer(group)


@pytest.fixture
def run(tmp_path):
    def invoke(*arguments, answer=None):
        environment = {"DOMICILE_DATA": str(tmp_path / "data"), "COLUMNS": "200"}
        return CliRunner().invoke(app, arguments, env=environment, input=answer)

    Installation.create(tmp_path / "data")
    assert invoke("tenant", "create", "acme").exit_code == 0
    return invoke


@pytest.fixture
def ada(run):
    made = run("person", "create", "acme", "Ada", "--role", "dpo", "--json")
    return json.loads(made.stdout)["id"]


def test_a_person_is_made_listed_changed_and_revoked(run, ada):
    assert "Ada" in run("person", "list", "acme").output
    assert "Ada" not in run("person", "list").output
    changed = run("person", "update", "acme", ada, "--role", "auditor", "--role", "billing", "--json")
    assert json.loads(changed.stdout)["roles"] == ["auditor", "billing"]
    revoked = run("person", "revoke", "acme", ada, "--yes", "--json")
    assert json.loads(revoked.stdout)["revoked_at"] is not None


def test_a_token_is_printed_once_and_can_be_revoked(run, ada):
    made = run("person", "create-token", "acme", ada, "--label", "laptop")
    token = parse_key(made.stdout.strip(), "admin")
    listed = run("person", "list-tokens", "acme", ada).output
    assert token.id in listed
    assert token.token not in listed
    revoked = run("person", "revoke-token", "acme", ada, token.id, "--yes", "--json")
    assert json.loads(revoked.stdout)["revoked_at"] is not None


def test_a_bootstrap_token_is_printed_while_there_is_no_operator(run):
    assert parse_key(run("person", "bootstrap").stdout.strip(), "admin")
    assert run("person", "create", "operator", "Root", "--role", "operator").exit_code == 0
    refused = run("person", "bootstrap")
    assert refused.exit_code == 1
    assert "operator already" in refused.stderr


@pytest.mark.parametrize("role", ["operator", "root"])
def test_a_role_that_a_tenants_person_cannot_have_is_refused_in_a_sentence(run, role):
    refused = run("person", "create", "acme", "Eve", "--role", role)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: roles are")


@pytest.mark.parametrize("command", [("revoke",), ("revoke-token", "00000000")])
def test_nothing_is_revoked_without_a_yes(run, ada, command):
    name, *more = command
    assert run("person", name, "acme", ada, *more, answer="n\n").exit_code == 1
    assert json.loads(run("person", "list", "acme", "--json").stdout)[0]["revoked_at"] is None


def test_a_sign_in_token_for_the_console_is_printed_once_and_is_no_access_token(run):
    ada = run("person", "create", "operator", "Ada", "--role", "operator", "--json")
    person = json.loads(ada.stdout)["id"]
    made = run("person", "create-token", "operator", person, "--console", "--json")
    record = json.loads(made.stdout)
    assert record["token"].startswith("dom_once_") and record["label"] == "console sign-in"
    assert "dom_once_" not in run("person", "list-tokens", "operator", person).stdout
    plain = run("person", "create-token", "operator", person, "--console")
    assert plain.stdout.strip().startswith("dom_once_") and "/console" in plain.stderr
