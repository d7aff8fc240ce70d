"""`domicile mark detect` and `measure` with weights that cannot be used."""

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.installation.installation import Installation
from gateway.store.marks import MarkKeys
from tests.fakes.lab import POLICY, Lab, open_control


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tenants, one of which has marked answers, and weights that are none."""
    at = tmp_path_factory.mktemp("detect")
    made = Lab(at / "data", open_control(at / "data"))
    made.tenant("acme", POLICY)
    made.tenant("globex", POLICY)
    installation = Installation.open(at / "data")
    MarkKeys(made.control._database, installation.keys).used("acme", "2026-11", "writer", "x")
    made.control._database.close()
    (at / "empty").mkdir()
    (at / "a.txt").write_text("some words of a letter")
    (at / "cut.gguf").write_text("GG")
    (at / "corrupt").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (at / "corrupt" / name).write_text("{}")
    return at


@pytest.mark.parametrize("tenant", ["acme", "globex"])
@pytest.mark.parametrize("weights", ["none", "empty", "a.txt", "cut.gguf", "corrupt"])
@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("command", [("detect", "--project", "main"), ("measure",)], ids=lambda words: words[0])
def test_weights_that_cannot_be_used_are_a_sentence_that_says_how_to_mend_it(folder, command, tenant, weights, more):
    verb, *options = command
    line = ["mark", verb, tenant, *([str(folder / "a.txt")] if verb == "detect" else []), *options]
    done = CliRunner().invoke(app, [*line, "--weights", str(folder / weights), "--data", str(folder / "data"), *more])
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2 and not done.stdout
    (sentence,) = done.stderr.splitlines()
    what, _, fix = sentence.partition("; ")
    assert what.startswith(f"error: --weights {folder / weights}: ") and fix and "--model" not in fix, sentence
