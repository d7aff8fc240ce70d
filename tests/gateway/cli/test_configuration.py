"""What is in force, whence, and whether it can be used; of secrets never more than the path."""

import json

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from gateway.cli.configuration import config_app
from gateway.configuration.provenance import without_password
from gateway.installation.installation import Installation

app = Typer()
app.add_typer(config_app)
OIDC = "oidc: {issuer: 'https://id.example.eu', audience: api, client_secret_file: secret}\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Installation.create(tmp_path / "domicile-data", "demo")

    def invoke(*arguments):
        return CliRunner().invoke(app, arguments)

    return invoke


def sources(run, *arguments):
    return json.loads(run("config", "show", "--json", *arguments).stdout)["sources"]


def test_each_value_says_where_it_comes_from(run, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("node: gw-1\nlisten: {port: 9000}\nrequests: {max_attempts: 2}\n")
    monkeypatch.setenv("DOMICILE__REQUESTS__MAX_ATTEMPTS", "4")
    monkeypatch.setenv("DOMICILE__TELEMETRY", '{"sample_ratio": 0.5}')
    found = sources(run, "-c", "c.yaml")
    assert found["node"] == found["listen.port"] == "c.yaml"
    assert found["requests.max_attempts"] == "DOMICILE__REQUESTS__MAX_ATTEMPTS"
    assert found["telemetry.sample_ratio"] == "DOMICILE__TELEMETRY"
    assert found["listen.host"] == found["oidc.issuer"] == "default"
    lines = run("config", "show", "-c", "c.yaml").stdout.splitlines()
    assert any(line.split() == ["port:", "9000", "#", "c.yaml"] for line in lines)
    assert any(line.split() == ["max_attempts:", "4", "#", "DOMICILE__REQUESTS__MAX_ATTEMPTS"] for line in lines)
    assert yaml.safe_load("\n".join(lines))["listen"]["port"] == 9000


def test_a_password_in_the_environment_is_not_shown(run, monkeypatch):
    monkeypatch.setenv("DOMICILE_DATABASE_URL", "postgresql://dom:s3cret@db.example.eu:5432/domicile?password=s3cret")
    for form in ((), ("--json",)):
        shown = run("config", "show", *form).stdout
        assert "postgresql://dom:***@db.example.eu:5432/domicile" in shown
        assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@h:6379/0", "redis://:***@h:6379/0"),
        ("rediss://h/1", "rediss://h/1"),
        ("postgresql://u@h/x", "postgresql://u@h/x"),
        ("s3cret", "***"),
        ("postgresql://u:s3cret@[h/x", "***"),
    ],
)
def test_urls_lose_their_password(url, shown):
    assert without_password(url) == shown


def test_a_sound_configuration_can_be_used(run, tmp_path):
    assert run("config", "check").stdout == "the configuration can be used\n"
    assert json.loads(run("config", "check", "--json").stdout) == {"ok": True, "mistakes": []}


def test_files_that_are_named_are_looked_at(run, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text(OIDC)
    absent = run("config", "check", "-c", "c.yaml")
    assert (absent.exit_code, absent.stderr.count("error: ")) == (1, 1)
    assert "oidc.client_secret_file: secret cannot be read" in absent.stderr
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "secret").chmod(0o644)
    loose = run("config", "check", "-c", "c.yaml")
    assert "run: chmod 600 secret" in loose.stderr
    assert "s3cret" not in loose.output
    (tmp_path / "secret").chmod(0o600)
    assert run("config", "check", "-c", "c.yaml").exit_code == 0
    assert "s3cret" not in run("config", "show", "-c", "c.yaml").output


def test_a_folder_that_holds_nothing_is_said_with_what_makes_one(run):
    refused = run("config", "check", "-c", "absent.yaml")
    assert refused.exit_code == 2
    empty = CliRunner().invoke(app, ["config", "check"], env={"DOMICILE__DATA": "elsewhere"})
    assert empty.exit_code == 1
    assert "domicile init --data " in empty.stderr


def test_the_data_folder_of_a_shell_goes_before_the_files_as_for_up(run, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("data: elsewhere\n")
    assert sources(run, "-c", "c.yaml")["data"] == "c.yaml"
    assert sources(run, "-c", "c.yaml", "--data", "domicile-data")["data"] == "--data"
    monkeypatch.setenv("DOMICILE_DATA", "domicile-data")
    shown = json.loads(run("config", "show", "-c", "c.yaml", "--json").stdout)
    assert shown["sources"]["data"] == "DOMICILE_DATA"
    assert shown["settings"]["data"] == str(tmp_path / "domicile-data")
    assert run("config", "check", "-c", "c.yaml").exit_code == 0
