"""Every weak default has a name, shows when it is in force and only then, and is told once."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.up import run_gateway
from gateway.configuration.settings import Settings, load_settings
from gateway.installation.doctor import DoctorFacts, configuration_warnings, log_warnings, observe
from gateway.installation.installation import Installation
from gateway.store.reports.posture import Posture, posture
from tests.fakes.lab import OPEN_POLICY, POLICY, lab, open_control
from tests.fakes.vault import TOKEN

SOUND = DoctorFacts(witnessed=True)
VAULT = {"provider": "vault", "vault": {"address": "https://v.example", "token_file": "/t"}}
TLS = {"cert_file": "/c.pem", "key_file": "/k.pem"}
OTLP = "http://10.0.0.9:4318/v1/traces"
TRACED = {"otlp_endpoint": "https://otel.example", "sample_ratio": 0.1}


SINKS = {"record": "FR", "telemetry": "FR"}


def sound(**changed):
    made = load_settings(**{"secrets": VAULT, "sinks": SINKS, **changed})
    return made.model_copy(update={"oidc": SimpleNamespace(issuer="https://idp.example")})


def codes(settings, state=SOUND):
    return [one.code for one in configuration_warnings(settings, state)]


def test_an_installation_without_weak_defaults_has_none():
    assert codes(sound()) == []


@pytest.mark.parametrize(
    ("code", "weak", "mended"),
    [
        (
            "plain_behind_proxy",
            {"listen": {"host": "0.0.0.0", "tls_ended_by_proxy": True}},
            {"listen": {"host": "0.0.0.0", "tls_ended_by_proxy": True, **TLS}},
        ),
        ("plain_behind_proxy", {"listen": {"host": "::", "tls_ended_by_proxy": True}}, {"listen": {"host": "::1"}}),
        (
            "open_metrics",
            {"listen": {"operations_from": ["0.0.0.0/0"]}},
            {"listen": {"operations_from": ["10.0.0.0/8", "127.0.0.0/8"]}},
        ),
        ("open_metrics", {"listen": {"operations_from": ["8.8.8.0/24"]}}, {"listen": {"operations_from": []}}),
        ("master_key_beside_data", {"secrets": {}}, {"secrets": VAULT}),
        ("no_reserve", {"audit": {"reserve_bytes": 0}}, {"audit": {"reserve_bytes": 1024}}),
        (
            "telemetry_plain",
            {"telemetry": {"otlp_endpoint": OTLP, "sample_ratio": 0.1}},
            {"telemetry": {"otlp_endpoint": OTLP.replace("10.0.0.9", "127.0.0.1"), "sample_ratio": 0.1}},
        ),
        (
            "every_call_traced",
            {"telemetry": {"otlp_endpoint": "https://otel.example"}},
            {"telemetry": {"otlp_endpoint": "https://otel.example", "sample_ratio": 0.5}},
        ),
        ("every_call_traced", {"telemetry": {"otlp_endpoint": "https://otel.example"}}, {"telemetry": {}}),
        ("record_country_unknown", {"sinks": {"telemetry": "FR"}}, {"sinks": SINKS}),
        (
            "spans_stay_here",
            {"telemetry": TRACED, "sinks": {"record": "FR"}},
            {"telemetry": TRACED, "sinks": SINKS},
        ),
    ],
)
def test_a_setting_is_named_while_it_is_weak_and_no_longer(code, weak, mended):
    assert codes(sound(**weak)) == [code]
    assert codes(sound(**mended)) == []


@pytest.mark.parametrize(
    ("code", "weak", "mended"),
    [
        ("no_witness", {"witnessed": False}, {"witnessed": True}),
        ("signing_key_here", {"signer_here": True}, {"signer_here": False}),
        ("own_authority", {"authority_here": True}, {"authority_here": False}),
        ("secrets_in_clear", {"secrets_in_clear": ("secrets/pepper",)}, {}),
        ("core_dumps", {"core_dumps": True}, {}),
        ("runs_as_root", {"root": True}, {}),
        ("content_kept", {"posture": Posture(keep_content=("acme",))}, {}),
        ("nothing_masked", {"posture": Posture(mask_nothing=("acme",))}, {}),
        ("managed_unredacted", {"posture": Posture(unredacted=("acme",))}, {}),
        ("no_limits", {"posture": Posture(unlimited=("acme",))}, {}),
        ("limits_of_one_process", {"nodes": ("a", "b")}, {"nodes": ("a",)}),
        ("limits_of_one_process", {"nodes": ("a-1a", "b-1a")}, {"nodes": ("a-1a", "a-2a", "a-2b", "a-12a")}),
        ("limits_of_one_process", {"nodes": ("a", "b")}, {"nodes": ("a", "b"), "redis_url": "rediss://r.example"}),
        (
            "limits_of_one_process",
            {"nodes": ("a", "b")},
            {"nodes": ("a", "b"), "database_url": "postgresql://127.0.0.1/d"},
        ),
        (
            "database_unverified",
            {"database_url": "postgresql://u:p@db.example/d"},
            {"database_url": "postgresql://u:p@db.example/d?sslmode=verify-full"},
        ),
        (
            "database_unverified",
            {"database_url": "postgresql://u:p@db.example/d?sslmode=require"},
            {"database_url": "postgresql:///d?host=/run/postgresql"},
        ),
        ("redis_plain", {"redis_url": "redis://10.0.0.5/0"}, {"redis_url": "redis://localhost/0"}),
        ("redis_plain", {"redis_url": "redis://10.0.0.5/0"}, {"redis_url": "unix:///run/redis.sock"}),
    ],
)
def test_a_state_is_named_while_it_is_weak_and_no_longer(code, weak, mended):
    assert codes(sound(), replace(SOUND, **weak)) == [code]
    assert codes(sound(), replace(SOUND, **mended)) == []


def test_without_an_identity_provider_that_is_named():
    assert codes(load_settings(secrets=VAULT, sinks=SINKS)) == ["no_identity_provider"]


def test_a_sentence_names_a_few_tenants_and_counts_the_rest_and_no_secret():
    state = replace(
        SOUND,
        posture=Posture(keep_content=("a", "b", "c", "d", "e")),
        database_url="postgresql://u:hunter2@db.example/d",
        redis_url="redis://:hunter2@10.0.0.1",
    )
    found = {one.code: one.says for one in configuration_warnings(sound(), state)}
    assert found["content_kept"] == "prompts and answers are kept for a, b, c and 2 more"
    assert "hunter2" not in json.dumps(found)


def test_every_one_is_documented_and_no_other():
    source = Path("gateway/installation/doctor.py").read_text()
    named = set(re.findall(r'ConfigurationWarning\(\s*"([a-z_]+)"', source))
    told = Path("docs/warnings.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", told, re.MULTILINE)) == named
    assert len(named) > 15


WITNESS = (
    "weak default no_witness: no outside witness has cosigned the record: with its key, history can be rewritten unseen"
    "; let a second party run domicile audit witness serve, and submit to it"
)


def test_each_is_one_line_in_the_log_with_its_code_first(caplog):
    log_warnings(configuration_warnings(Settings(), DoctorFacts()))
    lines = [record.getMessage() for record in caplog.records]
    found = configuration_warnings(Settings(), DoctorFacts())
    assert lines == [f"weak default {one.code}: {one.says}; {one.fix}" for one in found]
    assert WITNESS in lines
    assert all("\n" not in line and one.says and one.fix for line, one in zip(lines, found, strict=True))
    assert len(lines) == len(set(lines))


# --- what is seen ----------------------------------------------------------------------------------------------------


def test_the_posture_is_that_of_living_tenants_policies(tmp_path):
    control = open_control(tmp_path / "data")
    limits = "\nlimits: {rpm: 60}\n"
    policies = {
        "careful": POLICY.replace("'encrypted, 30d'", "none") + limits,
        "keeper": POLICY.replace("content: none", "content: 'encrypted, 30d'") + limits,
        "bare": OPEN_POLICY + "redaction: {input: {email: tag}}" + limits,
        "endless": POLICY,
        "gone": OPEN_POLICY,
        "trusting": POLICY + "backend: {managed: unredacted}" + limits,
        "wary": POLICY + "backend: {managed: redacted}" + limits,
        "none": None,
    }
    for name, policy in policies.items():
        control.create_tenant(name)
        if policy:
            control.activate_policy(name, policy)
    control.revoke_tenant("gone")
    database = Installation.open(tmp_path / "data").database()
    assert posture(database) == Posture(("keeper",), ("bare",), ("endless",), ("trusting",))
    database.close()


async def test_a_gateway_sees_its_own_state(tmp_path, monkeypatch):
    monkeypatch.delenv("DOMICILE_DATABASE_URL", raising=False)
    monkeypatch.setenv("DOMICILE_REDIS_URL", "")
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", OPEN_POLICY)) as made:
        found = {one.code for one in made.gateway.configuration_warnings}
        assert {"master_key_beside_data", "signing_key_here", "no_witness", "nothing_masked", "no_limits"} <= found
        assert not {"content_kept", "limits_of_one_process", "own_authority", "secrets_in_clear"} & found
        (made.data / "audit" / "witnessed").mkdir()
        (made.data / "audit" / "witnessed" / "cell.note").write_text("signed")
        installation = Installation.open(made.data)
        installation.authority()
        database = installation.database()
        state = observe(load_settings(data=made.data), installation, database)
        database.close()
        assert (state.witnessed, state.authority_here, state.nodes) == (True, True, ("lab",))


# --- who is told -----------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    control = open_control(tmp_path / "data")
    control.create_tenant("acme")
    control.activate_policy("acme", OPEN_POLICY)
    return tmp_path / "data"


def run(*words, **environment):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env=environment, terminal_width=200)


def test_the_doctor_names_each_with_what_to_do(data):
    done = run("--data", data)
    assert done.exit_code == 0, done.output
    assert "nothing_masked: personal data passes to models unmasked for acme.\n    give their policy" in done.stdout
    found = json.loads(run("--data", data, "--json").stdout)
    assert {"code", "says", "fix"} == set(found[0])
    assert f"{len(found)} weak defaults are in force." in done.stdout
    assert run("--data", data, "--strict").exit_code == 1


def test_the_doctor_judges_the_file_that_the_gateway_is_given(data, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"data: {data}\naudit: {{reserve_bytes: 0}}\n")
    assert "no_reserve" in run("-c", config).stdout
    assert "no_reserve" in run(DOMICILE_CONFIG=str(config)).stdout
    config.write_text("listen: {port: x}\n")
    assert run("-c", config).exit_code == 2
    assert run("--data", tmp_path / "none").exit_code == 1


async def test_up_tells_each_once_and_starts(data, caplog, monkeypatch):
    class Now:
        def __init__(self, *numbers):
            pass

        async def stop(self, reload):
            return signal.SIGINT

    monkeypatch.setattr("gateway.cli.up.Signals", Now)
    monkeypatch.setattr("gateway.cli.up.logging.basicConfig", lambda **_: None)
    settings = load_settings(data=data, node="gw", listen={"port": 0}, audit={"reserve_bytes": 0})
    assert await run_gateway(settings) == 0
    told = [record.getMessage() for record in caplog.records if record.name == "domicile.weak"]
    assert sum("weak default no_reserve" in line for line in told) == 1
    assert len(told) == len(set(told)) > 4
    assert TOKEN not in caplog.text
