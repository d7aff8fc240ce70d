"""What could not run is refused when it is asked for: by this machine, its folder of models, and the planner itself."""

import json

import pytest

from gateway.configuration.settings import load_settings
from gateway.database.errors import Invalid
from gateway.installation.feasibility import Feasibility
from gateway.installation.installation import Installation
from regions.fleet.deployment import Deployment
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


@pytest.fixture
def check(tmp_path):
    open_control(tmp_path / "data")
    models = tmp_path / "data" / "models"
    for name, config in {
        "small": SMALL,
        "large": LARGE,
        "strange": SMALL | {"model_type": "oracle", "architectures": ["Oracle"]},
    }.items():
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text(json.dumps(config))

    def checked(weights, gpu, **fleet):
        settings = load_settings(data=tmp_path / "data", fleet={"gpus": [0], **fleet})
        wanted = Deployment(tenant="acme", id="deploy", model="m", weights=weights, regions=("eu-fr-par",), gpu=gpu)
        Feasibility(Installation.open(tmp_path / "data"), settings).check(wanted)

    return checked


@pytest.mark.parametrize(
    ("weights", "gpu", "fleet", "said"),
    [
        ("large", "l40s", {}, "large cannot start on l40s: the weights take 131.42 GiB"),
        ("small", "abacus-1", {}, "no card 'abacus-1'; known are "),
        ("strange", "cpu", {}, "architecture 'Oracle' is not one of"),
        ("none", "cpu", {}, "there are no weights 'none' in the folder of models"),
        ("none", "cpu", {"launcher": "kubernetes"}, "there are no weights 'none'"),
        ("small", "h100", {"gpus": []}, "may use no GPU, so none can start on h100"),
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
