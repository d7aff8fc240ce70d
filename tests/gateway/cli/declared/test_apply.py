"""``domicile apply``: a folder of YAML compared with an installation and put in force, after which a plan is empty."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text
from typer.testing import CliRunner

from gateway.cli.app import _recorded_admin, app
from gateway.cli.declared import changes as changes_module
from gateway.cli.declared.documents import Document
from gateway.cli.terminal.shell import opened_database
from gateway.database.leases import Lease
from tests.fakes.lab import Lab

POLICY = "policy: acme\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
WANTED = {
    "tenants": {
        "acme": {
            "display_name": "Acme GmbH",
            "policy": "policies/acme.yaml",
            "limits": {"requests_per_minute": 600, "eur_per_month": 500},
            "projects": {
                "support": {
                    "purpose": "customer support", "legal_basis": "contract", "origins": ["https://app.example.org"],
                    "limits": {"tokens_per_minute": 1000}, "keys": {"web": {}, "batch": {"expires_in_days": 9}},
                },
                "search": {"purpose": "search", "legal_basis": "legitimate_interests", "ai_system_id": "s-1"},
            },
        },
        "globex": {},
    }
}  # fmt: skip


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DOMICILE_DATA", str(tmp_path / "data"))
    assert run("init", "--cell", "eu-1").exit_code == 0
    return tmp_path / "data"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "wanted"
    (made / "policies").mkdir(parents=True)
    (made / "policies" / "acme.yaml").write_text(POLICY)
    write(made, WANTED)
    return made


def write(folder, wanted, name="all.yaml"):
    (folder / name).write_text(yaml.safe_dump(wanted, sort_keys=False))


def changed(folder, change):
    wanted = json.loads(json.dumps(WANTED))
    change(wanted["tenants"])
    write(folder, wanted)


def run(*words):
    return CliRunner().invoke(app, words, obj=_recorded_admin)


def plan(folder, *more):
    said = run("apply", "-f", str(folder), "--plan", *more)
    return said.exit_code, said.stdout.splitlines()


def test_a_plan_says_what_would_be_made_and_changes_nothing(data, folder):
    for _ in range(2):
        status, lines = plan(folder)
        assert status == 2
        assert lines == [
            "+ tenant acme",
            "+ policy of acme: policies/acme.yaml",
            "~ limits of acme: rpm none -> 600, eur_per_month none -> 500",
            "+ project acme/support",
            "~ origins of acme/support: https://app.example.org",
            "~ limits of acme/support: tpm none -> 1000",
            "+ key 'web' of acme/support",
            "+ key 'batch' of acme/support",
            "+ project acme/search",
            "+ tenant globex",
        ]
    assert json.loads(run("tenant", "list", "--json").stdout) == []


def test_what_is_applied_is_there_on_record_and_the_next_plan_is_empty(data, folder):
    said = run("apply", "-f", str(folder))
    assert said.exit_code == 0, said.output
    secrets = [line for line in said.stdout.splitlines() if "dom_live_" in line]
    assert [line.split(":")[0] for line in secrets] == ["+ key 'web' of acme/support", "+ key 'batch' of acme/support"]
    assert plan(folder) == (0, ["nothing to change"])
    again = run("apply", "-f", str(folder), "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, [])
    types = [event["type"] for event in Lab(data, None).events()]
    assert types == [
        "admin.tenant.created", "admin.policy.activated", "admin.limits.changed", "admin.project.created",
        "admin.origins.changed", "admin.limits.changed", "admin.key.created", "admin.key.created",
        "admin.project.created",
    ]  # fmt: skip


def test_drift_is_shown_and_mended(data, folder):
    run("apply", "-f", str(folder))
    run("limit", "update", "acme", "--rpm", "7")
    run("project", "update", "acme", "support", "--no-origins")
    assert plan(folder) == (2, ["~ limits of acme: rpm 7 -> 600", "~ origins of acme/support: https://app.example.org"])
    assert run("apply", "-f", str(folder)).exit_code == 0
    assert plan(folder) == (0, ["nothing to change"])


def test_another_policy_takes_the_place_of_the_one_in_force_and_a_bad_one_does_not(data, folder):
    run("apply", "-f", str(folder))
    (folder / "policies" / "acme.yaml").write_text(POLICY.replace("version: 1", "version: 2"))
    assert plan(folder) == (2, ["~ policy of acme: policies/acme.yaml, in place of version 1"])
    (folder / "policies" / "acme.yaml").write_text("policy: acme\nversion: 3\n")
    said = run("apply", "-f", str(folder))
    assert said.exit_code == 1 and "residency.process_in" in said.stderr
    assert json.loads(run("policy", "show", "acme", "--json").stdout)["number"] == 1


def test_of_runs_at_once_one_goes_on_and_nothing_is_made_twice(data, folder):
    command = [sys.executable, "-c", "from gateway.cli.app import main; main()", "apply", "-f", str(folder)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [(one.communicate(timeout=300), one.returncode) for one in runs]
    assert 0 in {status for _, status in said}
    for (_, error), status in said:
        assert status == 0 or "another `domicile apply`" in error, error
    assert plan(folder) == (0, ["nothing to change"])
    assert len(json.loads(run("key", "list", "acme", "--json").stdout)) == 2
    assert [each["number"] for each in json.loads(run("policy", "list", "acme", "--json").stdout)] == [1]


def test_a_run_beside_another_changes_nothing_and_goes_on_once_that_has_ended(data, folder, monkeypatch):
    with opened_database(data) as (installation, database):
        other = Lease(database, f"apply:{installation.cell}", "other", ttl_s=60)
        assert other.take() is not None
        said = run("apply", "-f", str(folder))
        assert said.exit_code == 1 and "another `domicile apply` is changing this installation; wait" in said.stderr
        assert plan(folder)[0] == 2, "a plan needs no turn"
        other.release()
    assert run("apply", "-f", str(folder)).exit_code == 0


def test_a_run_that_another_came_between_stops_before_its_next_change(data, folder, monkeypatch):
    made = changes_module.changes

    def overtaken(*given, **more):
        found = list(made(*given, **more))
        with opened_database(data) as (installation, database):  # its lease is over, and another run has one
            with database.write() as session:
                session.connection().execute(text("UPDATE lease SET until = 0"))
            assert Lease(database, f"apply:{installation.cell}", "other", ttl_s=0).take() is not None
        return found

    monkeypatch.setattr(changes_module, "changes", overtaken)
    said = run("apply", "-f", str(folder))
    assert said.exit_code == 1 and "run this one again" in said.stderr
    monkeypatch.undo()
    monkeypatch.setenv("DOMICILE_DATA", str(data))
    assert plan(folder)[1][0] == "+ tenant acme"


def test_nothing_is_deleted_without_being_asked_for(data, folder):
    run("apply", "-f", str(folder))
    changed(folder, lambda tenants: (tenants["acme"]["projects"].pop("search"), tenants.pop("globex"),
                                     tenants["acme"]["projects"]["support"]["keys"].pop("web")))  # fmt: skip
    assert plan(folder) == (0, ["nothing to change"])
    status, lines = plan(folder, "--prune")
    assert status == 2 and lines[1] == "- project acme/search, with its keys"
    assert lines[0].startswith("- key ") and lines[0].endswith("('web') of acme/support")
    refused = run("apply", "-f", str(folder), "--prune")
    assert refused.exit_code == 1, "it asks, and nobody answers"
    assert plan(folder, "--prune")[0] == 2
    assert run("apply", "-f", str(folder), "--prune", "--yes").exit_code == 0
    assert plan(folder, "--prune") == (0, ["nothing to change"])
    tenants = {each["id"]: each["revoked_at"] for each in json.loads(run("tenant", "list", "--json").stdout)}
    assert tenants == {"acme": None, "globex": None}, "tenants are never revoked by it"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t["acme"]["projects"]["support"].update(purpose="other"), "purpose stays 'customer support'"),
        (lambda t: t["acme"].update(display_name="Other"), "display_name stays 'Acme GmbH'"),
    ],
)
def test_what_cannot_be_changed_is_named_and_ends_with_1(data, folder, change, says):
    run("apply", "-f", str(folder))
    changed(folder, change)
    status, (line,) = plan(folder)
    assert status == 2 and line.startswith("! ") and says in line
    said = run("apply", "-f", str(folder))
    assert said.exit_code == 1 and "marked with !" in said.stderr


def test_what_was_revoked_is_not_made_again(data, folder):
    run("apply", "-f", str(folder))
    run("project", "revoke", "acme", "search", "--yes")
    run("tenant", "revoke", "globex", "--yes")
    assert plan(folder) == (
        2,
        [
            "! project acme/search is revoked for good; take it out, or use another name",
            "! tenant globex is revoked for good; take it out, or use another name",
        ],
    )


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"all.yaml": "tenants: {acme: {polcy: x}}"}, "tenants.acme.polcy"),
        ({"all.yaml": "tenants: {Acme: {}}"}, "tenants.Acme"),
        ({"all.yaml": "tenants: [acme"}, "is not YAML"),
        ({"all.yaml": "- acme"}, "top level"),
        ({"all.yaml": "tenants: {acme: {limits: {requests_per_minute: -5}}}"}, "requests_per_minute"),
        ({"all.yaml": "tenants: {acme: {policy: policies/none.yaml}}"}, "cannot be read"),
        ({"all.yaml": "tenants: {acme: {policy: ../secret.yaml}}"}, "outside the folder"),
        ({"all.yaml": "tenants: {acme: {}}", "more.yaml": "tenants: {acme: {}}"}, "is in another file too"),
        ({"all.yaml": None}, "there is no YAML file"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_folder_that_makes_no_sense_is_refused_before_anything_is_done(data, folder, files, says):
    (folder.parent / "secret.yaml").write_text(POLICY)
    for name, written in files.items():
        if written is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(written)
    said = run("apply", "-f", str(folder))
    assert said.exit_code == 1 and says in said.stderr
    assert json.loads(run("tenant", "list", "--json").stdout) == []


def git(folder, *words):
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(folder.parent)}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def repository(folder, tmp_path):
    """The folder under git, whose commits are signed by a key that git is told of."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    git(folder, "init", "-q")
    for name, value in {
        "user.name": "Ada", "user.email": "ada@example.org", "gpg.format": "ssh", "user.signingkey": str(key),
        "gpg.ssh.allowedSignersFile": str(allowed),
    }.items():  # fmt: skip
        git(folder, "config", name, value)
    git(folder, "add", "-A")
    return folder


