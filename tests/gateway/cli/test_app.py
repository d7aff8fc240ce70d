"""The command `domicile` as it is put together: help that is true, JSON that parses, mistakes that are sentences."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from gateway.cli.app import PARTS, app
from gateway.cli.up import run_gateway
from gateway.configuration.settings import load_settings
from gateway.identity.keys import parse_key
from gateway.installation.admin_record import recorded_admin
from gateway.version import build
from tests.fakes.lab import POLICY, lab

ROOT = typer.main.get_command(app)
TREE = str(Path(__file__).parents[3])
PROJECT = ("project", "create", "acme", "support", "--purpose", "customer support", "--legal-basis", "contract")


def leaves(command=ROOT, path=()):
    """Every command below `command` that does something, by its words."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def resolve(words):
    """The command that `words` call, and what is left for it to parse."""
    command, rest = ROOT, list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command, rest


COMMANDS = dict(leaves())


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments, answer=None):
        result = CliRunner().invoke(app, arguments, obj=recorded_admin, env={"COLUMNS": "200"}, input=answer)
        assert result.exception is None or isinstance(result.exception, SystemExit), "a traceback reached the user"
        return result

    return invoke


@pytest.fixture
def acme(run, tmp_path):
    """A data folder made by commands alone: tenant, policy, project."""
    (tmp_path / "acme.yaml").write_text(POLICY)
    for words in (("init",), ("tenant", "create", "acme"), ("policy", "activate", "acme", "acme.yaml"), PROJECT):
        assert run(*words).exit_code == 0
    return run


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_commands_are_those_of_every_package():
    assert {path[0] for path in COMMANDS} >= {
        "demo", "up", "config", "tenant", "project", "key", "policy", "region", "backend", "audit",
    }  # fmt: skip
    assert {path[1] for path in COMMANDS if path[0] == "policy"} >= {"activate", "list", "show", "check", "test"}


def test_a_listing_shows_the_help_that_each_command_has():
    assert {name: part.help for name, part in PARTS.items()} == {
        name: ROOT.commands[name].help.split("\n")[0].strip() for name in PARTS
    }


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_help_and_version_import_no_command(asked):
    heavy = "audit", "policy", "backend", "regions", "pydantic", "sqlalchemy", "cryptography", "asyncio"
    program = (
        "import contextlib, io, sys; from gateway.cli.app import main\n"
        f"sys.argv = ['domicile', {asked!r}]\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
        f"print([one for one in {heavy} if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=TREE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_is_an_error_that_names_a_near_one(run):
    shown = run("tenat", "create", "acme")
    assert shown.exit_code == 2
    assert "tenant" in shown.output


def test_it_says_its_version_as_the_record_does(run):
    assert run("--version").stdout == f"{build()}\n"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_that_parses(run, path):
    shown = run(*path, "--help")
    assert shown.exit_code == 0
    assert re.search(r"Examples?:", shown.output)
    written = f"{COMMANDS[path].help}\n{COMMANDS[path].epilog or ''}"
    examples = re.findall(r"(?:^|Example: )\s*(domicile .+?)(?: [|>].*)?$", written, re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example)[1:]
        command, rest = resolve(words)
        assert command is COMMANDS[path], example
        command.make_context(example, rest)  # raises for an option that there is not


# They run until stopped, or speak nothing but JSON.
RUNNING = {("demo",), ("up",), ("backend", "serve"), ("audit", "witness", "serve"), ("audit", "dsar")}


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in RUNNING])
def test_every_command_that_answers_can_answer_in_json(path):
    assert "--json" in {option for parameter in COMMANDS[path].params for option in parameter.opts}


