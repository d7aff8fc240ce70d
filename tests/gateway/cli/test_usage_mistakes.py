"""Exit status 2 for a command line that no installation accepts, 1 for what this one refuses; each error is a sentence.

The commands, their arguments and their options are read from the command tree, so a new command is tested as well.
"""

import re

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.terminal.old_spellings import STAFF
from gateway.installation.admin_record import recorded_admin

ROOT = typer.main.get_command(app)
NONSENSE = "?? no"
TENANT = {"tenant": "acme", "project": "support"}
LONG_RUNNING = {("demo",), ("up",), ("backend", "serve")}
"""Commands that start servers: wrong options are tried, states are not."""


def leaves(command=ROOT, path=()):
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(leaves())


def arguments(command):
    return [param for param in command.params if param.param_type_name == "argument" and param.required]


def required(command):
    """The words of a command line that lacks nothing, by their parameter."""
    given = [(param, [TENANT.get(param.name, "x1")]) for param in arguments(command)]
    options = [param for param in command.params if param.param_type_name == "option" and param.required]
    return given + [(param, [param.opts[0], "x1"]) for param in options]


def words(given):
    return [word for _, each in given for word in each]


def typed(param):
    """Whether Typer itself reads the option: a number, a day, one of some choices."""
    annotation = str(param.type_descriptor.annotation)
    return param.param_type_name == "option" and bool(re.search(r"\b(int|float|datetime|Literal|Enum)\b", annotation))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usage") / "data"
    made = [
        ("init", "--data", str(folder)),
        ("tenant", "create", "acme"),
        ("project", "create", "acme", "support", "--purpose", "customer support", "--legal-basis", "contract"),
    ]
    for line in made:
        assert invoke(folder, *line).exit_code == 0
    return folder


@pytest.fixture
def run(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *line: invoke(data, *line)


def invoke(folder, *line):
    environment = {"COLUMNS": "200", "DOMICILE_DATA": str(folder)}
    result = CliRunner().invoke(app, list(line), obj=recorded_admin, env=environment, input="")
    assert result.exception is None or isinstance(result.exception, SystemExit), "a traceback reached the user"
    return result


def is_a_sentence(result):
    """``error: <what>``, or Click's own box."""
    return result.stderr.startswith("error: ") or "Usage: " in result.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_a_usage_mistake(run, path):
    result = run(*path, *words(required(COMMANDS[path])), "--no-such-option")
    assert result.exit_code == 2 and "--no-such-option" in result.stderr


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if required(command)], ids=" ".join)
def test_each_word_that_is_missing_is_a_usage_mistake(run, path):
    given = required(COMMANDS[path])
    for param, _ in given:
        if " ".join(path) in STAFF and param.param_type_name == "argument":
            continue  # the spelling of the release before: without a tenant it is about the staff
        left = [each for each in given if each[0] is not param]
        if param.param_type_name == "argument" and len(arguments(COMMANDS[path])) > 1:
            left = [each for each in given if each[0] is not arguments(COMMANDS[path])[-1]]
        result = run(*path, *words(left))
        assert result.exit_code == 2 and is_a_sentence(result), (param.name, result.output)


TYPED = [(path, param) for path, command in COMMANDS.items() for param in command.params if typed(param)]


@pytest.mark.parametrize(
    ("path", "param"), TYPED, ids=lambda each: each.opts[0] if hasattr(each, "opts") else " ".join(each)
)
def test_a_value_of_the_wrong_type_is_a_usage_mistake(run, path, param):
    given = [each for each in required(COMMANDS[path]) if each[0] is not param]
    result = run(*path, *words(given), param.opts[0], NONSENSE)
    assert result.exit_code == 2 and is_a_sentence(result), result.output


