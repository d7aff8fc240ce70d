"""A rank's share of a model: parts, stages and whole experts, and what cannot be divided."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.errors import ConfigError, CorruptCheckpoint
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder
from backend.models.families import mixtral
from backend.models.families.family import Experts, Variant
from backend.models.loader import load_model
from backend.models.sharding import of_rank, of_stage
from backend.parallel.group import Alone, DistributedGroup
from backend.parallel.pipeline_stages import ONE_STAGE, OneStage
from backend.parallel.shard import Shard, Stage
from backend.planner.memory import weight_bytes
from tests.backend.tiny import tiny_config, tiny_model, write_folder

EXPERTS = Experts(6, 2, 48, mixtral.NAMES, dense_layers=frozenset({0, 3}))


def test_stages_are_all_layers_each_once_and_the_first_have_what_is_left_over() -> None:
    for total in range(1, 20):
        for count in range(1, total + 1):
            bounds = [Stage(index, count).layers(total) for index in range(count)]
            assert [layer for begin, end in bounds for layer in range(begin, end)] == list(range(total))
            sizes = [end - begin for begin, end in bounds]
            assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1 and sizes[0] == max(sizes)


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_a_stage_outside_its_pipeline_cannot_be(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="stage"):
        Stage(index, count)


def test_what_is_said_by_layer_goes_with_the_layer() -> None:
    variant = Variant(positions=("rope", "none", "rope", "none", "rope"))
    model = tiny_config(num_layers=5, windows=(1, 2, 3, 4, 5), experts=EXPERTS, variant=variant)
    first, last = (of_stage(model, Stage(index, 2)) for index in (0, 1))
    assert (first.num_layers, first.windows, first.first_layer, first.all_layers) == (3, (1, 2, 3), 0, 5)
    assert (last.num_layers, last.windows, last.first_layer, last.all_layers) == (2, (4, 5), 3, 5)
    assert first.variant is not None and last.variant is not None
    assert (first.variant.positions, last.variant.positions) == (("rope", "none", "rope"), ("none", "rope"))
    assert first.experts is not None and last.experts is not None
    assert (set(first.experts.dense_layers), set(last.experts.dense_layers)) == ({0}, {0})
    assert last.prefix_of(1) == "model.layers.4."


@pytest.mark.parametrize(
    ("changes", "size", "how", "message"),
    [
        ({}, 2, {"stage": Stage(0, 3)}, "2 layers do not make 3 stages; lower --pipeline-parallel-size"),
        ({}, 2, {"spare": 0}, "no experts to divide among ranks; leave --expert-parallel out"),
        ({"experts": Experts(2, 1, 48, mixtral.NAMES), "num_heads": 4, "num_kv_heads": 4}, 4, {"spare": 0},
         "2 experts are fewer than 4 ranks; choose 1 or 2 for --tensor-parallel-size"),
        ({"experts": Experts(4, 1, 47, mixtral.NAMES), "num_heads": 4, "num_kv_heads": 4}, 2, {},
         "the experts' inner width, 47, does not divide among 2 ranks"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_would(
    changes: dict[str, Any], size: int, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        of_rank(tiny_config(**changes), Shard(0, size), **how)


def test_whole_experts_keep_their_width_also_an_odd_one() -> None:
    model = tiny_config(experts=Experts(5, 2, 47, mixtral.NAMES), num_heads=4, num_kv_heads=4)
    shares = [of_rank(model, Shard(rank, 2), spare=1) for rank in range(2)]
    assert [share.experts.held(rank) for rank, share in enumerate(shares) if share.experts] == [(0, 1, 2), (2, 3, 4, 0)]
    assert all(share.experts is not None and share.experts.intermediate_size == 47 for share in shares)
    assert weight_bytes(shares[0], "bfloat16", None) < weight_bytes(model, "bfloat16", None)


class Of(OneStage):
    """A stage whose neighbours are not there: enough to load."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


def share_of(folder: Path, stage: Stage) -> Decoder:
    return load_model(Checkpoint(folder), "float32", group=Alone(pipeline=Of(stage)))


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", tiny_model(3, num_layers=3, tie_word_embeddings=request.param))


def test_stages_have_each_tensor_of_the_files_once_but_for_a_tied_table(folder: Path) -> None:
    whole = load_model(Checkpoint(folder), "float32")
    stages = [share_of(folder, Stage(index, 2)) for index in range(2)]
    places = [stage.places() for stage in stages]
    tied = whole.config.tie_word_embeddings
    shared = {"model.embed_tokens.weight"} if tied else set()
    assert set(places[0]) & set(places[1]) == shared
    assert set(places[0]) | set(places[1]) == set(whole.places())
    for found in places:
        for name, tensor in found.items():
            assert torch.equal(tensor, whole.places()[name])
    numbers = [sum({id(p): p.numel() for p in stage.parameters()}.values()) for stage in stages]
    assert max(numbers) < sum({id(p): p.numel() for p in whole.parameters()}.values())


@pytest.mark.parametrize("index", [0, 1])
def test_a_stage_refuses_files_that_lack_its_own_or_hold_what_no_stage_has(folder: Path, index: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    mine = f"model.layers.{2 * index}.input_layernorm.weight"
    save_file({name: t for name, t in tensors.items() if name != mine}, folder / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=f"1 tensors are missing, the first is {mine}"):
        share_of(folder, Stage(index, 2))
    for strange in ("model.layers.3.input_layernorm.weight", "model.layers.0.mlp.extra.weight", "model.other.weight"):
        save_file({**tensors, strange: tensors[mine].clone()}, folder / "model.safetensors")
        if strange.startswith("model.layers.0") and index == 1:
            assert share_of(folder, Stage(1, 2)) is not None  # the rank that has layer 0 refuses it
            continue
        with pytest.raises(CorruptCheckpoint, match=f"tensor {strange} has no place"):
            share_of(folder, Stage(index, 2))


def test_a_rank_passes_over_the_experts_of_others_and_over_nothing_else(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 4, "experts": Experts(4, 2, 32, mixtral.NAMES)}
    model = tiny_model(3, **shape)
    folder = write_folder(
        tmp_path / "model",
        model,
        architectures=["MixtralForCausalLM"],
        num_local_experts=4,
        num_experts_per_tok=2,
        intermediate_size=32,
    )
    group = DistributedGroup(Shard(1, 2), torch.device("cpu"), spare=1)
    found = load_model(Checkpoint(folder), "float32", group=group).places()
    names = mixtral.NAMES
    held = [e for e in range(4) if f"model.layers.0.{names.down.format(e)}" in found]
    assert held == [0, 2, 3]
    for name, tensor in found.items():
        if ".experts." in name:
            assert torch.equal(tensor, model.places()[name])
    tensors = load_file(folder / "model.safetensors")
    strange = f"model.layers.0.{names.down.format(4)}"
    save_file({**tensors, strange: torch.zeros(48, 32)}, folder / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match="has no place"):
        load_model(Checkpoint(folder), "float32", group=group)


def test_one_stage_has_no_neighbours() -> None:
    config: ModelConfig = tiny_config()
    assert of_stage(config, ONE_STAGE.stage) is config
    with pytest.raises(RuntimeError, match="before the first"):
        ONE_STAGE.receive((1, 2), torch.float32, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="behind the last"):
        ONE_STAGE.send(torch.zeros(1))
