"""Bringing an engine up on a GPU: what is refused anywhere, what fits where there is one."""

from pathlib import Path

import pytest
import torch

from backend.engine.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.gpu import require_gpu
from backend.errors import ConfigError
from backend.models.checkpoint import Checkpoint
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model, write_folder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_gpu_that_is_not_there_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device 'cuda' was asked for, and there is no CUDA device"):
        require_gpu(EngineConfig(model="", device="cuda"))


@pytest.mark.parametrize("block_size", [1, 8, 24, 100])
def test_block_sizes_that_the_kernels_do_not_read_are_refused(monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=f"a power of two, at least 16, not {block_size}"):
        require_gpu(EngineConfig(model="", device="cuda", block_size=block_size))


@needs_gpu
def test_an_engine_from_a_checkpoint_takes_its_share_of_the_card_and_gives_the_cpus_tokens(tmp_path: Path) -> None:
    model = tiny_model(head_dim=16)
    folder = write_folder(tmp_path / "model", model)
    config = EngineConfig(model=str(folder), device="cuda", gpu_memory=0.3, max_model_len=128)
    before = torch.cuda.mem_get_info()[0]
    engine = Engine.from_checkpoint(Checkpoint(folder), config)
    taken, total = before - torch.cuda.mem_get_info()[0], torch.cuda.mem_get_info()[1]
    assert 0.2 * total < taken < 0.32 * total
    prompts = [[1, 2, 3], [5] * 40, list(range(60))]
    assert generate(engine, prompts, greedy(20)) == generate(tiny_engine(model), prompts, greedy(20))


@needs_gpu
def test_a_share_that_holds_no_sequence_is_refused_with_the_number(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tiny_model(head_dim=16))
    with pytest.raises(ConfigError, match="needs 256 KV blocks"):
        Engine.from_checkpoint(
            Checkpoint(folder), EngineConfig(model=str(folder), device="cuda", num_blocks=4, max_model_len=4096)
        )
