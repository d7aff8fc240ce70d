"""``domicile plan`` beyond Llama and its sisters: what no plan is made of, and what is planned like the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from tests.backend.embedding_models import write_decoder, write_encoder
from tests.backend.tiny_families import FAMILIES, SHAPE

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize("write", [write_decoder, write_encoder])
def test_a_model_of_vectors_is_refused_by_name(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    result = CliRunner().invoke(app, ["plan", "--model", str(tmp_path)])
    assert result.exit_code == 1
    assert "this model makes embeddings or scores; plans are of models that write text" in result.output


def test_a_mixture_of_experts_is_planned_like_the_rest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    result = CliRunner().invoke(app, ["plan", "--model", str(tmp_path), "--json"])
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["parameters"] - made["active_parameters"] == 2 * 2 * 3 * 64 * 128  # two experts of four, two layers


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_departs_from_llama_is_planned_like_the_rest(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, **FAMILIES[name]}))
    result = CliRunner().invoke(app, ["plan", "--model", str(tmp_path), "--json"])
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    layers = {**SHAPE, **FAMILIES[name]}["num_hidden_layers"]
    assert made["kv_bytes_per_token"] == 2 * layers * 2 * {**SHAPE, **FAMILIES[name]}["head_dim"] * 2
    assert made["refusal"] is None
