"""``backend fetch`` as a user runs it, and how `serve` takes the same names."""

import json

import pytest
from typer.testing import CliRunner

from backend.cli.fetch import fetched_model
from backend.cli.serve import app
from backend.engine_config import EngineConfig
from backend.server import serving
from tests.fakes.model_places import Hub, running

MODEL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": b"weights"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with running(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
        monkeypatch.setenv("DOMICILE_MODEL_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        hub.add("acme/small", MODEL)
        yield hub


def run(*words):
    return CliRunner().invoke(app, ["fetch", *words])


def test_a_lock_file_of_one_machine_holds_on_the_next(hub, tmp_path):
    first = run("acme/small", "--json", "-o", "small.lock.json")
    assert first.exit_code == 0
    said = json.loads(first.stdout)
    assert said["source"] == f"hf://acme/small@{'a' * 40}"
    there = run("acme/small", "--json", "--model-lock", "small.lock.json", "--model-cache", str(tmp_path / "other"))
    assert json.loads(there.stdout)["sha256"] == said["sha256"]
    hub.add("acme/small", {**MODEL, "model.safetensors": b"weightz"})
    refused = run("acme/small", "--model-lock", "small.lock.json", "--model-cache", str(tmp_path / "third"))
    assert refused.exit_code == 1
    assert "model.safetensors is not what the lock file says" in refused.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["acme/small", "--model-sha256", "abc"], 2, "takes 64 hexadecimal digits"),
        (["acme/small", "--model-sha256", "G" * 64], 2, "takes 64 hexadecimal digits"),
        (["acme/small", "--model-lock", "absent.json"], 2, "there is no lock file"),
        (["acme/small", "-o", "absent/lock.json"], 1, "cannot be written"),
        (["acme/small", "--offline"], 1, "is not here; fetch it once without --offline"),
        (["./small"], 2, "that is a path of this host"),
        (["https://example.com/small"], 1, "that names no model"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(hub, words, status, said):
    refused = run(*words)
    assert (refused.exit_code, said in refused.stderr) == (status, True), refused.stderr


def test_serve_takes_the_name_fetches_it_and_names_the_model_after_it(hub, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(serving, "serve", lambda config, options: seen.append((config, options)))
    digest = json.loads(run("acme/small", "--json").stdout)["sha256"]
    for pin in ([], ["--model-sha256", digest]):
        assert CliRunner().invoke(app, ["serve", "--model", "acme/small", *pin]).exit_code == 0
    for config, options in seen:
        assert isinstance(config, EngineConfig)
        assert config.model.startswith(str(tmp_path / "cache"))
        assert options.served_name == "small"
    wrong = CliRunner().invoke(app, ["serve", "--model", "acme/small", "--model-sha256", "0" * 64])
    assert (wrong.exit_code, len(seen)) == (1, 2)
    assert "has the weights" in wrong.stderr


def test_a_path_is_handed_on_as_it_was_given(hub):
    assert fetched_model("./small.gguf", None, None, None, False) == ("./small.gguf", "small")
    assert hub.asked == []
