"""What could not run is refused when it is asked for: by this machine, its folder of models, and the planner itself."""

import json
import shutil
from datetime import UTC, datetime

import pytest

from gateway.configuration.settings import load_settings
from gateway.database.errors import Invalid
from gateway.installation.feasibility import Feasibility
from gateway.installation.installation import Installation
from gateway.records.fleet import DeploymentRecord
from regions.fleet.cards import Cards
from regions.fleet.deployment import Deployment, Scale
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import open_control

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
LARGE = SMALL | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a small model with weights and tokenizer."""
    return write_folder(tmp_path_factory.mktemp("whole") / "small", tiny_model())


@pytest.fixture
def feasibility(tmp_path, whole):
    open_control(tmp_path / "data")
    models = tmp_path / "data" / "models"
    for name, config in {
        "large": LARGE,
        "strange": SMALL | {"model_type": "oracle", "architectures": ["Oracle"]},
    }.items():
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text(json.dumps(config))
    shutil.copytree(whole, models / "small")
    shutil.copytree(whole, models / "half")
    weights = models / "half" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    shutil.copytree(whole, models / "mute")
    (models / "mute" / "tokenizer.json").unlink()

    def made(**fleet):
        settings = load_settings(data=tmp_path / "data", fleet={"gpus": [0], **fleet})
        return Feasibility(Installation.open(tmp_path / "data"), settings)

    return made


def wish(weights, gpu="cpu", **figures):
    return Deployment(
        tenant="acme", id="deploy", model="m", weights=weights, regions=("eu-fr-par",), gpu=gpu, **figures
    )


@pytest.fixture
def check(feasibility):
    def checked(weights, gpu, figures=None, **fleet):
        feasibility(**fleet).check(wish(weights, gpu, **(figures or {})))

    return checked


@pytest.mark.parametrize(
    ("weights", "gpu", "fleet", "said"),
    [
        ("large", "l40s", {}, "large cannot start on l40s: the weights take 131.42 GiB"),
        ("large", "h100", {}, "on 2 cards it fits (--gpus 2)"),
        ("large", "2xl40s", {"gpus": [0, 1]}, "on 4 cards it fits (--gpus 4)"),
        ("large", "2xh100", {"gpus": [0, 1]}, "large cannot start on 2xh100: no weights in large"),  # and nothing else
        ("large", "2xh100", {}, "1 replicas need 2 GPUs each, and backends of this machine may use 1"),
        ("small", "abacus-1", {}, "no card 'abacus-1'; known are "),
        ("strange", "cpu", {}, "architecture 'Oracle' is not one of"),
        ("none", "cpu", {}, "there are no weights 'none' in the folder of models"),
        ("none", "cpu", {"launcher": "kubernetes"}, "there are no weights 'none'"),
        ("small", "h100", {"gpus": []}, "may use no GPU, so none can start on h100"),
        ("half", "cpu", {}, "half cannot start on cpu: model.safetensors: tensor "),
        ("half", "h100", {}, "half cannot start on h100: model.safetensors: tensor "),
        ("mute", "cpu", {}, "mute cannot start on cpu: no tokenizer.json in mute"),
        (
            "small",
            "h100",
            {"figures": {"max_replicas": 2}},
            "2 replicas need a GPU each, and backends of this machine may use 1; ask for 1 at most",
        ),
    ],
)
def test_an_impossible_deployment_is_refused_with_the_reason_and_without_a_path(
    check, tmp_path, weights, gpu, fleet, said
):
    with pytest.raises(Invalid) as refused:
        check(weights, gpu, **fleet)
    assert said in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_a_possible_one_is_not_also_where_its_whole_context_fits_on_no_card(check):
    check("small", "l40s")
    check("small", "cpu")


def test_what_a_cluster_alone_can_know_is_left_to_it(check, tmp_path):
    check("none", "h100", launcher="kubernetes", gpus=[], models=tmp_path / "elsewhere")


def test_more_replicas_than_the_machine_has_memory_for_are_refused(check, monkeypatch):
    monkeypatch.setattr("gateway.installation.feasibility._memory", lambda: 1 << 20)
    check("small", "cpu", figures={"max_replicas": 2})
    with pytest.raises(Invalid, match=r"the weights of 200 replicas take .* ask for \d+ at most"):
        check("small", "cpu", figures={"max_replicas": 200})


def test_figures_that_ask_for_more_than_could_run_are_refused_and_lower_ones_never(feasibility):
    known = wish("small", "h100")
    record = DeploymentRecord(
        cell="eu-1",
        created_at=datetime.now(UTC),
        deleted_at=None,
        eur_per_hour=0.0,
        **known.model_dump(exclude={"micro_eur_per_hour"}),
    )
    with pytest.raises(Invalid, match="2 replicas need a GPU each"):
        feasibility().check_scale(record, Scale(max_replicas=2))
    feasibility(gpus=[0, 1]).check_scale(record, Scale(max_replicas=2))
    gone = record.model_copy(update={"weights": "none", "max_replicas": 2})
    feasibility().check_scale(gone, Scale(max_replicas=1))


# --- the planner's prediction ----------------------------------------------------------------------------------------

ASKED = {"calls": 4, "context": 2048, "quantization": None}


def test_a_prediction_is_the_planners_for_cards_context_and_format(feasibility):
    one = feasibility().plan("small", Cards.parse("h100"), ASKED)
    assert one["refusal"] is None and one["tokens_per_s"] > 0
    assert (one["card"].split()[1], one["cards"], one["context"], one["concurrency"]) == ("H100", 1, 2048, 4)
    divided = feasibility().plan("large", Cards.parse("2xh100"), ASKED | {"quantization": "fp8"})
    assert divided["cards"] == 2 and divided["refusal"] is None


def test_a_prediction_of_what_does_not_fit_says_what_would_do(feasibility):
    made = feasibility().plan("large", Cards.parse("l40s"), ASKED)
    assert "on 4 cards it fits (cards 4)" in made["refusal"] and made["fewest_cards"] == 4


@pytest.mark.parametrize(
    ("weights", "asked", "said"),
    [
        ("none-such", ASKED, "there are no weights 'none-such'"),
        ("strange", ASKED, "the planner refuses strange: "),
        ("small", ASKED | {"context": 10**8}, "is beyond the model's, 4096; lower context"),
    ],
)
def test_where_the_planner_can_say_nothing_it_says_why_without_the_path_of_the_folder(
    feasibility, tmp_path, weights, asked, said
):
    with pytest.raises(Invalid) as refused:
        feasibility().plan(weights, Cards.parse("h100"), asked)
    assert said in str(refused.value) and str(tmp_path) not in str(refused.value)
