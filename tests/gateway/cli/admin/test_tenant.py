import json
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.database.errors import DatabaseUnavailable
from gateway.identity.keys import parse_key
from gateway.installation.installation import Installation

POLICY = """\
policy: acme-default
version: 1
residency: {process_in: EEA, store_in: [FR, DE]}
tests:
  - {name: a US backend is refused, given: {compute_country: US}, expect: deny}
"""
PROJECT = ("project", "create", "acme", "support", "--purpose", "customer support", "--legal-basis", "contract")


@pytest.fixture
def run(tmp_path):
    def invoke(*arguments, obj=None, answer=None):
        environment = {"DOMICILE_DATA": str(tmp_path / "data"), "COLUMNS": "200"}
        return CliRunner().invoke(app, arguments, obj=obj, env=environment, input=answer)

    return invoke


@pytest.fixture
def acme(run, tmp_path):
    Installation.create(tmp_path / "data")
    assert run("tenant", "create", "acme").exit_code == 0
    assert run(*PROJECT).exit_code == 0
    return run


def refused(result, words, status=1):
    assert result.exit_code == status
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_tenant_a_project_and_a_key_are_made_and_listed(acme):
    made = acme("key", "create", "acme", "support", "--label", "web shop")
    key = parse_key(made.stdout.strip())
    assert "shown this once" in made.stderr
    listed = acme("key", "list", "acme")
    assert key.id in listed.output
    assert "web shop" in listed.output
    assert key.token not in listed.output
    assert "support" in acme("project", "list", "acme").output
    assert "acme" in acme("tenant", "list").output


def test_json_is_for_programs(acme):
    made = json.loads(
        acme("key", "create", "acme", "support", "--model", "m", "--expires-in-days", "1", "--json").stdout
    )
    assert parse_key(made["key"]).id == made["id"]
    assert made["scopes"]["models"] == ["m"]
    (listed,) = json.loads(acme("key", "list", "acme", "--project", "support", "--json").stdout)
    assert "key" not in listed
    assert listed["expires_at"] == made["expires_at"]
    assert json.loads(acme("tenant", "show", "acme", "--json").stdout)["id"] == "acme"
    assert json.loads(acme("project", "show", "acme", "support", "--json").stdout)["legal_basis"] == "contract"


def test_a_policy_comes_in_force_and_is_printed_as_it_was_written(acme, tmp_path):
    file = tmp_path / "acme.yaml"
    file.write_text(POLICY, encoding="utf-8")
    assert "version 1 is in force for acme" in acme("policy", "activate", "acme", str(file)).output
    assert acme("policy", "show", "acme").output == POLICY
    file.write_text(POLICY.replace("version: 1", "version: 2"), encoding="utf-8")
    assert acme("policy", "activate", "acme", str(file)).exit_code == 0
    assert acme("policy", "show", "acme", "--number", "1").output == POLICY
    versions = json.loads(acme("policy", "list", "acme", "--json").stdout)
    assert [(v["number"], v["active"]) for v in versions] == [(1, False), (2, True)]


@pytest.mark.parametrize(
    "change, words",
    [
        (("EEA", "Europe"), "line 3: residency.process_in"),
        (("process_in", "proces_in"), "did you mean process_in?"),
        (("compute_country: US", "compute_country: FR"), "a US backend is refused"),
    ],
)
def test_a_policy_that_is_wrong_or_fails_its_own_test_is_refused(acme, tmp_path, change, words):
    file = tmp_path / "acme.yaml"
    file.write_text(POLICY.replace(*change), encoding="utf-8")
    refused(acme("policy", "activate", "acme", str(file)), words)
    refused(acme("policy", "show", "acme"), "no policy in force for acme")


def test_a_project_may_not_loosen_its_tenants_policy(acme, tmp_path):
    file, project = tmp_path / "acme.yaml", tmp_path / "support.yaml"
    file.write_text(POLICY, encoding="utf-8")
    acme("policy", "activate", "acme", str(file))
    project.write_text("policy: support\nversion: 1\nresidency: {store_in: [US]}\n", encoding="utf-8")
    refused(acme("policy", "activate", "acme", str(project), "--project", "support"), "residency.store_in")
    project.write_text("policy: support\nversion: 1\nresidency: {store_in: [FR]}\n", encoding="utf-8")
    assert acme("policy", "activate", "acme", str(project), "--project", "support").exit_code == 0


