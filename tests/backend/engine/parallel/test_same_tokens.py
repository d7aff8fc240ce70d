"""In deterministic mode one, two and four ranks give the same tokens and the same bits of log probabilities, however
the model is divided: random small models of each family, greedily and drawn, with forks, penalties and biases."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.engine.parallel.computing import computing
from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import ModelConfig
from backend.models.families import mixtral, qwen3_moe
from backend.models.families.family import Experts
from backend.models.sharding import parts_of_rank
from backend.parallel.group import SINGLE_ORDERED, Alone, DistributedGroup, ParallelGroup
from backend.parallel.joining import stages_of
from backend.parallel.shard import Shard, Stage
from backend.quantization import of_name
from backend.quantization.none import NONE
from tests.backend.parallel.crew import Crews, device_for
from tests.backend.tiny import greedy, tiny_config, tiny_model, write_folder
from tests.backend.tiny_families import FAMILIES, tiny_family, write_family

pytestmark = pytest.mark.skipif(device_for(1) == "cuda", reason="the runner of a CPU, token by token")

SIZES = (2, 4)
MIXTURES = ("mixtral", "qwen3-moe")
PROMPTS = [[3, 5, 8], [3 + (7 * i) % 290 for i in range(5)]]
PENALISED = {
    "frequency_penalty": 0.4, "repetition_penalty": 1.3, "logit_bias": ((9, 2.0), (200, -1.5)), "min_tokens": 3
}  # fmt: skip
REQUESTS = [
    greedy(2, logprobs=4, prompt_logprobs=2),
    SamplingParams(max_tokens=3, temperature=0.9, top_p=0.9, seed=5, ignore_eos=True, logprobs=2, commits=True),
    SamplingParams(max_tokens=3, temperature=1.3, top_k=40, min_p=0.01, seed=8, ignore_eos=True, **PENALISED),
]
Told = list[tuple[int, int | None, TokenLogprobs | None, list[TokenLogprobs] | None, bytes | None]]


def shape_of(name: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A random shape of that family that four ranks divide, and what its config.json says beside it."""
    rng = random.Random(f"{name} {seed}")
    heads, kv_heads = rng.choice([(4, 4), (8, 2), (8, 4), (16, 1), (4, 1)])
    shape: dict[str, Any] = {
        "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": rng.choice([6, 16, 22]), "num_layers": 2,
        "hidden_size": rng.choice([40, 64, 150]), "intermediate_size": 8 * rng.randrange(3, 30),
        "vocab_size": rng.choice([301, 320, 467]), "tie_word_embeddings": rng.random() < 0.5,
    }  # fmt: skip
    if name == "mixtral":
        return shape | {"experts": Experts(4, 2, shape["intermediate_size"], mixtral.NAMES)}, {
            "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2,
        }  # fmt: skip
    if name == "qwen3-moe":
        return shape | {"qk_norm": True, "experts": Experts(6, 3, 24, qwen3_moe.NAMES, dense_layers=frozenset({1}))}, {
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "norm_topk_prob": True, "mlp_only_layers": [1],
        }  # fmt: skip
    said = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}[name]
    more = {"original_max_position_embeddings": 4096} if name == "phi3" else {}
    traits = {"qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}, "phi3": {"fused_names": True}}.get(name, {})
    return shape | traits, {"architectures": [f"{said}ForCausalLM"], **more}


def written(folder: Path, name: str, seed: int) -> Path:
    if name in FAMILIES:
        return write_family(folder, name, tiny_family(name, seed))
    shape, said = shape_of(name, seed)
    return write_folder(folder, tiny_model(seed, **shape), **said)


def told(group: ParallelGroup, folder: Path, dtype: str, stages: int = 1, spare: int | None = None) -> Told:
    """All that an engine of these ranks says of all requests, run together with a fork of each. stages: that the crew's
    ranks are arranged in. spare: as in `ParallelGroup`."""
    torch.set_num_threads(1)
    config = EngineConfig(
        model=str(folder),
        num_blocks=64,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        batch_invariant=True,
        dtype=dtype,
        threads=1,
    )
    group = arranged(group, stages, spare)
    made = computing(Checkpoint(folder), config, group, lambda stage, done, total: None)
    engine = Engine(made.model, config, made.cache, runner=made.runner)
    for i, params in enumerate(REQUESTS):
        prompt = [token % made.model.config.vocab_size for token in PROMPTS[i % 2]]
        engine.add(10 * i, prompt, params)
        if params.temperature:
            engine.add(10 * i + 1, prompt, params, leader=10 * i)
    found: Told = []
    while engine.has_work:
        found += [(item.id, item.token, item.logprobs, item.prompt, item.activations) for item in engine.step()]
        if spare and len(found) > 6:  # copies move while there are sequences, which an engine leaves to idle times
            made.model.rebalance(1)
    return found


def arranged(group: ParallelGroup, stages: int, spare: int | None, *, ordered: bool = True) -> ParallelGroup:
    """A group of some of a crew's ranks, in so many stages."""
    if not isinstance(group, DistributedGroup):
        return group
    size, place = group.size // stages, torch.device("cpu")
    shard, stage = Shard(group.shard.rank % size, size), Stage(group.shard.rank // size, stages)
    own, pipeline = stages_of(shard, stage, place)
    if shard.alone:
        return Alone(ordered=ordered, pipeline=pipeline)
    return DistributedGroup(shard, place, ordered=ordered, pipeline=pipeline, group=own, spare=spare)


@pytest.mark.parametrize(
    ("name", "seed", "dtype"),
    [
        *((name, 3, "float32") for name in ("llama", "qwen2", "qwen3", "phi3", *MIXTURES, *FAMILIES)),
        ("llama", 4, "bfloat16"), ("qwen3-moe", 4, "bfloat16"),
    ],
    ids=str,
)  # fmt: skip
def test_any_way_to_divide_a_model_says_the_same_to_the_last_bit(
    crews: Crews, tmp_path: Path, name: str, seed: int, dtype: str
) -> None:
    folder = written(tmp_path / "model", name, seed)
    alone = told(SINGLE_ORDERED, folder, dtype)
    assert len({token for _, token, *_ in alone}) > 1
    assert sum(row is not None for *_, row in alone) == 6  # of the request that commits and its fork
    ways: list[tuple[int, int, int | None]] = [(2, 1, None), (4, 1, None), (4, 2, None)]
    if name in MIXTURES:
        ways += [(2, 1, 0), (4, 1, 1), (4, 2, 1)]
    for size, stages, spare in ways:
        for rank in crews[size].run(told, folder, dtype, stages, spare):
            assert rank == alone, (size, stages, spare)


def test_stages_of_one_rank_each_say_what_one_rank_says(crews: Crews, tmp_path: Path) -> None:
    folder = written(tmp_path / "model", "smollm3", 5)
    alone = told(SINGLE_ORDERED, folder, "float32")
    for size in SIZES:
        for rank in crews[size].run(told, folder, "float32", size):
            assert rank == alone


def test_products_are_not_the_same_where_sums_are_not_ordered(crews: Crews, tmp_path: Path) -> None:
    """So that the test above could fail."""
    folder = written(tmp_path / "model", "llama", 1)
    found = crews[2].run(unordered, folder)
    assert found[0] == found[1] != told(SINGLE_ORDERED, folder, "float32")


def unordered(group: ParallelGroup, folder: Path) -> Told:
    config = EngineConfig(model=str(folder), num_blocks=64, max_num_seqs=8, max_num_batched_tokens=32, threads=1)
    made = computing(Checkpoint(folder), config, group, lambda stage, done, total: None)
    engine = Engine(made.model, config, made.cache, runner=made.runner)
    for i, params in enumerate(REQUESTS):
        engine.add(10 * i, PROMPTS[i % 2], params)
    found: Told = []
    while engine.has_work:
        found += [(item.id, item.token, item.logprobs, item.prompt, item.activations) for item in engine.step()]
    return found


@pytest.mark.parametrize(
    ("changes", "format", "parts"),
    [
        ({"num_heads": 8, "num_kv_heads": 2, "intermediate_size": 96}, "none", [8, 4, 2, 1]),
        ({"num_heads": 12, "num_kv_heads": 4, "intermediate_size": 96}, "none", [4, 2, 1, 1]),
        ({"num_heads": 9, "num_kv_heads": 3, "intermediate_size": 96}, "none", [1, 1, 1, 1]),
        ({"num_heads": 8, "num_kv_heads": 8, "head_dim": 64, "intermediate_size": 512}, "fp8-block", [4, 2, 1, 1]),
    ],
    ids=str,
)
def test_ranks_compute_together_the_parts_of_the_largest_power_of_two_that_divides_a_model(
    changes: dict[str, Any], format: str, parts: list[int]
) -> None:
    model: ModelConfig = tiny_config(**changes)
    chosen = NONE if format == "none" else of_name(format)
    assert [parts_of_rank(model, size, chosen) for size in (1, 2, 4, 8)] == parts
    assert parts_of_rank(model, 3, chosen) == 1
