"""A backend on a host that no launcher reaches: enrolled by a command, started as its systemd unit starts it."""

import asyncio
import json
import os
import shlex
import stat
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.installation.enrolment import ServedModel, environment
from gateway.installation.installation import InstallationError
from regions.identity.identity import BackendIdentity
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import OPEN_POLICY, chat, lab, open_control
from tests.fakes.ports import free_port

TREE = Path(__file__).parents[3]
UNIT = TREE / "deploy" / "systemd" / "domicile-backend@.service"
OURS = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
ENROL = ("backend", "enrol", "acme", "acme-1", "--region", "eu-fr-par", "--model", "small")


@pytest.fixture
def run(tmp_path):
    open_control(tmp_path / "data").create_tenant("acme")

    def command(*arguments, status=0):
        done = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "data")])
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else done.output

    return command


def leaf(folder):
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


def settings_of(folder):
    return dict(line.split("=", 1) for line in (folder / "backend.env").read_text().splitlines())


def units_command(folder):
    """ExecStart as systemd would read it, for a folder and a device that are here."""
    joined = UNIT.read_text().replace("\\\n", " ")
    (line,) = (line.removeprefix("ExecStart=") for line in joined.splitlines() if line.startswith("ExecStart="))
    line = line.replace("/etc/domicile/backends/%i", str(folder)).replace("%i", OURS.backend)
    for name, value in settings_of(folder).items():
        line = line.replace(f"${{{name}}}", value)
    words = shlex.split(line.replace("--device cuda", "--device cpu").replace("0.0.0.0", "127.0.0.1"))
    return [sys.executable, "-m", "gateway", *words[1:], "--threads", "1"]


@asynccontextmanager
async def started(folder):
    process = await asyncio.create_subprocess_exec(
        *units_command(folder),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TREE)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120):
            while b'"event":"ready"' not in (await process.stdout.readline()).replace(b" ", b""):
                assert process.returncode is None
        yield process
    finally:
        process.terminate()
        await process.wait()


async def test_started_as_the_unit_starts_it_it_answers_its_tenant_with_both_locks(tmp_path):
    write_folder(tmp_path / "weights", tiny_model())

    def set_up(made):
        made.tenant("acme", OPEN_POLICY)

    async with lab(tmp_path, set_up=set_up, backends={}) as made:
        line = [*ENROL, "--url", f"https://127.0.0.1:{free_port()}", "--weights", str(tmp_path / "weights")]
        line += ["--output", str(tmp_path / "acme-1"), "--data", str(made.data)]
        done = await asyncio.to_thread(CliRunner().invoke, app, line)
        assert done.exit_code == 0, done.output
        async with started(tmp_path / "acme-1"):
            async with asyncio.timeout(20):
                while (said := await made.post(chat("hi", max_tokens=3))).status != 200:
                    await asyncio.sleep(0.2)
        assert said.headers["x-domicile-backend"] == "acme-1"
        connected = next(event for event in made.events() if event["type"] == "routing.connected")
        assert connected["peer_uri"] == OURS.uri
        assert "--request-key" in units_command(tmp_path / "acme-1")


def test_the_folder_is_its_owners_alone_and_the_leaf_names_the_backend_for_so_many_days(run, tmp_path):
    made = json.loads(
        run(*ENROL, "--url", "https://gpu-1.lan:8443", "--days", "30", "--output", str(tmp_path / "o"), "--json")
    )
    assert (made["id"], made["kind"], made["url"]) == ("acme-1", "domicile", "https://gpu-1.lan:8443")
    folder = tmp_path / "o"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    names = leaf(folder).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [OURS.uri]
    left = leaf(folder).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left < timedelta(days=30)
    assert settings_of(folder)["PORT"] == "8443"
    assert settings_of(folder)["PEER_URI"] == "spiffe://domicile.eu-1/tenant/acme/gateway"


def test_enrolled_again_it_has_a_new_key_and_is_the_same_backend(run, tmp_path):
    line = (*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"))
    run(*line)
    before = leaf(tmp_path / "o").public_key()
    run(*line)
    assert leaf(tmp_path / "o").public_key() != before
    assert len(json.loads(run("backend", "list", "acme", "--json"))) == 1


def test_a_pair_is_enrolled_with_its_roles_and_where_the_one_for_prompts_listens(run, tmp_path):
    line = (*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"), "--json")
    made = json.loads(run(*line, "--role", "prefill", "--transfer-port", "8444"))
    assert (made["role"], made["transfer"]) == ("prefill", "gpu-1.lan:8444")
    assert (settings_of(tmp_path / "o")["ROLE"], settings_of(tmp_path / "o")["TRANSFER_PORT"]) == ("prefill", "8444")
    assert "--role prefill --transfer-port 8444" in " ".join(units_command(tmp_path / "o"))
    again = json.loads(run(*line, "--role", "decode"))
    assert (again["role"], again["transfer"]) == ("decode", None)
    plain = json.loads(run(*line))
    assert (plain["role"], settings_of(tmp_path / "o")["ROLE"]) == ("mixed", "mixed")


@pytest.mark.parametrize("change", [("--role", "prefill"), ("--transfer-port", "8444"), ("--role", "other")])
def test_a_role_without_its_port_or_a_port_without_its_role_is_refused(run, tmp_path, change):
    run(*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"), *change, status=2)
    assert json.loads(run("backend", "list", "acme", "--json")) == []


@pytest.mark.parametrize(
    ("change", "said", "status"),
    [
        (("--url", "http://gpu-1.lan:8443"), "speaks TLS", 2),
        (("--region", "eu-atlantis"), "no region 'eu-atlantis'", 1),
        (("--weights", "/models/our model"), "leave out spaces", 1),
        (("--weights", "$(id)"), "leave out spaces", 1),
        (("--eur-per-million", "free"), "no amount in euros", 2),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_registers_nothing(run, tmp_path, change, said, status):
    output = run(*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"), *change, status=status)
    assert said in output
    assert json.loads(run("backend", "list", "acme", "--json")) == []
    assert not (tmp_path / "o" / "key.pem").exists()


def test_another_tenants_name_is_not_taken_over(run, tmp_path):
    open_control(tmp_path / "data").create_tenant("globex")
    run(*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"))
    theirs = [word.replace("acme", "globex") if word == "acme" else word for word in ENROL]
    output = run(*theirs, "--url", "https://evil.lan:8443", "--output", str(tmp_path / "p"), status=1)
    assert "exists already" in output
    assert not (tmp_path / "p").exists()


def test_where_the_authority_is_elsewhere_it_makes_none_of_its_own(run, tmp_path):
    (tmp_path / "data" / "ca").mkdir(exist_ok=True)
    for file in (tmp_path / "data" / "ca").iterdir():
        file.unlink()
    (tmp_path / "data" / "ca" / "ca.pem").write_text("theirs")
    output = run(*ENROL, "--url", "https://gpu-1.lan:8443", "--output", str(tmp_path / "o"), status=1)
    assert "issued elsewhere" in output and OURS.uri in output
    assert not (tmp_path / "data" / "ca" / "ca.key").exists()
    assert json.loads(run("backend", "list", "acme", "--json")) == []


@pytest.mark.parametrize("weights", ["", "a b", 'a"b', "a'b", "a\\b", "a$b", "a\nb", "a#b", "é"])
def test_an_environment_file_holds_no_word_that_systemd_would_read_otherwise(weights):
    with pytest.raises(InstallationError, match="MODEL"):
        environment(OURS, ServedModel("https://gpu-1.lan:8443", "small", weights))
