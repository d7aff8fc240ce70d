"""Whether a backend could start: weights that do not fit are refused; a long context is not, since it is cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import BackendError, ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.planner.cards import CARDS
from backend.planner.start import start_refusal
from bench.engine.planner_check import MODELS

LLAMA_70B = MODELS["llama-8b"] | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip


def checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder)


@pytest.mark.parametrize("card", sorted(CARDS))
def test_weights_decide_and_the_context_does_not(tmp_path: Path, card: str) -> None:
    long = MODELS["llama-8b"] | {"max_position_embeddings": 10_000_000}
    fits = CARDS[card].memory > 24 << 30  # beside tables of so many positions
    assert (start_refusal(checkpoint(tmp_path, long), card) is None) == fits
    refusal = start_refusal(checkpoint(tmp_path, LLAMA_70B), card)
    assert (refusal is None) == (CARDS[card].memory > 150 << 30)
    assert refusal is None or "the weights take" in refusal


def test_a_processor_is_limited_by_the_memory_of_its_machine(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, MODELS["llama-8b"])
    assert start_refusal(model, "cpu") is None
    assert start_refusal(model, "cpu", 64 << 30) is None
    assert "the machine has 8.00 GiB" in (start_refusal(model, "cpu", 8 << 30) or "")


def test_replicas_share_the_memory_of_their_machine(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, MODELS["llama-8b"])
    assert start_refusal(model, "cpu", 64 << 30, replicas=2) is None
    refusal = start_refusal(model, "cpu", 64 << 30, replicas=3) or ""
    assert "the weights of 3 replicas take 89.75 GiB" in refusal and "ask for 2 at most" in refusal
    assert "ask for" not in (start_refusal(model, "cpu", 8 << 30, replicas=3) or "")


def test_a_card_that_nobody_knows_and_a_model_that_nobody_reads_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no card 'b9000'; known are"):
        start_refusal(checkpoint(tmp_path, MODELS["llama-8b"]), "b9000")
    with pytest.raises(BackendError, match="Oracle"):
        start_refusal(checkpoint(tmp_path, MODELS["llama-8b"] | {"architectures": ["Oracle"]}), "h100")
