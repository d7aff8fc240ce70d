"""The kernels' decoder for latent attention computes what the plain one does, on each of its paths, in parts, and of
weights in FP8."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.gpu.latent_layers import LatentLayers, workspace_of
from backend.engine.gpu.paged_layers import StepShape
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.decoders.latent_decoder import InvariantLatentDecoder, LatentDecoder
from backend.models.decoders.paged_decoder import PagedCache, StepTokens
from backend.models.loader import DTYPES, load_model
from backend.parallel.group import SINGLE, DistributedGroup, ParallelGroup
from backend.quantization import of_name
from backend.quantization.format import Quantization
from backend.quantization.fp8 import FP8
from backend.quantization.none import NONE
from tests.backend.models.decoders.test_fused_decoder import DEVICE, distance, on_device
from tests.backend.parallel.crew import Crews
from tests.backend.quantization import test_kept_checkpoints as kept
from tests.backend.tiny_deepseek import MODELS, stored_tensors, tiny_deepseek, write_deepseek
from tests.backend.tiny_families import plain_logits

BOUND = 1e-5 if DEVICE.type == "cpu" else 3e-3  # kernels multiply float32 in TF32


def exactly(model: Decoder, ids: Tensor) -> Tensor:
    return plain_logits(copy.deepcopy(model).double(), ids)


def by_kernels(
    model: Decoder,
    ids: Tensor,
    dtype: torch.dtype,
    *,
    step: int = 1 << 30,
    invariant: bool = False,
    last: Tensor | None = None,
    quantization: Quantization = NONE,
) -> Tensor:
    """Logits of every token, or of those that ``last`` names; the tokens run `step` at a time through the cache."""
    kind = kind_of(model.config, batch_invariant=invariant)
    decoder = kind(on_device(model, dtype), kernels_for(DEVICE), quantization)
    assert isinstance(decoder, LatentDecoder)
    config = model.config
    pages = KVCache(config, 4, 16, dtype, str(DEVICE))
    cache = PagedCache(pages.keys, pages.values)
    table = torch.tensor([[3, 1, 2, 0]], dtype=torch.int32, device=DEVICE)
    logits = []
    for start in range(0, len(ids), step):
        count = min(step, len(ids) - start)
        positions = torch.arange(start, start + count, device=DEVICE)
        slots = table[0].long()[positions // 16] * 16 + positions % 16
        attention = LatentLayers(
            config,
            decoder.kernels,
            cache,
            workspace_of(config, DEVICE, 1),
            StepShape(1) if count == 1 else StepShape(0, chunks=1, chunk_rows=count),
            table,
            torch.tensor([start + count], dtype=torch.int32).to(DEVICE),
            torch.tensor([0, count], dtype=torch.int32).to(DEVICE),
            batch_invariant=invariant,
        )
        own = ids[start : start + count].to(DEVICE)
        logits.append(decoder(StepTokens(own, positions, slots, last), cache, attention))
    return torch.cat(logits).cpu()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 320, (50,))


@pytest.mark.parametrize("step", [1, 3, 20, 64])  # a single row, a few, many
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_plain_decoder_in_double_precision(ids: Tensor, name: str, step: int) -> None:
    model = tiny_deepseek(name, 7)
    assert distance(by_kernels(model, ids, torch.float32, step=step), exactly(model, ids)) < BOUND


@pytest.mark.parametrize("changes", [{"rope_interleave": False}, {"n_shared_experts": None}], ids=str)
def test_halves_that_turn_and_experts_without_shared_ones(ids: Tensor, changes: dict[str, Any]) -> None:
    model = tiny_deepseek("v3", 8, **changes)
    for step in (1, 64):
        assert distance(by_kernels(model, ids, torch.float32, step=step), exactly(model, ids)) < BOUND


@pytest.mark.parametrize("step", [1, 3, 64])
@pytest.mark.parametrize("fp8", [False, True], ids=["weights as they are", "weights in fp8"])
def test_less_precise_forms_stay_as_near_as_their_precision(ids: Tensor, fp8: bool, step: int) -> None:
    """Greedy routing of few experts: a rounding seldom makes another choice, whose error is not one of precision."""
    model = tiny_deepseek("v3", 8, first_k_dense_replace=3)
    found = by_kernels(model, ids, torch.bfloat16, step=step, quantization=FP8 if fp8 else NONE)
    assert 1e-4 < distance(found, exactly(model, ids)) < (0.4 if fp8 else 0.06)


@pytest.mark.parametrize("name", MODELS)
def test_where_the_batch_is_not_to_matter_steps_of_any_size_give_the_same_bits(ids: Tensor, name: str) -> None:
    model = tiny_deepseek(name, 9)
    whole = by_kernels(model, ids, torch.bfloat16, invariant=True)
    assert kind_of(model.config, batch_invariant=True) is InvariantLatentDecoder
    assert torch.equal(
        by_kernels(model, ids, torch.bfloat16, invariant=True, last=torch.tensor([4, 49])), whole[[4, 49]]
    )
    if DEVICE.type == "cuda":  # a product of the twins is a library's
        assert torch.equal(by_kernels(model, ids, torch.bfloat16, invariant=True, step=7), whole)
    exact = by_kernels(model, ids, torch.float32, invariant=True, step=7)
    assert distance(exact, exactly(model, ids)) < BOUND


def test_every_weight_is_among_those_that_move_to_a_card() -> None:
    model = tiny_deepseek("v3", 1)
    held = {t.data_ptr() for t in LatentDecoder(model, kernels_for(DEVICE)).weights()}
    places = {name: place for name, place in model.named_parameters() if not name.endswith("correction")}
    for name, place in places.items():
        inside = [p for p in held if place.data_ptr() <= p < place.data_ptr() + place.numel() * place.element_size()]
        assert inside, name


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_deepseek(root / name, name, stored_tensors(tiny_deepseek(name, 7))) for name in MODELS}


def logits(
    group: ParallelGroup,
    folder: Path,
    ids: Tensor,
    dtype: str,
    road: str,
    spare: int | None = None,
    quantization: str = "none",
) -> Tensor:
    """For each size of steps. road: "plain", "kernels" or "invariant"."""
    format, group.spare = of_name(quantization), spare
    group.ordered = road == "invariant"
    try:

        def loaded() -> Decoder:
            return load_model(Checkpoint(folder), dtype, quantization=format, group=group)

        if road == "plain":
            return plain_logits(loaded(), ids)[None]
        steps = (1, 13, 64)
        invariant = road == "invariant"
        found = [
            by_kernels(loaded(), ids, DTYPES[dtype], step=step, invariant=invariant, quantization=format)
            for step in steps
        ]
        return torch.stack(found)
    finally:
        group.spare, group.ordered = None, False


def one_of(found: list[Tensor]) -> Tensor:
    """What all ranks have."""
    for other in found[1:]:
        assert torch.equal(found[0], other)
    return found[0]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="ranks of this test are processes of the host")
@pytest.mark.parametrize(
    ("name", "road", "spare"),
    [
        ("v2-lite", "plain", None), ("v3", "plain", None), ("v2-lite", "kernels", None), ("v2", "kernels", None),
        ("v3", "kernels", None), ("v3", "kernels", 1), ("v2", "plain", 0), ("v3", "invariant", None),
    ],
)  # fmt: skip
def test_heads_and_experts_in_parts_or_as_wholes_give_the_same(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str, road: str, spare: int | None
) -> None:
    whole = exactly(load_model(Checkpoint(folders[name]), "float32"), ids)
    for found in one_of(crews[2].run(logits, folders[name], ids, "float32", road, spare)):
        assert distance(found, whole) < BOUND


def test_a_rank_holds_its_heads_and_all_latents(folders: dict[str, Path]) -> None:
    from backend.parallel.shard import Shard

    whole = load_model(Checkpoint(folders["v3"]), "float32")
    parts = [
        load_model(Checkpoint(folders["v3"]), "float32", group=DistributedGroup(Shard(rank, 2), torch.device("cpu")))
        for rank in range(2)
    ]
    own = [part.layers[1] for part in parts]
    assert torch.equal(torch.cat([layer.expansion for layer in own]), whole.layers[1].expansion)
    assert torch.equal(own[0].qkv, whole.layers[1].qkv)
    assert torch.equal(torch.cat([layer.shared_down for layer in own], 1), whole.layers[1].shared_down)
    assert parts[0].config.kv_bytes_per_token(4) == whole.config.kv_bytes_per_token(4)


FP8_SHAPE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "kv_lora_rank": 128, "q_lora_rank": 128, "qk_nope_head_dim": 96,
    "qk_rope_head_dim": 32, "v_head_dim": 128, "moe_intermediate_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_hidden_layers": 2,
}  # fmt: skip


def test_a_checkpoint_in_blocks_is_served_as_it_is_stored(ids: Tensor, tmp_path: Path) -> None:
    """As V3 is released: all matrices in FP8 blocks, kv_b_proj among them, but for router, embedding and head."""
    quantise, said, format = kept.LAYOUTS["block"]
    config = {**FP8_SHAPE, "quantization_config": said}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored_tensors(tiny_deepseek("v3", 5, **FP8_SHAPE)).items():
        if (name.endswith("_proj.weight") and "eh_proj" not in name) or name.endswith("proj_with_mqa.weight"):
            tensors |= quantise(name, tensor)
        else:
            tensors[name] = tensor
    folder = write_deepseek(tmp_path / "v3", "v3", {n: t.contiguous() for n, t in tensors.items()}, **config)
    dense = load_model(Checkpoint(folder), "float32")
    whole = exactly(dense, ids)
    for step in (1, 13, 64):
        stored = load_model(Checkpoint(folder), "bfloat16", str(DEVICE), quantization=of_name(format))
        packed = {"qkv", "q_b", "out", "shared_gate_up", "shared_down", "experts.gate_up", "experts.down"}
        assert stored.layers[1].packed.keys() == packed
        found = by_kernels(stored, ids, torch.bfloat16, step=step, quantization=of_name(format))
        assert distance(found, whole) < 0.5
    assert SINGLE.spare is None
