import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from regions.errors import LaunchError
from regions.fleet.cards import Cards
from regions.launchers import planning
from tests.fakes.lab import open_control
from tests.fakes.model_places import Hub, running


@pytest.fixture
def data(tmp_path):
    open_control(tmp_path / "data").create_tenant("acme")
    models = tmp_path / "data" / "models"
    models.mkdir()
    for name in ("m.gguf", "small.gguf", "other.gguf", "large.gguf"):
        (models / name).touch()
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _planner(monkeypatch):
    """It takes seconds to start: here it finds no fault, `test_feasibility` asks it."""
    monkeypatch.setattr("gateway.installation.feasibility.check_start", lambda weights, card, memory, replicas: None)
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0]")


@pytest.fixture
def run(data):
    def command(*arguments, status=0):
        done = CliRunner().invoke(app, [*arguments, "--data", str(data)])
        assert done.exit_code == status, done.output
        return done.output

    return command


CREATE = ("deployment", "create", "acme", "small", "--model", "small", "--weights", "m.gguf", "--region", "eu-fr-par")


def test_a_deployment_is_made_shown_scaled_drained_and_deleted(run):
    made = json.loads(run(*CREATE, "--max", "3", "--idle-s", "60", "--eur-per-hour", "2.5", "--json"))
    assert (made["min_replicas"], made["max_replicas"], made["idle_s"], made["eur_per_hour"]) == (0, 3, 60, 2.5)
    scaled = json.loads(run("deployment", "scale", "acme", "small", "--min", "1", "--json"))
    assert (scaled["min_replicas"], scaled["max_replicas"], scaled["idle_s"]) == (1, 3, 60)
    assert json.loads(run("deployment", "drain", "acme", "small", "--json"))["draining"]
    assert json.loads(run("deployment", "show", "acme", "small", "--json"))["replicas"] == []
    assert "small" in run("deployment", "list", "acme")
    assert json.loads(run("deployment", "delete", "acme", "small", "--yes", "--json"))["deleted_at"]


def test_a_place_that_the_catalogue_does_not_have_is_refused(run):
    assert "no region 'eu-atlantis'" in run(*CREATE[:-1], "eu-atlantis", status=1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--max", "0"), "--max: "),
        (("--min", "3", "--max", "2"), "cannot both hold"),
        (("--eur-per-hour", "free"), "no amount in euros"),
        (("--eur-per-hour", "-1"), "no price of an hour"),
        (("--wait-s", "0"), "--wait-s: "),
    ],
)
def test_what_cannot_be_is_told_by_its_name(run, more, said):
    assert said in run(*CREATE, *more, status=2)


def test_a_name_that_leaves_no_room_for_its_replicas_is_refused(run):
    long = [each if each != "small" else "a" * 23 for each in CREATE[:4]]
    assert "id: " in run(*long, *CREATE[4:], status=2)


def test_auto_takes_the_first_card_that_the_planner_finds_enough(run, monkeypatch):
    fits = {"h100", "h200"}
    fewest = dict.fromkeys(planning.CARDS)
    asked = []

    def plan(weights, card, *, calls, cards):
        asked.append((card, cards))
        return {"refusal": None if card in fits else "too small", "fewest_cards": fewest[card]}

    monkeypatch.setattr(planning, "plan", plan)
    assert json.loads(run(*CREATE, "--gpu", "auto", "--json"))["gpu"] == "h100"
    run("deployment", "delete", "acme", "small", "--yes")
    fits.clear()
    assert "no card holds m.gguf: too small" in run(*CREATE, "--gpu", "auto", status=1)
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0, 1, 2, 3]")
    fewest |= {"l40s": 8, "a100-80gb": 4, "h100": 4}
    again = [each if each != "small" else "large" for each in CREATE]
    assert json.loads(run(*again, "--gpu", "auto", "--json"))["gpu"] == "4xa100-80gb"
    asked.clear()
    assert "no card holds" in run(*CREATE, "--gpu", "auto", "--gpus", "2", status=1)
    assert {cards for _, cards in asked} == {2}


def test_a_replica_may_have_several_cards(run, monkeypatch):
    assert "backends of this machine may use 1; ask for 0 at most" in run(
        *CREATE, "--gpu", "h100", "--gpus", "4", status=1
    )
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0, 1, 2, 3]")
    assert json.loads(run(*CREATE, "--gpu", "h100", "--gpus", "4", "--json"))["gpu"] == "4xh100"
    assert "4xh100" in run("deployment", "show", "acme", "small")
    assert "counts processors; write cpu" in run(*CREATE, "--gpus", "2", status=2)


