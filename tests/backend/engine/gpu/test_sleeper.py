"""Sleep on a card: memory goes and comes back under the same addresses, and the engine is the one it was."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.engine import Engine
from backend.engine.gpu import sleeper as gpu_sleeper
from backend.engine.gpu.memory import GpuMemory
from backend.engine.gpu.sleeper import GpuSleeper, available_host_memory, move_to_pool
from backend.engine_config import EngineConfig
from backend.errors import CannotSleep, CannotWake
from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.tiny import generate, greedy, tiny_model, write_folder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MIB = 1 << 20
KERNELS = 256 * MIB  # what loading kernels and page tables may take in between
PROMPTS = [[5, 6, 7] * 9, [1, 2, 3], [9] * 40, [4] * 200]
CARD = torch.device("cuda", 0)


def engine_of(tmp_path: Path, **changes: Any) -> Engine:
    folder = tmp_path / "model"
    if not folder.exists():
        write_folder(folder, tiny_model(3, head_dim=64, hidden_size=512, intermediate_size=1024, num_layers=3))
    settings: dict[str, Any] = {"model": str(folder), "device": "cuda", "dtype": "bfloat16", "num_blocks": 2000,
                                "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 256}  # fmt: skip
    return Engine.from_checkpoint(Checkpoint(folder), EngineConfig(**{**settings, **changes}))


def sleeper_of(engine: Engine) -> GpuSleeper:
    assert isinstance(engine._sleeper, GpuSleeper)
    return engine._sleeper


def free() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


# --- anywhere --------------------------------------------------------------------------------------------------------


def test_what_the_host_has_left_is_read_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert available_host_memory() > 1 << 20
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:      42 kB\n")
    monkeypatch.setattr(gpu_sleeper, "MEMINFO", told)
    assert available_host_memory() == 42 * 1024


def test_a_host_without_room_refuses_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sleeper, "available_host_memory", lambda: 100)
    weights = torch.ones(64)
    sleeper = GpuSleeper(None, None, [weights], None, (weights, weights))  # type: ignore[arg-type]
    with pytest.raises(CannotSleep, match="take 256 bytes of the host, and 100 are available"):
        sleeper.sleep(lambda done, total: None)
    assert weights.eq(1).all()


# --- memory ----------------------------------------------------------------------------------------------------------


@needs_gpu
def test_memory_goes_and_comes_back_under_the_same_address() -> None:
    memory = GpuMemory(CARD)
    before = free()
    tensor = memory.empty((1024, MIB // 2), torch.bfloat16)
    tensor.normal_()
    assert before - free() >= 1024 * MIB
    address = tensor.data_ptr()
    assert memory.release() == memory.size >= 1024 * MIB
    assert free() >= before - KERNELS
    memory.restore()
    memory.restore()
    assert free() <= before - 1024 * MIB
    tensor.fill_(3)
    assert tensor.data_ptr() == address
    assert tensor.eq(3).all()
    assert (tensor.float() @ torch.ones(MIB // 2, 1, device=CARD)).eq(3 * MIB // 2).all()


@needs_gpu
def test_the_last_reference_gives_the_memory_back_for_good() -> None:
    memory = GpuMemory(CARD)
    before = free()
    tensor = memory.empty((1024 * MIB,), torch.uint8)
    view = tensor[5:].view(-1)
    del tensor
    gc.collect()
    view.fill_(1)
    assert free() <= before - 1024 * MIB
    del view
    gc.collect()
    assert free() >= before - KERNELS
    assert memory.size == 0


@needs_gpu
def test_a_graph_replays_over_memory_that_was_away() -> None:
    memory = GpuMemory(CARD)
    x = memory.empty((1 << 20,), torch.float32)
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, 1, out=out)
    memory.release()
    memory.restore()
    x.fill_(41)
    graph.replay()
    assert out.eq(42).all()


@needs_gpu
def test_more_than_there_is_is_out_of_memory_and_takes_nothing() -> None:
    memory = GpuMemory(CARD)
    before = free()
    with pytest.raises(torch.OutOfMemoryError):
        memory.empty((torch.cuda.mem_get_info()[1] * 2,), torch.uint8)
    assert (memory.size, free()) == (0, before)


@needs_gpu
def test_small_tensors_stay_and_large_ones_move_for_all_who_hold_them() -> None:
    memory = GpuMemory(CARD)
    large = torch.nn.Parameter(torch.randn(2048, 512, device=CARD), requires_grad=False)
    small = torch.randn(64, device=CARD)
    held, copy, at = [large], large.detach().clone(), small.data_ptr()
    assert move_to_pool([large, small], memory) == [large]
    assert small.data_ptr() == at
    assert torch.equal(held[0], copy)
    memory.release()
    memory.restore()
    large.data.copy_(copy)
    assert torch.equal(held[0], copy)


# --- engine ----------------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize(
    "changes",
    [{}, {"graphs": False}, {"quantization": "fp8", "kv_dtype": "fp8"}, {"speculation": "ngram"},
     {"batch_invariant": True}],
    ids=str,
)  # fmt: skip
def test_awake_again_it_says_what_it_said(tmp_path: Path, changes: dict[str, Any]) -> None:
    engine = engine_of(tmp_path, **changes)
    expected = generate(engine, PROMPTS, greedy(20))
    for _ in range(3):
        before = free()
        assert engine.sleep() > 0
        assert free() > before + 4 * MIB
        engine.wake()
        assert generate(engine, PROMPTS, greedy(20)) == expected


@needs_gpu
def test_asleep_no_token_key_or_value_is_left_on_the_card_or_in_pinned_memory(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    generate(engine, PROMPTS, greedy(20))
    sleeper, runner = sleeper_of(engine), engine.runner
    keys = sleeper.cache[0]
    assert keys.abs().sum() > 0
    seen: list[float] = []
    release = sleeper.pages.release

    def looked() -> int:
        seen.append(float(sum(part.float().abs().sum() for part in sleeper.cache)))
        return release()

    sleeper.pages.release = looked  # type: ignore[method-assign]
    engine.sleep()
    assert seen == [0.0]
    tables = runner.tables  # type: ignore[attr-defined]
    assert tables._memory.abs().sum() == 0
    assert all(buffer._host.abs().sum() == 0 for buffer in tables._buffers)
    assert all(ids.abs().sum() == 0 for ids in runner._landing._places)  # type: ignore[attr-defined]
    engine.wake()
    assert keys.float().abs().sum() == 0


@needs_gpu
def test_a_card_that_others_have_filled_keeps_it_asleep_until_there_is_room(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    expected = generate(engine, PROMPTS, greedy(20))
    engine.sleep()
    hog = torch.empty(torch.cuda.mem_get_info()[0] - 4 * MIB, dtype=torch.uint8, device=CARD)
    with pytest.raises(CannotWake, match=r"the card does not have the .* bytes to wake with"):
        engine.wake()
    assert engine.asleep
    del hog
    torch.cuda.empty_cache()
    engine.wake()
    assert generate(engine, PROMPTS, greedy(20)) == expected