def test_it_says_its_version(run):
    shown = run("--version")
    assert shown.exit_code == 0
    assert shown.output.startswith("domicile ")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_word_of_a_help_is_lost_to_the_markup(run, path):
    """What stands in square brackets, as ``[default: x]``, a terminal takes for a style."""
    assert not re.search(r"\w \.( |$)", run(*path, "--help").output)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "error: No such command 'nonsense'; see domicile --help"),
        ("tenat list", "error: No such command 'tenat'. Did you mean 'tenant'?; see domicile --help"),
        ("tenant create", "error: Missing argument 'TENANT'; see domicile tenant create --help"),
        ("tenant list --nonsense", "error: No such option: --nonsense; see domicile tenant list --help"),
    ],
)
def test_a_mistake_of_usage_has_the_form_of_all_errors(run, line, says):
    done = run(*line.split())
    assert (done.exit_code, done.stderr.strip()) == (2, says)


def test_without_a_word_it_says_what_there_is(run):
    assert "backend" in run().output


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("nonsense", 2, "No such command 'nonsense'"),
        ("tenat list", 2, "Did you mean 'tenant'?"),
        ("key rovoke acme x", 2, "Did you mean 'revoke'?"),
        ("tenant create", 2, "Missing argument 'TENANT'"),
        ("tenant create Acme", 1, "is not a name"),
        ("tenant create acme --cell Nope", 1, "not a name"),
        ("tenant list", 1, "holds no installation"),
        ("tenant list --data file", 1, "error: "),
        ("tenant create acme --data file/below", 1, "error: "),
        ("key create acme support --expires-in-days 0", 2, "greater than or equal to 1"),
        ("policy check absent.yaml", 1, "No such file"),
        ("policy check binary", 1, "not UTF-8"),
        ("policy check list.yaml", 1, "line 1: this is not a mapping; begin with policy:"),
        ("policy activate acme absent.yaml", 1, "cannot be read"),
        ("region show nowhere", 1, "there are aruba-it-bergamo, aws-eu-central-1"),
        ("region list --on tomorrow", 2, "does not match the format"),
        ("region list --catalogue list.yaml", 1, "error: "),
        ("audit verify", 1, "there is no audit log"),
        ("audit verify --log file", 1, "error: "),
        ("audit receipt verify nonsense", 1, "error: "),
        ("up --data nowhere", 1, "holds no installation"),
        ("up -c absent.yaml", 2, "cannot read absent.yaml"),
        ("up -c binary", 2, "binary is not UTF-8 text"),
        ("up -c open.yaml", 2, "open.yaml: listen: "),
        ("config show -c typo.yaml", 2, "typo.yaml: listen.prot: "),
        ("config check -c typo.yaml", 2, "typo.yaml: listen.prot: unknown key; did you mean port?"),
        ("config check -c other.yaml", 2, "other.yaml: zzz: unknown key; docs/configuration.md lists them all"),
        ("config check -c served.yaml", 1, "sinks.record: say in which country the record is kept"),
        ("cell create eu-de --verifier-key absent --data nowhere", 1, "error: "),
        ("demo --port 70000", 2, "less than or equal to 65535"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_status(run, tmp_path, line, status, says):
    (tmp_path / "file").write_text("not a folder, not a log")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.yaml").write_text("- one\n")
    (tmp_path / "open.yaml").write_text("listen: {host: 0.0.0.0}\n")
    (tmp_path / "typo.yaml").write_text("listen: {prot: 1}\n")
    (tmp_path / "other.yaml").write_text("zzz: 1\n")
    (tmp_path / "served.yaml").write_text("listen: {host: 0.0.0.0, tls_ended_by_proxy: true}\n")
    result = run(*line.split())
    assert result.exit_code == status
    assert says in result.output + result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_a_question_that_is_not_answered_yes_changes_nothing(acme):
    assert acme("tenant", "revoke", "acme", answer="n\n").exit_code == 1
    assert json.loads(acme("tenant", "show", "acme", "--json").stdout)["revoked_at"] is None


@pytest.mark.parametrize(
    ("line", "says"),
    [("up --data nowhere", "holds no installation"), ("backend serve --model nowhere --port 0", "no model at")],
)
def test_the_status_is_that_of_the_process(tmp_path, line, says):
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *line.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": TREE},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- administration, on record ---------------------------------------------------------------------------------------


def test_what_was_administered_is_on_record_and_the_record_verifies(acme, tmp_path):
    made = json.loads(acme("key", "create", "acme", "support", "--json").stdout)
    assert acme("key", "revoke", "acme", made["id"], "--yes").exit_code == 0
    assert acme("project", "revoke", "acme", "support", "--yes").exit_code == 0
    assert acme("tenant", "revoke", "acme", "--yes").exit_code == 0

    verified = json.loads(acme("audit", "verify", "--json").stdout)
    assert verified["ok"] is True
    shown = [json.loads(line) for line in acme("audit", "show", "acme", "--json").stdout.splitlines()]
    assert [(event["type"], event["target"]) for event in shown] == [
        ("admin.tenant.created", "acme"),
        ("admin.policy.activated", shown[1]["target"]),
        ("admin.project.created", "support"),
        ("admin.key.created", made["id"]),
        ("admin.key.revoked", made["id"]),
        ("admin.project.revoked", "support"),
        ("admin.tenant.revoked", "acme"),
    ]
    assert {event["actor"] for event in shown} == {"cli"}
    epochs = [event["epoch"] for event in shown]
    assert epochs == sorted(set(epochs))
    secret = parse_key(made["key"]).token.split("_")[3].encode()
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and secret in file.read_bytes()]