def test_the_planner_itself_is_asked_by_its_command(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert planning.card_for(folder, calls=8) == Cards("l40s")
    assert planning.card_for(folder, calls=8, count=4) == Cards("l40s", 4)
    assert planning.plan(folder, "h100", calls=8)["tokens_per_s"] > 100
    shutil.rmtree(folder)
    with pytest.raises(LaunchError, match="refuses model: no model at "):
        planning.plan(folder, "h100", calls=8)


def test_the_cost_of_nothing_is_no_line(run):
    assert json.loads(run("usage", "cost", "--json")) == []
    assert "by 'colour'; name one of tenant, deployment" in run("usage", "cost", "--by", "colour", status=2)


def test_what_if_names_what_it_cannot_read(run):
    run(*CREATE)
    assert "write CARD=EUR" in run("usage", "cost", "--what-if", "h100", status=2)
    assert "not known to the planner" in run("usage", "cost", "--what-if", "abacus=1", status=2)
    (line,) = json.loads(run("usage", "cost", "--what-if", "h100=2.5", "--json"))
    assert (line["deployment"], line["tokens_per_second"]) == ("small", None)
    assert "the planner refuses m.gguf" in line["refusal"]


def shown_in_the_document():
    """Every command of docs/fleet.md, a line each."""
    text = (Path(__file__).parents[4] / "docs" / "fleet.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in "".join(blocks).replace("\\\n", " ").splitlines()]


def test_what_the_document_shows_works_in_its_order(run, monkeypatch):
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0, 1, 2, 3]")
    lines = shown_in_the_document()
    assert len(lines) >= 7
    for program, *arguments in lines:
        assert program == "domicile"
        run(*arguments)


def test_a_deployment_that_cannot_run_is_refused_and_not_made(run, monkeypatch):
    assert "there are no weights 'none.gguf' in the folder of models" in run(
        *[each if each != "m.gguf" else "none.gguf" for each in CREATE], status=1
    )

    def refuses(weights, card, memory, replicas):
        raise LaunchError("m.gguf cannot start on h100: the weights take 131.42 GiB of the 72.85 GiB")

    monkeypatch.setattr("gateway.installation.feasibility.check_start", refuses)
    assert "the weights take 131.42 GiB" in run(*CREATE, "--gpu", "h100", status=1)
    monkeypatch.delenv("DOMICILE__FLEET__GPUS")
    assert "list the device numbers in fleet.gpus" in run(*CREATE, "--gpu", "h100", status=1)
    assert json.loads(run("deployment", "list", "acme", "--json")) == []


def test_weights_of_a_hub_are_fetched_into_the_folder_of_models_and_pinned(run, data, monkeypatch, capfd, tmp_path):
    name = ["hf://acme/small" if each == "m.gguf" else each for each in CREATE]
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    with running(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert "the model was not fetched, for the reason above" in run(*name, status=1)
        assert "shows no model acme/small" in capfd.readouterr().err
        hub.add("acme/small", {"small.gguf": b"GGUF"})
        refused = run(*name, "--weights-sha256", "0" * 64, status=1)
        assert "the model was not fetched" in refused
        made = json.loads(run(*name, "--json"))
    assert (data / "models" / made["weights"]).read_bytes() == b"GGUF"
    assert not made["weights"].startswith("/")
    assert made["weights_sha256"] == hashlib.sha256(b"GGUF").hexdigest()


def test_the_admin_api_is_not_asked_to_fetch(monkeypatch):
    monkeypatch.setenv("DOMICILE_URL", "https://gateway.example")
    monkeypatch.setenv("DOMICILE_TOKEN", "token")
    done = CliRunner().invoke(app, ["s3://models/small" if each == "m.gguf" else each for each in CREATE])
    assert (done.exit_code, "the admin API fetches no models; run this on" in done.output) == (2, True), done.output


PAIR = ("--model", "m", "--weights", "m.gguf", "--region", "eu-fr-par", "--kind", "disaggregated")


def test_prefill_and_decode_apart_are_made_and_shown(run):
    run("deployment", "create", "acme", "pair", *PAIR, "--prefill", "2", "--decode", "3")
    shown = json.loads(run("deployment", "show", "acme", "pair", "--json"))
    assert (shown["kind"], shown["prefill"]) == ("disaggregated", 2)
    assert (shown["min_replicas"], shown["max_replicas"]) == (3, 3)
    assert "disaggregated" in run("deployment", "show", "acme", "pair")


def test_one_replica_for_prompts_is_the_default_and_those_that_answer_scale(run):
    run("deployment", "create", "acme", "pair", *PAIR, "--max", "4")
    shown = json.loads(run("deployment", "show", "acme", "pair", "--json"))
    assert (shown["prefill"], shown["min_replicas"], shown["max_replicas"]) == (1, 0, 4)


def test_each_replica_of_a_pair_may_have_several_cards(run, monkeypatch):
    asked = ("deployment", "create", "acme", "pair", *PAIR, "--gpu", "h100", "--gpus", "2")
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0, 1, 2]")
    assert "2 replicas need 2 GPUs each" in run(*asked, status=1)
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0, 1, 2, 3]")
    run(*asked)
    shown = json.loads(run("deployment", "show", "acme", "pair", "--json"))
    assert (shown["kind"], shown["gpu"]) == ("disaggregated", "2xh100")


@pytest.mark.parametrize(
    "options",
    [
        ("--decode", "2", "--max", "3"),
        ("--decode", "2", "--min", "1"),
        ("--kind", "mixed", "--prefill", "1"),
        ("--kind", "mixed", "--decode", "1"),
        ("--kind", "other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, options):
    run("deployment", "create", "acme", "pair", *PAIR, *options, status=2)
    assert json.loads(run("deployment", "list", "acme", "--json")) == []