def test_a_signed_commit_is_applied(data, repository):
    git(repository, "commit", "-q", "-S", "-m", "signed")
    assert plan(repository, "--require-signed")[0] == 2
    assert run("apply", "-f", str(repository), "--require-signed").exit_code == 0


def test_an_unsigned_one_a_strangers_and_a_changed_folder_are_not(data, repository, tmp_path):
    git(repository, "commit", "-q", "-m", "unsigned")
    said = run("apply", "-f", str(repository), "--require-signed")
    assert said.exit_code == 1 and "is not signed by somebody whom git knows" in said.stderr
    git(repository, "commit", "-q", "--amend", "-S", "-m", "signed")
    (repository / "new.yaml").write_text("tenants: {evil: {}}")
    said = run("apply", "-f", str(repository), "--require-signed")
    assert said.exit_code == 1 and "is not as its signed commit has it" in said.stderr
    (repository / "new.yaml").unlink()
    (tmp_path / "allowed").write_text("")
    assert run("apply", "-f", str(repository), "--require-signed").exit_code == 1
    assert json.loads(run("tenant", "list", "--json").stdout) == []


def test_a_folder_without_git_has_no_signature(data, folder):
    assert run("apply", "-f", str(folder), "--require-signed").exit_code == 1


def test_the_published_schema_is_that_of_the_code():
    published = Path(__file__).parents[4] / "docs" / "apply.schema.json"
    assert json.loads(published.read_text()) == Document.model_json_schema()
