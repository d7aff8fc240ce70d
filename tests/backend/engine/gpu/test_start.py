"""Bringing an engine up on a GPU: what is refused anywhere, what fits where there is one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.engine import Engine
from backend.engine.gpu.start import UNITS, may_tune, require_gpu, require_units
from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import ModelConfig
from backend.models.families import mixtral
from backend.models.families.family import Experts
from backend.planner.memory import weight_bytes
from backend.quantization import FORMATS, of_name
from backend.quantization.format import Quantization
from tests.backend.quantization.test_int4_checkpoints import write as write_int4
from tests.backend.tiny import generate, greedy, tiny_config, tiny_engine, tiny_model, write_folder
from tests.backend.tiny_families import FAMILIES, tiny_family, write_family

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


GIB = 1 << 30


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GiB of which 2 are taken, as far as anyone asks before loading."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (78 * GIB, 80 * GIB))


def on_gpu(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": "", "device": "cuda", "dtype": "bfloat16", **changes})


def test_a_gpu_that_is_not_there_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device 'cuda' was asked for, and there is no CUDA device"):
        require_gpu(on_gpu(), tiny_config())


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        (
            {"block_size": 8},
            {},
            "block_size 8 cannot be used on a GPU; set --block-size to a power of two of at least 16",
        ),
        ({"block_size": 24}, {}, "block_size 24 cannot be used on a GPU; set"),
        ({}, {"head_dim": 8}, "heads 8 wide cannot be computed on a GPU; use a model with heads of 16 to 256"),
        ({}, {"head_dim": 512}, "heads 512 wide"),
        ({"quantization": "fp8", "dtype": "float16"}, {}, "goes with dtype bfloat16, not float16"),
        ({"quantization": "fp8"}, {"intermediate_size": 100}, "multiples of 16"),
        ({"gpu_memory": 0.02}, {}, "the weights take"),
        ({"num_blocks": 1 << 30}, {}, r"\d+ blocks \(\d+ tokens\) would fit"),
        ({"quantization": "fp8"}, {"experts": Experts(4, 2, 40, mixtral.NAMES)}, "multiples of 16"),
    ],
    ids=str,
)
def test_what_the_card_or_its_kernels_cannot_do_is_refused_before_loading(
    changes: dict[str, Any], shape: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_gpu(on_gpu(**changes), tiny_config(**{"head_dim": 16, **shape}))


@pytest.mark.usefixtures("card")
def test_an_8b_model_fits_in_bfloat16_and_not_in_float32_beside_two_thirds_of_the_card() -> None:
    llama = ModelConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position=8192,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
    )
    assert weight_bytes(llama, "bfloat16", None) == 2 * 8_030_261_248  # the published count of parameters
    require_gpu(on_gpu(gpu_memory=0.3), llama)
    with pytest.raises(ConfigError, match=f"the weights take {4 * 8_030_261_248} bytes"):
        require_gpu(on_gpu(gpu_memory=0.3, dtype="float32"), llama)


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
@pytest.mark.parametrize(
    "changes",
    [{}, {"graphs": False}, {"speculation": "ngram"}, {"batch_invariant": True}, {"kv_dtype": "fp8"},
     {"quantization": "fp8", "dtype": "bfloat16"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_departs_from_llama_is_served_from_its_checkpoint_and_sleeps(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny_family(name, 3)
    folder = write_family(tmp_path / name, name, model)
    config = on_gpu(
        model=str(folder), **{"dtype": "float32", "num_blocks": 200, "max_model_len": 256, "max_num_seqs": 8, **changes}
    )
    engine = Engine.from_checkpoint(Checkpoint(folder), config)
    prompts = [[1, 2, 3], [5] * 40, list(range(60))]
    said = generate(engine, prompts, greedy(20))
    if not config.kv_dtype and not config.quantization:
        assert said == generate(tiny_engine(model), prompts, greedy(20))
    assert engine.sleep() > 0
    engine.wake()
    assert generate(engine, prompts, greedy(20)) == said
    assert engine.scrub() == 0


@needs_gpu
@pytest.mark.parametrize("changes", [{}, {"graphs": False}, {"kv_dtype": "fp8"}, {"speculation": "ngram"}], ids=str)
@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_a_checkpoint_of_four_bits_is_served_packed_and_sleeps(
    layout: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    write_int4(tmp_path, layout)
    settings = {"num_blocks": 200, "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 512, **changes}
    config = on_gpu(model=str(tmp_path), **settings)
    engine = Engine.from_checkpoint(Checkpoint(tmp_path), config)
    prompts = [[1, 2, 3], [5] * 40, list(range(60)), [7] * 250]
    said = generate(engine, prompts, greedy(5))
    assert engine.sleep() > 0
    engine.wake()
    assert generate(engine, prompts, greedy(5)) == said
    assert engine.scrub() == 0


@needs_gpu
@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_without_quantization_such_a_checkpoint_gives_the_cpus_tokens(layout: str, tmp_path: Path) -> None:
    exact = write_int4(tmp_path, layout)
    config = on_gpu(model=str(tmp_path), quantization="none", dtype="float32", num_blocks=200, max_model_len=256)
    prompts = [[1, 2, 3], [5] * 40, list(range(60))]
    said = generate(Engine.from_checkpoint(Checkpoint(tmp_path), config), prompts, greedy(20))
    assert said == generate(tiny_engine(exact), prompts, greedy(20))


@needs_gpu
def test_a_share_that_holds_no_sequence_is_refused_with_the_number(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tiny_model(head_dim=16))
    with pytest.raises(ConfigError, match="needs 256 KV blocks"):
        Engine.from_checkpoint(
            Checkpoint(folder), EngineConfig(model=str(folder), device="cuda", num_blocks=4, max_model_len=4096)
        )


@needs_gpu
def test_more_blocks_than_memory_are_refused_with_the_number_that_fits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tiny_model(head_dim=16))
    with pytest.raises(ConfigError, match="would fit"):
        Engine.from_checkpoint(Checkpoint(folder), EngineConfig(model=str(folder), device="cuda", num_blocks=1 << 30))


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_weights_that_a_cards_tensor_cores_do_not_have_are_refused_naming_what_would_do(format: Quantization) -> None:
    config = EngineConfig(model="m", device="cuda")
    for newer in ((9, 0), (10, 0), (12, 0)):
        require_units(format, config, newer)
    if UNITS.get(format.unit or "", (0, 0)) <= (8, 0):
        require_units(format, config, (8, 0))
        return
    with pytest.raises(ConfigError, match=f"cannot multiply {format.name} weights; choose --quantization none"):
        require_units(format, config, (8, 0))


def test_an_fp8_cache_on_a_card_without_fp8_and_a_card_older_than_bfloat16_are_refused() -> None:
    config = EngineConfig(model="m", device="cuda", kv_dtype="fp8")
    require_units(of_name("none"), config, (8, 9))
    with pytest.raises(ConfigError, match="no FP8, which the KV cache was to be kept in; leave --kv-dtype out"):
        require_units(of_name("none"), config, (8, 6))
    with pytest.raises(ConfigError, match=r"compute capability 7\.5 cannot run the kernels; use one of 8\.0"):
        require_units(of_name("none"), EngineConfig(model="m", device="cuda"), (7, 5))


@pytest.mark.parametrize(
    "changes", [{"self_tuning": False}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2},
                {"batch_invariant": True}], ids=str,
)  # fmt: skip
def test_launch_choices_are_not_a_hosts_own_where_they_must_be_those_of_others(changes: dict[str, Any]) -> None:
    assert may_tune(EngineConfig(model="m", device="cuda"))
    assert not may_tune(EngineConfig(model="m", device="cuda", **changes))
