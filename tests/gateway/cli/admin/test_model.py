"""`domicile model` and the origins of a project, from a shell."""

import json

from gateway.installation.installation import Installation
from regions.identity.identity import BackendIdentity
from tests.gateway.cli.admin.test_tenant import acme, refused, run

__all__ = ["acme", "run"]
CREATE = ("model", "create", "acme", "support", "assistant")


def with_models(tmp_path, *models):
    installation = Installation.open(tmp_path / "data")
    database = installation.database()
    identity = BackendIdentity(installation.cell, "acme", "eu-fr-par", "acme-1")
    control = installation.control(database, actor="cli", on_event=lambda event: None)
    control.register_backend(identity, url="http://127.0.0.1:1", models=models)
    database.close()


def test_a_name_is_made_listed_changed_and_deleted(acme, tmp_path):
    with_models(tmp_path, "large", "small")
    options = ("--target", "large", "--target", "small", "--default", "temperature=0.25", "--default", "max_tokens=64")
    made = json.loads(acme(*CREATE, *options, "--json").stdout)
    assert made["targets"] == ["large", "small"] and made["defaults"] == {"temperature": 0.25, "max_tokens": 64}
    listed = acme("model", "list", "acme", "--project", "support")
    assert "assistant" in listed.output and "temperature=0.25" in listed.output
    notice = ("--deprecated", "2027-01-01", "--sunset", "2027-06-30")
    changed = acme("model", "update", "acme", "support", "assistant", "--target", "small", *notice, "--json")
    assert json.loads(changed.stdout)["sunset_at"] == "2027-06-30T00:00:00Z"
    assert json.loads(changed.stdout)["defaults"] == {}, "the whole is replaced"
    assert json.loads(acme("model", "show", "acme", "support", "assistant", "--json").stdout)["targets"] == ["small"]
    assert acme("model", "delete", "acme", "support", "assistant", answer="n\n").exit_code == 1
    assert acme("model", "delete", "acme", "support", "assistant", "--yes").exit_code == 0
    refused(acme("model", "show", "acme", "support", "assistant"), "no such name")
    assert json.loads(acme("model", "list", "acme", "--json").stdout) == []


def test_what_leads_nowhere_is_refused(acme, tmp_path):
    refused(acme(*CREATE, "--target", "large"), "register a backend first", 2)
    with_models(tmp_path, "large")
    refused(acme(*CREATE, "--target", "nothing"), "name one of large", 2)
    refused(acme("model", "create", "acme", "support", "two words", "--target", "large"), "choose another one", 2)
    for default in ("temperature", "temperature=warm", "temperature=9", "model=1", "=1"):
        assert acme(*CREATE, "--target", "large", "--default", default).exit_code == 2, default
    never = acme(*CREATE, "--target", "large", "--sunset", "soon")
    assert never.exit_code == 2 and "'--sunset': 'soon' is no day" in never.stderr
    refused(acme(*CREATE, "--target", "large", "--sunset", "2027-01-01"), "deprecated_at", 2)
    assert acme(*CREATE, "--target", "large").exit_code == 0
    refused(acme(*CREATE, "--target", "large"), "already")
    refused(acme("model", "update", "acme", "support", "other", "--target", "large"), "no such name")
    refused(acme("model", "create", "acme", "other", "x", "--target", "large"), "no project 'other'")


def test_origins_are_listed_replaced_and_taken_away(acme):
    shown = acme("project", "update", "acme", "support", "--origin", "https://app.example.org", "--json")
    assert json.loads(shown.stdout)["origins"] == ["https://app.example.org"]
    assert "https://app.example.org" in acme("project", "show", "acme", "support").output
    refused(acme("project", "update", "acme", "support", "--origin", "*"), "no origin of a web page", 2)
    refused(acme("project", "update", "acme", "support"), "--no-origins", 2)
    refused(acme("project", "update", "acme", "support", "--origin", "https://a.example", "--no-origins"), "both", 2)
    cleared = acme("project", "update", "acme", "support", "--no-origins", "--json")
    assert json.loads(cleared.stdout)["origins"] == []
