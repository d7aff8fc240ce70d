"""A model that is divided among ranks computes what the whole one does, by the plain decoder and by the kernels'; every
rank gets the same bits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.kernels import reference
from backend.kernels.linear import fp8_block_reference
from backend.kernels.moe import reference as moe_reference
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.families import mixtral, qwen3_moe
from backend.models.families.family import Experts
from backend.models.loader import DTYPES, load_model
from backend.parallel.group import SINGLE, SINGLE_ORDERED, DistributedGroup, ParallelGroup
from backend.parallel.shard import Shard
from backend.quantization import of_name
from backend.quantization.none import NONE
from tests.backend.engine.parallel.test_same_tokens import arranged
from tests.backend.models.decoders.test_fused_decoder import DEVICE, FullAttention, distance, fused
from tests.backend.parallel.crew import Crews, device_for
from tests.backend.quantization import test_int4_checkpoints as int4
from tests.backend.quantization import test_kept_checkpoints as kept
from tests.backend.tiny import tiny_model, write_folder
from tests.backend.tiny_families import FAMILIES, tiny_family, write_family

SIZES = tuple(size for size in (2, 4) if device_for(size) == DEVICE.type)
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the shape, and what config.json says beside it
    "llama": ({"tie_word_embeddings": True, "vocab_size": 301}, {}),
    "qwen2": ({"qkv_bias": True}, {"architectures": ["Qwen2ForCausalLM"]}),
    "qwen3": ({"qk_norm": True}, {"architectures": ["Qwen3ForCausalLM"]}),
    "phi3": ({"fused_names": True}, {"architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 4096}),
    "mixtral": (
        {"experts": Experts(4, 2, 96, mixtral.NAMES)},
        {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3-moe": (
        {"qk_norm": True, "experts": Experts(6, 3, 32, qwen3_moe.NAMES, dense_layers=frozenset({1}))},
        {
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 32, "norm_topk_prob": True, "mlp_only_layers": [1],
        },
    ),
}  # fmt: skip
NAMES = [*MODELS, *FAMILIES]
BOUND = 1e-5 if DEVICE.type == "cpu" else 3e-3  # kernels multiply float32 in TF32
STEPS = (13, 64)  # many rows at once; a few, and at last a single one
CASES = [(size, name) for size in SIZES for name in NAMES if size == 2 or name in ("llama", "phi3", "olmo2")]
STORED = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "num_kv_heads": 2, "head_dim": 128}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, found = tmp_path_factory.mktemp("models"), {}
    for name in NAMES:
        if name in FAMILIES:
            found[name] = write_family(root / name, name, tiny_family(name, 7))
        else:
            changes, said = MODELS[name]
            found[name] = write_folder(root / name, tiny_model(7, **{**SHAPE, **changes}), **said)
    return found


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 300, (40,))


def logits(
    group: ParallelGroup,
    folder: Path,
    ids: Tensor,
    dtype: str,
    road: str,
    steps: tuple[int, ...] = (64,),
    quantization: str = "none",
) -> Tensor:
    """For each size of steps. road: "plain", "kernels" or "invariant"."""
    format = of_name(quantization)

    def loaded() -> Decoder:
        return load_model(Checkpoint(folder), dtype, str(group_device(group)), quantization=format, group=group)

    model = loaded()
    if road == "plain":
        rows = torch.arange(len(ids), device=model.embedding.device)
        return model(ids.to(rows.device), rows, FullAttention(), rows).cpu()[None]
    kind: Any = kind_of(model.config, batch_invariant=road == "invariant")
    found = []
    for step in steps:
        whose = model if format is NONE else loaded()  # packed weights are taken over, not copied
        found.append(fused(whose, ids, DTYPES[dtype], step=step, kind=kind, quantization=format))
    return torch.stack(found)


def group_device(group: ParallelGroup) -> torch.device:
    return torch.device("cuda", group.shard.rank) if DEVICE.type == "cuda" else DEVICE


def one_of(found: list[Tensor]) -> Tensor:
    """What all ranks have."""
    for other in found[1:]:
        assert torch.equal(found[0], other)
    return found[0]


@pytest.mark.parametrize(("size", "name"), [(2, "qwen2"), (2, "qwen3-moe"), (SIZES[-1], "llama")])
def test_the_plain_decoder_computes_the_same_in_parts(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str, size: int
) -> None:
    whole = logits(SINGLE, folders[name], ids, "float32", "plain")
    found = one_of(crews[size].run(logits, folders[name], ids, "float32", "plain"))
    assert distance(found, whole.double()) < BOUND


@pytest.mark.parametrize(("size", "name"), CASES)
def test_the_kernels_decoder_computes_the_same_in_parts_in_any_size_of_step(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str, size: int
) -> None:
    whole = logits(SINGLE, folders[name], ids, "float32", "kernels")
    for found in one_of(crews[size].run(logits, folders[name], ids, "float32", "kernels", STEPS)):
        assert distance(found, whole[0].double()) < BOUND


def in_order(group: ParallelGroup, *arguments: Any) -> Tensor:
    """`logits`, by a group whose sums are ordered."""
    assert isinstance(group, DistributedGroup)
    group.ordered = True
    try:
        return logits(group, *arguments)
    finally:
        group.ordered = False


@pytest.mark.parametrize("name", ["llama", "olmo2", "qwen3-moe"])
def test_where_the_batch_is_not_to_matter_parts_compute_the_same(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str
) -> None:
    whole = logits(SINGLE, folders[name], ids, "float32", "invariant")
    for found in one_of(crews[max(SIZES)].run(in_order, folders[name], ids, "float32", "invariant", STEPS)):
        assert distance(found, whole[0].double()) < BOUND


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3-moe"])
def test_a_rank_reads_its_part_of_the_files_alone(folders: dict[str, Path], name: str) -> None:
    checkpoint, read = Checkpoint(folders[name]), []
    whole = load_model(checkpoint, "float32", on_progress=lambda done, total: read.append(total))
    for rank in range(2):
        group = DistributedGroup(Shard(rank, 2), torch.device("cpu"))
        part = load_model(checkpoint, "float32", group=group, on_progress=lambda done, total: read.append(total))
        kept = {id(p): p.numel() for p in part.parameters()}
        assert sum(kept.values()) < 0.6 * sum({id(p): p.numel() for p in whole.parameters()}.values())
        assert 0.45 * read[0] < read[-1] < 0.6 * read[0]


class ByGathering:
    """Stands for `one_shot.NormedSums`, whose kernel runs on cards alone: the same from gathered parts."""

    def __init__(self, group: DistributedGroup) -> None:
        self.group = group
        self.seen = 0

    def takes(self, tokens: int, width: int) -> bool:
        return tokens <= 40

    def total(self, added: Tensor, dtype: torch.dtype) -> Tensor:
        self.seen += 1
        return self.group.all_gather(added if added.dim() == 2 else added.sum(0).to(dtype)).sum(0)

    def add_rms_norm(self, added: Tensor, residual: Tensor, *norm: Any) -> tuple[Tensor, Tensor]:
        return reference.add_rms_norm(self.total(added, residual.dtype), residual, *norm)

    def add_rms_norm_fp8(self, added: Tensor, residual: Tensor, *norm: Any) -> tuple[Tensor, Tensor, Tensor]:
        return reference.add_rms_norm_fp8(self.total(added, residual.dtype), residual, *norm)


def by_norms_that_sum(group: ParallelGroup, *arguments: Any) -> Tensor:
    """`logits`, by a group whose norms sum."""
    assert isinstance(group, DistributedGroup)
    group._normed = stand_in = ByGathering(group)  # type: ignore[assignment]
    try:
        found = logits(group, *arguments)
    finally:
        group._normed = None
    assert stand_in.seen > 0
    return found


@pytest.mark.skipif(DEVICE.type == "cuda", reason="cards have the kernel itself")
@pytest.mark.parametrize(
    ("name", "dtype", "quantization", "bound"),
    [
        ("qwen3", "float32", "none", BOUND), ("qwen3-moe", "float32", "none", BOUND),
        ("qwen3", "bfloat16", "fp8", 0.4),
    ],
)  # fmt: skip
def test_norms_that_sum_over_ranks_compute_the_same(
    crews: Crews,
    folders: dict[str, Path],
    ids: Tensor,
    name: str,
    dtype: str,
    quantization: str,
    bound: float,
) -> None:
    whole = logits(SINGLE, folders[name], ids, "float32", "kernels")
    arguments = folders[name], ids, dtype, "kernels", STEPS, quantization
    for found in one_of(crews[2].run(by_norms_that_sum, *arguments)):
        assert distance(found, whole[0].double()) < bound


def stored(folder: Path, layout: str) -> tuple[Path, str, Decoder]:
    """A quantised checkpoint, its format, and the model of its weights written out."""
    model = tiny_model(5, **STORED, tie_word_embeddings=False)
    quantise: Any
    if layout in int4.CONFIGS:
        said, format = int4.CONFIGS[layout], layout.removesuffix("_v2")
    else:
        quantise, said, format = kept.LAYOUTS[layout]
    write_folder(folder, model, quantization_config=said)
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(int4.MODULES):
            tensors[name] = tensor
        elif layout in int4.CONFIGS:
            parts = int4.stored_parts(layout, *int4.quantised(tensor, len(name)))
            tensors |= {f"{module}.{part}": value for part, value in parts.items()}
        else:
            tensors |= quantise(name, tensor)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder, format, load_model(Checkpoint(folder), "float32")


@pytest.mark.parametrize("layout", [*kept.LAYOUTS, *int4.CONFIGS])
def test_a_quantised_checkpoint_is_divided_by_its_formats_rule(
    crews: Crews, ids: Tensor, layout: str, tmp_path: Path
) -> None:
    folder, format, exact = stored(tmp_path, layout)
    crew, rows = crews[2], torch.arange(len(ids))
    whole = exact.double()(ids, rows, FullAttention(), rows)
    dense = one_of(crew.run(logits, folder, ids, "float32", "plain"))[0]
    # The numbers of the file, whichever part a rank reads. On cards TF32 may round what is multiplied: simulated on a
    # CPU, that alone takes this model, whose heads are 128 wide, 0.0012 to 0.009 away, in any format, by the tokens.
    assert distance(dense, whole) < (BOUND if DEVICE.type == "cpu" else 4 * BOUND)
    for found in one_of(crew.run(logits, folder, ids, "bfloat16", "kernels", STEPS, format)):
        assert distance(found, whole) < {"fp8": 0.4, "fp8-block": 0.4, "int8": 0.15}.get(format, 0.1)


@pytest.mark.parametrize("road", ["kernels"])
def test_weights_of_any_checkpoint_become_fp8_on_each_rank(
    crews: Crews, folders: dict[str, Path], ids: Tensor, road: str
) -> None:
    whole = logits(SINGLE, folders["qwen3"], ids, "float32", "plain")
    for found in one_of(crews[2].run(logits, folders["qwen3"], ids, "bfloat16", road, STEPS, "fp8")):
        assert distance(found, whole[0].double()) < 0.4


def by_element(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product each number of which depends on one row of either operand alone, as the kernel's does."""
    y = (x[:, None].float() * weight[None].float()).sum(-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def by_element_in_parts(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    pairs = zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True)
    return torch.stack([by_element(a.contiguous(), b.contiguous()).float() for a, b in pairs])


def gated_by_element(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def by_whole_experts(group: ParallelGroup, spare: int, ordered: bool, *arguments: Any) -> Tensor:
    """`logits`, or `to_the_bit`, by a group whose ranks hold experts as wholes."""
    group.spare = spare
    try:
        return to_the_bit(group, *arguments) if ordered else logits(group, *arguments)
    finally:
        group.spare = None


@pytest.mark.parametrize(("size", "spare"), [(2, 0), (SIZES[-1], 1)])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_ranks_that_hold_experts_as_wholes_compute_the_same_by_the_kernels(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str, size: int, spare: int
) -> None:
    crew = crews[size]
    whole = logits(SINGLE, folders[name], ids, "float32", "kernels")
    for found in one_of(crew.run(by_whole_experts, spare, False, folders[name], ids, "float32", "kernels", STEPS)):
        assert distance(found, whole[0].double()) < BOUND
    if DEVICE.type == "cpu":
        arguments = folders[name], ids, "float32", "invariant"
        alone = to_the_bit(SINGLE_ORDERED, *arguments)
        assert torch.equal(one_of(crew.run(by_whole_experts, spare, True, *arguments)), alone)


def in_stages(group: ParallelGroup, stages: int, ordered: bool, *arguments: Any) -> Tensor:
    """`logits`, or `to_the_bit`, by a crew arranged in so many stages."""
    group = arranged(group, stages, None, ordered=ordered)
    return to_the_bit(group, *arguments) if ordered else logits(group, *arguments)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="stages run on a CPU")
@pytest.mark.parametrize(
    ("size", "stages", "name"),
    [(2, 2, "llama"), (2, 2, "olmo2"), (2, 2, "gemma3"), (4, 2, "qwen3-moe"), (4, 2, "granite")],
)
def test_stages_compute_the_same_by_the_kernels(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str, size: int, stages: int
) -> None:
    crew, folder = crews[size], folders[name]
    whole = logits(SINGLE, folder, ids, "float32", "kernels")
    for found in one_of(crew.run(in_stages, stages, False, folder, ids, "float32", "kernels", STEPS)):
        assert distance(found, whole[0].double()) < BOUND
    if name != "gemma3":  # whose caps and GELU are a CPU library's
        alone = to_the_bit(SINGLE_ORDERED, folder, ids, "float32", "invariant")
        assert torch.equal(one_of(crew.run(in_stages, stages, True, folder, ids, "float32", "invariant")), alone)


def in_blocks_by_element(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, span: int) -> Tensor:
    values = x.double() * x_scale.t().repeat_interleave(128, 1)
    return (values @ fp8_block_reference.fp8_block_dense(weight, weight_scale, span).double().t()).float()


IN_DOUBLE = SimpleNamespace(
    linear=lambda x, weight: (x.double() @ weight.double().t()).float(),
    silu=lambda x: torch.nn.functional.silu(x.double()).float(),
)


def to_the_bit(group: ParallelGroup, *arguments: Any) -> Tensor:
    """`in_order`, by twins that keep the kernels' promise, which the library's products on a CPU do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "invariant_linear", by_element)
        patch.setattr(reference, "invariant_parts", by_element_in_parts)
        patch.setattr(reference, "silu_mul", gated_by_element)
        patch.setattr(fp8_block_reference, "_product", in_blocks_by_element)
        patch.setattr(moe_reference, "F", IN_DOUBLE)
        plain = isinstance(group, DistributedGroup) and not group.ordered
        return in_order(group, *arguments) if plain else logits(group, *arguments)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="cards have the kernels themselves")
@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "olmo2", "granite", "mixtral", "qwen3-moe"])
def test_the_kernels_decoders_give_the_same_bits_in_any_number_of_parts(
    crews: Crews, folders: dict[str, Path], ids: Tensor, name: str
) -> None:
    arguments = folders[name], ids, "float32", "invariant"
    alone = to_the_bit(SINGLE_ORDERED, *arguments)
    assert distance(alone[0], logits(SINGLE, *arguments)[0].double()) < BOUND
    for size in SIZES:
        assert torch.equal(one_of(crews[size].run(to_the_bit, *arguments)), alone)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="cards have the kernels themselves")
@pytest.mark.parametrize("layout", ["block", "int8"])
def test_weights_as_stored_give_the_same_bits_in_any_number_of_parts(
    crews: Crews, ids: Tensor, layout: str, tmp_path: Path
) -> None:
    folder, format, exact = stored(tmp_path, layout)
    rows = torch.arange(len(ids))
    arguments = folder, ids, "bfloat16", "invariant", (64,), format
    alone = to_the_bit(SINGLE_ORDERED, *arguments)
    assert distance(alone[0], exact.double()(ids, rows, FullAttention(), rows)) < (0.4 if layout == "block" else 0.15)
    assert torch.equal(one_of(crews[2].run(to_the_bit, *arguments)), alone)