DEPLOYMENT = ("deployment", "create", "acme", "chat", "--model", "m", "--weights", "w", "--gpu", "h100")
SERVER = ("backend", "create", "acme", "b1", "--region", "eu-fr-par", "--url", "https://10.0.0.7:8000", "--model", "m")
WRONG_VALUES = [
    ("key", "create", "acme", "support", "--network", NONSENSE),
    ("key", "create", "acme", "support", "--network", "10.0.0.1/8"),
    ("limit", "update", "acme"),
    ("limit", "update", "acme", "--rpm", NONSENSE),
    ("limit", "update", "acme", "--rpm", "-1"),
    ("limit", "update", "acme", "--eur-per-day", "1,50"),
    ("person", "create", "acme", "Ada", "--role", NONSENSE),
    ("oversight", "stop", "acme", "--project", "support", "--reason", NONSENSE),
    ("oversight", "stop", "acme", "--reason", "wrong_answers"),
    ("usage", "show", "acme", "--by", NONSENSE),
    ("usage", "cost", "acme", "--by", NONSENSE),
    ("usage", "cost", "acme", "--what-if", NONSENSE),
    ("usage", "cost", "acme", "--what-if", "abacus=1"),
    ("usage", "create-price", "m", "--input", NONSENSE, "--output", "1"),
    ("usage", "create-price", "m", "--input", "-1", "--output", "1"),
    (*SERVER, "--eur-per-million", NONSENSE),
    (*SERVER, "--eur-per-million", "1e9"),
    SERVER,  # neither a CA nor a pin
    ("backend", "enrol", "acme", "b1", "--region", "eu-fr-par", "--url", "http://a:1", "--model", "m", "-o", "out"),
    ("backend", "scrub", "--url", NONSENSE),
    ("backend", "serve", "--model", "demo", "--quantization", NONSENSE),
    ("backend", "serve", "--model", "demo", "--max-num-seqs", "64", "--max-num-batched-tokens", "16"),
    ("plan", "--model", "demo", "--gpu", NONSENSE),
    ("plan", "--model", "demo", "--kv-dtype", NONSENSE),
    (*DEPLOYMENT, "--region", NONSENSE),
    (*DEPLOYMENT, "--region", "eu-fr-par", "--eur-per-hour", NONSENSE),
    (*DEPLOYMENT, "--region", "eu-fr-par", "--eur-per-hour", "nan"),
    ("policy", "activate", "acme"),
    ("policy", "activate", "acme", "acme.yaml", "--proposal", "1"),
    ("policy", "activate", "acme", "acme.yaml", "--at", "2026-12-01T06:00"),
    ("policy", "simulate", "acme"),
    ("redact", "text", "a", "--action", NONSENSE),
    ("audit", "ai-act"),
    ("audit", "ai-act", "acme"),
    ("audit", "ai-act", "--as-of", NONSENSE),
    ("audit", "verify", "--as-of", NONSENSE),
    ("audit", "verify", "--sample", "3"),
    ("audit", "export", "acme", "-o", "out", "--since", NONSENSE),
    ("audit", "erase", "acme", "--reason", "by_request", "--yes"),
    ("audit", "erase", "acme", "--reason", "by_request", "--records", "five", "--yes"),
    ("audit", "erase", "acme", "--reason", NONSENSE, "--records", "1-2", "--yes"),
    ("audit", "dsar", "acme", "--subject", "7", "--html", NONSENSE),
    ("audit", "hold", "create", "acme", "--records", "five", "--reason", "claim"),
    ("audit", "hold", "create", "acme", "--reason", NONSENSE),
    ("audit", "hold", "create", "acme", "--records", "1", "--subject", "7", "--reason", "claim"),
    ("audit", "rotate", "--reason", NONSENSE),
    ("audit", "breach", "acme", "--since", NONSENSE),
    ("audit", "incident", "create", "acme", "--law", NONSENSE),
    ("audit", "incident", "create", "acme", "--aware", NONSENSE),
    ("audit", "incident", "create", "acme", "--aware", "2026-03-01T09:30:00"),
    ("audit", "incident", "create", "acme", "--severity", NONSENSE),
    ("audit", "incident", "update", "acme", "x1", "--aware", NONSENSE),
    ("audit", "incident", "update", "acme", "x1", "--classified", "2026-03-01T09:30:00"),
    ("audit", "incident", "notify", "acme", "x1", "--clock", NONSENSE, "--authority", "CNIL"),
    ("audit", "oversight", "record", "acme", NONSENSE, "--reason", "wrong_answers", "--system", "s"),
    ("audit", "model", "record", "acme", "--model", "m", "--what", NONSENSE),
    ("audit", "model", "record", "acme", "--model", "m", "--what", "weights", "--before", "12"),
    ("audit", "authority", "record", "acme", NONSENSE, "--authority", "A court", "--country", "US"),
    ("audit", "authority", "record", "acme", "received", "--authority", "A court", "--country", "usa"),
]


@pytest.mark.parametrize("line", WRONG_VALUES, ids=" ".join)
def test_a_value_that_no_installation_accepts_is_a_usage_mistake(run, line):
    result = run(*line)
    assert result.exit_code == 2 and is_a_sentence(result), result.output
    assert "pydantic" not in result.stderr and "Errno" not in result.stderr