def test_a_refused_change_is_not_on_record(acme):
    def changes():
        shown = acme("audit", "show", "acme", "--json").stdout.splitlines()
        return [event for event in map(json.loads, shown) if event["type"] != "log.read"]  # which showing leaves

    before = changes()
    assert acme("tenant", "create", "acme").exit_code == 1
    assert acme("key", "create", "acme", "nobody").exit_code == 1
    assert before and changes() == before


def test_what_cannot_be_recorded_is_not_changed(acme, tmp_path):
    for file in (tmp_path / "domicile-data" / "audit").glob("log.db*"):
        file.write_bytes(b"this was a log once" * 1000)
    refused = acme("tenant", "create", "globex")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: ")
    assert acme("tenant", "show", "globex").exit_code == 1


def test_everything_that_can_be_shown_parses_as_json(acme):
    key = json.loads(acme("key", "create", "acme", "support", "--json").stdout)["id"]
    for line in (
        "tenant list", "tenant show acme", "project list acme", "project show acme support", "key list acme",
        f"key show acme {key}", "policy list acme", "policy show acme", "policy check acme.yaml",
        "policy test acme.yaml", "region list", "region show eu-fr-par", "audit verify", "config show", "config check",
    ):  # fmt: skip
        shown = acme(*line.split(), "--json")
        assert shown.exit_code == 0, line
        assert json.loads(shown.stdout) is not None, line


# --- configuration and the gateway -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_in_effect_is_shown_and_may_be_read_again(run, tmp_path, monkeypatch, form):
    monkeypatch.setenv("DOMICILE__REQUESTS__MAX_ATTEMPTS", "2")
    (tmp_path / "config.yaml").write_text("data: here\nlisten: {port: 9000}\nprices: {m: {input_eur_per_million: 1, "
                                          "output_eur_per_million: 2}}\n")  # fmt: skip
    shown = run("config", "show", "-c", "config.yaml", *(["--json"] if form == "json" else []))
    assert shown.exit_code == 0
    effect = yaml.safe_load(shown.stdout)
    effect = effect["settings"] if form == "json" else effect
    assert (effect["listen"]["port"], effect["requests"]["max_attempts"]) == (9000, 2)
    assert effect["data"] == str(tmp_path / "here")
    (tmp_path / "again.yaml").write_text(json.dumps(effect) if form == "json" else shown.stdout)
    assert load_settings(tmp_path / "again.yaml") == load_settings(tmp_path / "config.yaml")


