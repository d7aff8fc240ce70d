from typing import Any

import pytest

from backend.engine_config import EngineConfig, of_all_stages, size_cache
from backend.errors import ConfigError
from tests.backend.tiny import tiny_config

BLOCK_BYTES = 16 * 2 * 2 * 2 * 8 * 4  # tokens, K and V, layers, KV heads, head_dim, float32


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 0},
        {"max_num_seqs": -1},
        {"kv_memory": 0},
        {"max_waiting": -1},
        {"num_blocks": 0},
        {"threads": 0},
        {"max_num_batched_tokens": 8, "max_num_seqs": 9},
        {"step_timeout_s": 0},
        {"tensor_parallel_size": 0},
        {"pipeline_parallel_size": 0},
        {"redundant_experts": -1},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        EngineConfig(model="", **changes)


def test_one_card_by_its_number_is_not_several() -> None:
    with pytest.raises(ConfigError, match=r"'cuda:1' names one card of 2; set --device cuda.*CUDA_VISIBLE_DEVICES"):
        EngineConfig(model="", device="cuda:1", tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline_parallel_size": 2, "device": "cuda:1"}, "names one card of 2"),
        ({"expert_parallel": True}, "--tensor-parallel-size, which is 1; raise it, or leave --expert-parallel out"),
        ({"redundant_experts": 1, "tensor_parallel_size": 2}, "add --expert-parallel, or leave --redundant-experts"),
    ],
)
def test_ways_to_divide_a_model_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(model="", **changes)


def test_ranks_are_those_of_all_stages() -> None:
    config = EngineConfig(model="", tensor_parallel_size=2, pipeline_parallel_size=3, expert_parallel=True)
    assert (config.ranks, config.spare_experts) == (6, 0)
    assert EngineConfig(model="").spare_experts is None
    assert EngineConfig(model="").captures and not config.captures


def test_all_stages_have_the_blocks_of_the_one_with_the_least_room() -> None:
    config, model = EngineConfig(model="", kv_memory=BLOCK_BYTES * 10), tiny_config()
    own = size_cache(config, model, 4)
    assert of_all_stages(own, config, model, lambda number: number, 4) == own
    less = of_all_stages(own, config, model, lambda number: number - 4, 4)
    assert (less.num_blocks, less.max_model_len) == (6, 96)


def test_memory_is_turned_into_whole_blocks() -> None:
    size = size_cache(EngineConfig(model="", kv_memory=BLOCK_BYTES * 10 + 5), tiny_config(), 4)
    assert (size.num_blocks, size.max_model_len) == (10, 160)


def test_the_context_is_the_models_when_the_cache_holds_more() -> None:
    assert size_cache(EngineConfig(model="", num_blocks=1000), tiny_config(), 4).max_model_len == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_memory": BLOCK_BYTES - 1}, f"one takes {BLOCK_BYTES}"),
        ({"max_model_len": 4097}, "beyond the model's context, 4096"),
        ({"num_blocks": 2, "max_model_len": 33}, "needs 3 KV blocks .* lower max_model_len to 32"),
    ],
)
def test_a_cache_that_cannot_be_names_the_number_that_could(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        size_cache(EngineConfig(model="", **changes), tiny_config(), 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu_memory": 0.0}, "gpu_memory 0.0 is not a share of the card; set"),
        ({"gpu_memory": 1.5}, "gpu_memory 1.5 is not a share of the card; set"),
        ({"load_format": "torn"}, "load_format 'torn' is not one of auto, dummy"),
        ({"quantization": "int3", "device": "cuda"}, "quantization 'int3' is not one of none, fp8"),
        ({"quantization": "fp8"}, "quantization fp8 needs a GPU"),
        ({"kv_dtype": "fp8"}, "kv_dtype fp8 needs a GPU"),
    ],
    ids=str,
)
def test_gpu_settings_that_cannot_work_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(model="", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_invariant": True, "device": "cuda", "quantization": "fp8"}, "does not go with fp8"),
        (
            {"speculation": "eagle"},
            "speculation 'eagle' is not known; set --speculation to one of ngram, model, eagle3, mtp",
        ),
    ],
    ids=str,
)
def test_modes_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**{"model": "", **changes})