def test_revoking_asks_first(acme):
    made = json.loads(acme("key", "create", "acme", "support", "--json").stdout)
    assert acme("key", "revoke", "acme", made["id"], answer="n\n").exit_code == 1
    assert json.loads(acme("key", "show", "acme", made["id"], "--json").stdout)["revoked_at"] is None
    assert acme("key", "revoke", "acme", made["id"], answer="y\n").exit_code == 0
    assert json.loads(acme("key", "show", "acme", made["id"], "--json").stdout)["revoked_at"]
    assert acme("project", "revoke", "acme", "support", "--yes").exit_code == 0
    assert acme("tenant", "revoke", "acme", "--yes").exit_code == 0


@pytest.mark.parametrize(
    "words", [("tenant", "revoke", "nope"), ("project", "revoke", "acme", "nope"), ("key", "revoke", "acme", "NOPE")]
)
def test_nobody_is_asked_about_what_is_not_there(acme, words):
    refused(result := acme(*words, answer="y\n"), "no " + words[0])
    assert "[y/N]" not in result.output


def test_each_change_is_recorded_before_it_is_made_or_is_not_made(acme):
    events = []

    @contextmanager
    def record(installation):
        def on_event(event):
            events.append((installation.cell, event.action, event.actor))
            if event.action == "key.created":
                raise DatabaseUnavailable("the log is full")

        yield on_event

    assert acme("tenant", "create", "globex", obj=record).exit_code == 0
    refused(acme("key", "create", "acme", "support", obj=record), "the log is full")
    assert events == [("local", "tenant.created", "cli"), ("local", "key.created", "cli")]
    assert json.loads(acme("key", "list", "acme", "--json").stdout) == []


def test_what_an_operator_did_wrong_is_a_sentence(acme):
    refused(acme("tenant", "create", "acme"), "tenant 'acme' exists already")
    refused(acme("tenant", "create", "Acme"), "is not a name")
    refused(acme("tenant", "show", "globex"), "there is no tenant 'globex'")
    refused(acme("key", "create", "acme", "nope"), "no project 'nope'")
    refused(acme("key", "revoke", "acme", "00000000", "-y"), "no key '00000000'")
    refused(acme(*PROJECT[:-1], "because"), "legal basis 'because' is not one of consent, contract", status=2)
    refused(acme("policy", "activate", "acme", "/none.yaml"), "cannot be read")
    refused(acme("tenant", "create", "globex", "--cell", "other"), "belongs to cell 'local', not 'other'")


def test_reading_makes_no_data_folder(run, tmp_path):
    refused(run("tenant", "list"), "holds no installation; make one with: domicile init --data ")
    assert not (tmp_path / "data").exists()


def test_every_group_and_command_has_help(run):
    for group, commands in {
        "tenant": "create list show revoke",
        "project": "create list show revoke",
        "key": "create list show revoke",
        "policy": "activate list show",
    }.items():
        assert run(group, "--help").exit_code == 0
        for command in commands.split():
            shown = run(group, command, "--help")
            assert shown.exit_code == 0
            assert "--json" in shown.output
            assert command in ("list", "show") or group in ("tenant", "project") or "Example:" in shown.output


def test_a_rotated_key_is_printed_once_and_the_old_one_names_its_successor(acme):
    old = parse_key(acme("key", "create", "acme", "support").stdout.strip())
    rotated = acme("key", "rotate", "acme", old.id, "--grace-hours", "1")
    assert rotated.exit_code == 0
    new = parse_key(rotated.stdout.strip())
    shown = json.loads(acme("key", "show", "acme", old.id, "--json").stdout)
    assert shown["replaced_by"] == new.id
    assert shown["expires_at"] is not None
    refused(acme("key", "rotate", "acme", old.id), "rotated already")


def test_a_key_is_bound_to_networks_and_regions(acme):
    made = acme(
        "key",
        "create",
        "acme",
        "support",
        "--network",
        "10.0.0.0/8",
        "--network",
        "::1/128",
        "--region",
        "eu-fr-par",
        "--json",
    )
    scopes = json.loads(made.stdout)["scopes"]
    assert scopes["networks"] == ["10.0.0.0/8", "::1/128"]
    assert scopes["regions"] == ["eu-fr-par"]
    assert scopes["models"] is None


def test_what_is_no_network_is_refused_in_a_sentence(acme):
    refused(acme("key", "create", "acme", "support", "--network", "office"), "--network 'office'", status=2)


def test_the_old_pepper_goes_only_when_no_living_key_needs_it(acme):
    key = parse_key(acme("key", "create", "acme", "support").stdout.strip())
    for _ in range(2):
        begun = acme("key", "rekey")
        assert "generation 2" in begun.output
        assert "under the old one: 1" in begun.output
    refused(acme("key", "rekey", "--finish", "--yes"), "1 keys")
    assert acme("key", "revoke", "acme", key.id, "--yes").exit_code == 0
    for _ in range(2):
        assert "generation 2" in acme("key", "rekey", "--finish", "--yes").output