async def test_a_taken_port_or_node_name_is_said_and_the_first_gateway_goes_on(tmp_path, capsys):
    async with lab(tmp_path) as made:
        port = int(made.base.rsplit(":", 1)[1])
        settings = load_settings(data=made.data, node="other", listen={"port": port})
        assert await run_gateway(settings) == 1
        assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
        assert await run_gateway(load_settings(data=made.data, node="lab", listen={"port": 0})) == 1
        assert "another process already writes this log as node lab" in capsys.readouterr().err
        assert (await made.get("/readyz")).status == 200


async def test_a_folder_that_is_damaged_keeps_the_gateway_from_starting(tmp_path, capsys):
    async with lab(tmp_path) as made:
        pass
    (made.data / "audit" / "signer.key").write_text("not a key")
    assert await run_gateway(load_settings(data=made.data, node="lab", listen={"port": 0})) == 1
    assert capsys.readouterr().err.startswith("error: ")


# --- what a newcomer needs -------------------------------------------------------------------------------------------


def test_a_name_that_is_almost_right_is_answered_with_the_right_one(acme):
    assert "did you mean 'acme'?" in acme("tenant", "show", "amce").stderr
    assert "did you mean 'support'?" in acme("key", "create", "acme", "suport").stderr
    assert "did you mean" not in acme("tenant", "show", "umbrella").stderr
    assert "did you mean" not in acme("key", "show", "acme", "00000000").stderr


ENDING = [path for path in COMMANDS if re.search(r"revoke|delete|erase|rekey|rotate|expire", " ".join(path))]


@pytest.mark.parametrize(
    "path", [path for path in ENDING if path[0] != "audit" and path != ("secrets", "rotate")], ids=" ".join
)
def test_what_ends_something_for_good_asks_first_unless_it_is_told_yes(path):
    assert {"--yes", "-y"} <= {option for parameter in COMMANDS[path].params for option in parameter.opts}


def test_a_key_that_would_end_at_once_and_a_pepper_ask_first(acme):
    key = json.loads(acme("key", "create", "acme", "support", "--json").stdout)["id"]
    assert acme("key", "rotate", "acme", key, "--grace-hours", "0", answer="n\n").exit_code == 1
    assert len(json.loads(acme("key", "list", "acme", "--json").stdout)) == 1
    assert acme("key", "rotate", "acme", key, "--grace-hours", "0", "--yes").exit_code == 0
    assert acme("key", "rekey", "--finish", answer="n\n").exit_code == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ten", {"tenant"}), ("key r", {"rotate", "rekey", "revoke"}), ("config ", {"show", "check"}),
     ("key create --exp", {"--expires-in-days"})],
)  # fmt: skip
def test_bash_completes_commands_and_options(tmp_path, typed, offered):
    """In a real bash, by the very script that ``--install-completion`` installs."""
    command = tmp_path / "domicile"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {TREE!r})\nfrom gateway.cli.app import app\napp()\n"
    )
    command.chmod(0o755)
    words = ["domicile", *typed.split(" ")]
    script = f"""
        eval "$(domicile --show-completion)"
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        _domicile_completion domicile
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert offered <= set(done.stdout.split()), done.stderr


async def test_up_says_how_the_first_operator_comes_in_until_there_is_one(tmp_path, capsys):
    async with lab(tmp_path) as made:
        pass
    settings = load_settings(data=made.data, node="lab", listen={"port": 0})

    async def said_by_up():
        running = asyncio.create_task(run_gateway(settings))
        said = ""
        while "listening" not in said:
            await asyncio.sleep(0.02)
            said += capsys.readouterr().err
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
        return said + capsys.readouterr().err

    assert f"domicile person bootstrap --data {made.data}" in await said_by_up()
    made.control.create_person(None, "Root", ["operator"])
    assert "bootstrap" not in await said_by_up()
