"""One spelling for one thing in all commands; those of the release before still work, with a warning."""

import re

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.terminal.old_spellings import COMMANDS, OPTIONS, STAFF, InFront, rewritten
from gateway.installation.installation import Installation

ROOT = typer.main.get_command(app)
CONFIGURES = {
    "backend serve": "--tenant is a label of the server that it starts, as --region is",
}
"""Commands that may have an option --tenant, and why."""
NOT_A_PERIOD = {
    "cell apply --from": "the cell that a bundle is of",
    "audit rotate --to": "the place of a key",
}
STANDARD = {"create", "list", "show", "update", "delete", "revoke"}
INSTEAD = {
    "add": "create", "new": "create", "register": "create", "open": "create", "place": "create", "set": "update",
    "get": "show", "status": "show", "ls": "list", "edit": "update", "modify": "update", "roles": "update",
    "remove": "delete", "rm": "delete", "destroy": "delete", "tokens": "list-tokens", "token": "create-token",
}  # fmt: skip
"""Verbs that say what a standard verb says."""


def walked(command=ROOT, path=()):
    """Every command and group by its words."""
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from walked(below, (*path, name))


LEAVES = {path: command for path, command in walked() if not hasattr(command, "commands")}


def options(command):
    return {name: param for param in command.params if param.param_type_name == "option" for name in param.opts}


def arguments(command):
    return [param for param in command.params if param.param_type_name == "argument"]


def run(*words, data=None):
    environment = {"COLUMNS": "200"} | ({} if data is None else {"DOMICILE_DATA": str(data)})
    return CliRunner().invoke(app, [str(word) for word in words], env=environment)


# --- every command ---------------------------------------------------------------------------------------------------


def test_a_tenant_is_the_first_argument_and_never_an_option():
    by_option = {path for path, command in LEAVES.items() if "--tenant" in options(command)}
    assert by_option == CONFIGURES.keys()
    for path, command in LEAVES.items():
        named = [param.name for param in arguments(command)]
        if "tenant" in named and path != "cell allow":
            assert named.index("tenant") == 0, path


def test_a_period_is_given_by_since_and_until():
    wrong = {
        f"{path} {name}" for path, command in LEAVES.items() for name in options(command) if name in ("--from", "--to")
    }
    assert wrong == NOT_A_PERIOD.keys()
    for path, command in LEAVES.items():
        assert ("--until" in options(command)) <= ("--since" in options(command)), path


def test_what_is_written_goes_where_output_says_in_long_and_in_short():
    for path, command in LEAVES.items():
        for param in options(command).values():
            assert not {"--out", "--draft", "--to-file", "--outfile"} & set(param.opts), path
            if "--output" in param.opts and path != "usage create-price":
                assert "-o" in param.opts, path


def test_a_reason_is_called_so():
    assert [
        path for path, command in LEAVES.items() if {"--because", "--why", "--comment"} & options(command).keys()
    ] == []


def test_what_asks_can_be_answered_in_long_and_in_short():
    for path, command in LEAVES.items():
        if "--yes" in options(command):
            assert "-y" in options(command)["--yes"].opts, path


def test_verbs_are_the_standard_ones():
    for path in LEAVES:
        verb = path.split()[-1]
        if path == "policy new":
            continue  # it creates nothing in an installation: it writes a file to start from
        assert verb not in INSTEAD, f"{path}: write {INSTEAD[verb]}"


@pytest.mark.parametrize("path", LEAVES)
def test_a_wrong_option_ends_with_2_and_names_it(path):
    done = run(*path.split(), "--no-such-option")
    assert done.exit_code == 2
    assert "--no-such-option" in done.stderr


def made_up(param, folder):
    """A value of the right kind that leads nowhere."""
    kind = str(param.type_descriptor.annotation)
    return str(folder / "absent") if "Path" in kind else "1" if re.search("int|float|Decimal", kind) else "acme"


OTHER_STATUS = {
    "init": "makes what is missing",
    "demo": "makes what is missing",
    "config show": "shows the defaults",
    "mark detect": "searches, and ends as grep(1) does: 2 where nothing could be tested",
    "mark verify": "as mark detect",
    "mark measure": "as mark detect",
    "audit find-answer": "as mark detect",
    "audit challenge": "as mark detect",
    "backend replay": "compares, and ends as cmp(1) does: 2 where there is nothing to compare",
}
"""Commands that end otherwise where there is no installation, and why."""


CHECKED_BEFORE_THE_FOLDER = {
    "policy activate": "needs a FILE or --proposal",
    "policy simulate": "needs a FILE or --no-dpf-accepted",
    "adapter create": "the made-up digest is none",
    "limit update": "needs a limit",
    "project update": "needs an origin",
    "audit ai-act": "needs a system or a day",
    "audit erase": "needs what to erase",
    "audit incident update": "needs what changes",
    "audit oversight record": "the made-up act is not one",
}
"""Commands for which the made-up words are a usage mistake, and why."""