NAMED = [
    (("limit", "update", "acme", "--rpm", "-5"), "--rpm -5: "),
    (("limit", "update", "acme", "--tpm", NONSENSE), "--tpm ?? no: "),
    (("limit", "update", "acme", "--concurrent", "-1"), "--concurrent -1: "),
    (("limit", "update", "acme", "--eur-per-day", "1,50"), "--eur-per-day 1,50: "),
    (("limit", "update", "acme", "--eur-per-month", "-0.01"), "--eur-per-month -0.01: "),
    (("key", "create", "acme", "support", "--network", "10.0.0.1/8"), "--network '10.0.0.1/8': "),
    (("adapter", "create", "acme", "support", "legal", "--model", "m", "--path", "a", "--sha256", "x"), "--sha256: "),
    (("adapter", "create", "acme", "support", "legal", "--model", "", "--path", "a", "--sha256", "x"), "--model: "),
    (("model", "create", "acme", "support", "a", "--target", "nothing"), "--target: "),
    (("model", "create", "acme", "support", "a", "--target", "m", "--replacement", ""), "--replacement: "),
    (
        ("model", "create", "acme", "support", "a", "--target", "m", "--sunset", "2027-02-30"),
        "'--sunset': '2027-02-30'",
    ),
    ((*DEPLOYMENT, "--region", NONSENSE), "--region: "),
    ((*DEPLOYMENT, "--region", "eu-fr-par", "--min", "-5"), "--min: "),
    ((*DEPLOYMENT, "--region", "eu-fr-par", "--max", "0"), "--max: "),
    ((*DEPLOYMENT, "--region", "eu-fr-par", "--ttft-ms", "0"), "--ttft-ms: "),
    ((*DEPLOYMENT, "--region", "eu-fr-par", "--weights-sha256", "x"), "--weights-sha256: "),
    ((*DEPLOYMENT, "--region", "eu-fr-par", "--eur-per-hour", "-1"), "'--eur-per-hour': '-1'"),
    ((*SERVER, "--eur-per-million", NONSENSE), "'--eur-per-million': '?? no'"),
    (("usage", "create-price", "m", "--input", "x", "--output", "1"), "'--input': 'x'"),
    (("usage", "create-price", "m", "--input", "1", "--output", "nan"), "'--output': 'nan'"),
    (("region", "create", "x", "--country", "XX", "--operator", "o", "--source", "s"), "--country: "),
    (("region", "create", "x", "--country", "DE", "--operator", "o", "--source", ""), "--source: "),
    (("audit", "export", "acme", "-o", "out", "--since", NONSENSE), "--since '?? no' "),
    (("audit", "show", "acme", "--until", NONSENSE), "--until '?? no' "),
    (("audit", "breach", "acme", "--until", NONSENSE), "--until '?? no' "),
    (("audit", "verify", "--as-of", NONSENSE), "--as-of '?? no' "),
    (("audit", "verify", "--log", ""), "--log names no file"),
    (("audit", "incident", "create", "acme", "--aware", NONSENSE), "--aware '?? no' "),
    (("audit", "incident", "create", "acme", "--system", ""), "--system is not valid"),
    (
        ("audit", "request", "create", "acme", "--right", "access", "--subject", "7", "--received", "x"),
        "--received 'x' ",
    ),
    (("audit", "hold", "create", "acme", "--records", "1", "--reason", NONSENSE), "--reason '?? no' "),
]


@pytest.mark.parametrize(("line", "named"), NAMED, ids=[" ".join(line) for line, _ in NAMED])
def test_an_error_names_the_option_that_was_typed_and_not_the_field_that_it_sets(run, line, named):
    result = run(*line)
    assert result.exit_code in (1, 2)
    assert named in result.stderr, result.output
    assert not re.search(r"\b[a-z0-9]+_[a-z0-9_]+(\.\d+)?: ", result.stderr), result.stderr


REFUSED = [
    ("tenant", "show", "nobody"),
    ("tenant", "create", "acme"),
    ("project", "create", "nobody", "support", "--purpose", "help", "--legal-basis", "contract"),
    ("key", "create", "nobody", "support"),
    ("key", "create", "acme", "nothing"),
    ("key", "revoke", "acme", "x1", "--yes"),
    ("limit", "update", "nobody", "--rpm", "1"),
    ("limit", "show", "acme", "--key", "x1"),
    ("person", "create", "nobody", "Ada", "--role", "auditor"),
    ("policy", "show", "nobody"),
    ("policy", "activate", "acme", "missing.yaml"),
    ("policy", "check", "missing.yaml"),
    ("policy", "approve", "acme", "1"),
    ("oversight", "stop", "nobody", "--project", "support", "--reason", "wrong_answers"),
    ("deployment", "show", "acme", "chat"),
    (*SERVER[:4], "--region", "atlantis", "--url", "https://10.0.0.7:8000", "--model", "m"),
    ("region", "show", "atlantis"),
    ("region", "check", "--policy", "."),
    ("redact", "file", "missing.txt"),
    ("plan", "--model", "missing"),
    ("backend", "scrub", "--url", "http://127.0.0.1:1"),
    ("cell", "bundle", "x1", "-o", "out"),
    ("audit", "export", "nobody", "-o", "out"),
    ("audit", "incident", "close", "acme", "x1", "--reason", "resolved"),
    ("audit", "hold", "release", "acme", "x1"),
]


@pytest.mark.parametrize("line", REFUSED, ids=" ".join)
def test_what_this_installation_refuses_ends_with_1(run, line):
    result = run(*line)
    assert result.exit_code == 1 and result.stderr.startswith("error: "), result.output
    assert "Errno" not in result.stderr
