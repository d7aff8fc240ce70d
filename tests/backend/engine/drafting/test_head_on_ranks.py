"""A head on the first of two ranks: the tokens are those of one rank without guesses."""

from pathlib import Path
from typing import Any

import pytest

from backend.engine.core.progress import Stats
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from tests.backend.parallel.hosted import HostedEngine
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model, write_folder
from tests.backend.tiny_deepseek import stored_tensors, tiny_deepseek, write_deepseek
from tests.backend.tiny_heads import eagle3, mtp, stored, tiny_head, trained, write_eagle3

PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(length)] for k, length in enumerate((1, 20, 70))]
READS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}


def guessing_without_end(engine: Engine) -> None:
    """Nobody asks what guesses save."""
    assert engine._speculation is not None
    engine._speculation.benefit = None


def figures(engine: Engine) -> Stats:
    return engine.stats


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_ranks_with_a_head_say_what_one_says_without(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 64, "threads": 1, "speculation": kind,
        "draft_memory": 1 << 20, "tensor_parallel_size": 2,
    }  # fmt: skip
    model = tiny_deepseek("v3", 4) if kind == "mtp" else tiny_model(head_dim=16, num_heads=4, num_layers=4)
    expected = generate(tiny_engine(model), PROMPTS, greedy(16))
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, expected, strict=True)]
    if kind == "mtp":
        tensors = {name: t for name, t in stored_tensors(model).items() if not name.endswith("eh_proj.weight")}
        head = trained(mtp(model.config), model, texts, 40)
        folder = write_deepseek(tmp_path / "base", "v3", tensors | stored(head))
    else:
        folder = write_folder(tmp_path / "base", model)
        head = trained(tiny_head(eagle3(tmp_path / "o", model.config, draft_vocab_size=320, **READS)), model, texts, 40)
        settings["draft_model"] = str(write_eagle3(tmp_path / "head", head, model.config, tables=False, **READS))
    engine = HostedEngine(EngineConfig(model=str(folder), **settings))
    try:
        engine.ask(guessing_without_end)
        assert engine.ask(generate, PROMPTS, greedy(16)) == expected
        found: Stats = engine.ask(figures)
        assert found.draft_tokens_accepted > 0
        assert engine.ask(Engine.sleep) > 0
        engine.ask(Engine.wake)
        assert engine.ask(generate, PROMPTS, greedy(16)) == expected
        assert engine.ask(Engine.scrub) == 0
    finally:
        engine.close()