ON_A_FOLDER = [path for path, command in LEAVES.items() if "--data" in options(command)]


@pytest.mark.parametrize("path", [path for path in ON_A_FOLDER if path not in OTHER_STATUS])
def test_what_is_refused_ends_with_1_and_a_sentence(path, tmp_path):
    """Refused because there is no installation, or no file of that name; a usage mistake ends with 2."""
    command = LEAVES[path]
    words = [made_up(param, tmp_path) for param in arguments(command) if param.required]
    for param in options(command).values():
        if param.required:
            words += [param.opts[0], made_up(param, tmp_path)]
    if "--yes" in options(command):
        words.append("--yes")
    done = run(*path.split(), *words, "--data", tmp_path / "nowhere")
    assert done.exit_code == (2 if path in CHECKED_BEFORE_THE_FOLDER else 1), done.output
    assert "error: " in done.stderr, done.output
    assert "Traceback" not in done.output


# --- old spellings ---------------------------------------------------------------------------------------------------


def test_every_old_spelling_leads_to_a_command_and_an_option_that_there_are():
    groups = dict(walked())
    for group, renamed in COMMANDS.items():
        for old, new in renamed.items():
            assert new in groups[group].commands, new
            assert old not in groups[group].commands, old
    for path, renamed in OPTIONS.items():
        command = LEAVES[path]
        for old, new in renamed.items():
            assert old not in options(command), (path, old)
            if isinstance(new, InFront):
                assert arguments(command)[0].name == "tenant", path
            else:
                assert new in options(command), (path, new)
    assert set(STAFF) <= LEAVES.keys()


@pytest.mark.parametrize("path", OPTIONS)
def test_no_help_shows_an_old_spelling(path):
    shown = run(*path.split(), "--help").output.replace("--from-", "")
    assert not [old for old in OPTIONS[path] if f"{old} " in shown]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tenant", "acme", "id"], ["acme", "id"]),
        (["id", "--tenant=acme"], ["acme", "id"]),
        (["--from", "2026-01", "--tenant", "a", "--to=2026-02"], ["a", "--since", "2026-01", "--until=2026-02"]),
        (["--tenant", "a", "--tenant", "b"], ["a", "b"]),
        (["--", "--tenant", "a"], ["--", "--tenant", "a"]),
        (["--tenant"], ["--tenant"]),
        (["acme", "--since", "2026-01"], ["acme", "--since", "2026-01"]),
        ([], []),
    ],
)
def test_words_are_rewritten_one_for_one(args, words):
    table = {"--tenant": InFront("TENANT"), "--from": "--since", "--to": "--until"}
    assert rewritten(args, table)[0] == words
    assert bool(rewritten(args, table)[1]) == (args != words)


@pytest.fixture
def data(tmp_path):
    Installation.create(tmp_path / "data")
    assert run("tenant", "create", "acme", data=tmp_path / "data").exit_code == 0
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("usage show --tenant acme", "usage show acme", ["--tenant TENANT"]),
        ("usage export --tenant=acme", "usage export acme", ["--tenant TENANT"]),
        ("limit set acme --rpm 5", "limit update acme --rpm 5", ["'limit set'", "'limit update'"]),
        ("person list --tenant acme", "person list acme", ["--tenant TENANT"]),
        ("usage prices", "usage list-prices", ["'usage list-prices'"]),
        ("person list", "person list operator", []),
    ],
)
def test_an_old_spelling_does_the_same_with_one_line_of_warning(data, old, new, names):
    before, now = run(*old.split(), data=data), run(*new.split(), data=data)
    assert (before.exit_code, now.exit_code) == (0, 0), before.output
    assert [line for line in before.stdout.splitlines() if "_at" not in line] == [
        line for line in now.stdout.splitlines() if "_at" not in line
    ]
    assert now.stderr == ""
    warned = before.stderr.splitlines()
    assert len(warned) == bool(names)
    assert all(name in warned[0] for name in names)
    assert all(line.startswith("warning: ") for line in warned)


def test_a_person_without_a_tenant_is_still_one_of_the_staff(data):
    made = run("person", "create", "Ada Lovelace", "--role", "operator", data=data)
    assert made.exit_code == 0
    assert "operator in front" in made.stderr
    assert "Ada Lovelace" in run("person", "list", data=data).stdout
    assert "Ada Lovelace" not in run("person", "list", "acme", data=data).stdout


def test_a_file_in_place_of_a_tenant_is_still_where_the_ledger_goes(data, tmp_path):
    target = tmp_path / "november.csv"
    done = run("usage", "export", target, "--since", "2026-11-01", data=data)
    assert (done.exit_code, target.is_file()) == (0, True), done.output
    assert "--output FILE" in done.stderr


def test_a_misspelt_command_is_still_answered_with_a_near_one(data):
    done = run("backend", "registr", data=data)
    assert done.exit_code == 2
