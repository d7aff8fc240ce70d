"""The commands that replace keys, as an operator types them."""

import json

import pytest
from typer.testing import CliRunner

from audit.cli.command_context import open_keys
from gateway.cli.app import _keys_and_signer_of, app
from gateway.installation.installation import Installation
from tests.fakes.vault import TOKEN, running_vault


@pytest.fixture
def data(tmp_path):
    installation = Installation.create(tmp_path / "data", "eu-1")
    installation.hasher()
    for tenant in ("acme", "globex"):
        installation.keys.wrap(tenant, bytes(32))
    return tmp_path / "data"


def run(data, *words, answer=None):
    return CliRunner().invoke(app, ["secrets", *words, "--data", str(data)], input=answer, terminal_width=200)


def said(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def events(data):
    done = CliRunner().invoke(app, ["audit", "show", "--data", str(data), "--json"])
    return [json.loads(line)["type"] for line in done.stdout.splitlines()]


def test_a_master_key_is_rotated_and_retired_on_record(data):
    assert "versions: 1; version 1 wraps" in run(data, "show").stdout
    assert said(run(data, "rotate", "--json")) == {"version": 2, "rewrapped": 2}
    assert "versions: 1, 2; version 2 wraps" in run(data, "show").stdout
    assert said(run(data, "rewrap", "--json")) == {"version": 2, "rewrapped": 0}
    assert "1 old versions are gone" in run(data, "retire", "--yes").stdout
    assert said(run(data, "show", "--json"))["master"]["versions"] == [2]
    assert [kind for kind in events(data) if kind.startswith("admin.")] == [
        "admin.keyring.rotated",
        "admin.keyring.rewrapped",
        "admin.keyring.retired",
    ]


def test_nothing_is_destroyed_without_a_yes(data):
    run(data, "rotate")
    assert run(data, "retire", answer="n\n").exit_code == 1
    assert said(run(data, "show", "--json"))["master"]["versions"] == [1, 2]


def test_status_says_what_still_waits_and_what_to_run(data):
    Installation.open(data).keys.rotate_master(1, lambda version: None)
    Installation.open(data).keys.begin_renewal("acme")
    shown = run(data, "show").stdout
    assert "still under file:v1: 2; run: domicile secrets rewrap" in shown
    assert "being replaced: the key of acme; run: domicile secrets renew acme" in shown
    done = run(data, "retire", "--yes")
    assert done.exit_code == 1
    assert "domicile secrets rewrap first" in done.stderr


def test_a_tenants_key_is_renewed(data):
    done = said(run(data, "renew", "acme", "--json"))
    assert done == {"tenant": "acme", "generation": 2, "rewrapped": 0}
    assert set(Installation.open(data).keys.state_of("acme").wrapped_under) == {2}
    assert run(data, "renew", "nobody").exit_code == 1


@pytest.mark.parametrize("damage", ["loose", "absent"])
def test_what_cannot_be_used_is_a_sentence(data, damage):
    root = data / "audit" / "keys" / "root.key"
    root.chmod(0o644) if damage == "loose" else root.unlink()
    done = run(data, "show")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output


def test_with_vault_configured_the_commands_of_audit_use_it_too(data, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with running_vault() as vault:
        monkeypatch.setenv("DOMICILE__SECRETS__PROVIDER", "vault")
        monkeypatch.setenv("DOMICILE__SECRETS__VAULT__ADDRESS", vault.url)
        monkeypatch.setenv("DOMICILE__SECRETS__VAULT__TOKEN_FILE", str(token))
        assert said(run(data, "rewrap", "--json"))["rewrapped"] == 3  # two tenants, and the pepper is sealed
        assert said(run(data, "retire", "--yes", "--json")) == {"retired": 1}
        before = open_keys.set(_keys_and_signer_of)
        try:
            keys, _ = open_keys.get()(data / "audit" / "log.db")
            assert keys.owners() == ["_system", "acme", "globex"]
        finally:
            open_keys.reset(before)
        monkeypatch.delenv("DOMICILE__SECRETS__PROVIDER")
        done = run(data, "show")
        assert done.exit_code == 1
        assert "secrets.provider" in done.stderr
