"""Families that depart from Llama on the road of the kernels: what the plain decoder computes, in any size of step."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.gpu.paged_layers import PagedLayers, StepShape
from backend.kernels import reference
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.interface import kernels_for
from backend.kernels.launching.launch import FP8
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import (
    InvariantDecoder,
    InvariantVariantDecoder,
)
from backend.models.decoders.paged_decoder import Attended, PagedCache, StepTokens
from backend.models.decoders.variant_decoder import UNTURNED, VariantDecoder, unturned
from backend.quantization.fp8 import FP8 as FP8_WEIGHTS
from backend.quantization.linear import Hidden
from backend.quantization.none import NONE
from tests.backend.models.decoders.test_fused_decoder import distance
from tests.backend.tiny import tiny_model
from tests.backend.tiny_families import FAMILIES, plain_logits, tiny_family

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def by_kernels(
    model: Decoder,
    ids: Tensor,
    dtype: torch.dtype,
    *,
    step: int = 1 << 30,
    fp8: bool = False,
    fp8_cache: bool = False,
    batch_invariant: bool = False,
    block_size: int = 16,
) -> Tensor:
    """Logits of every token; the tokens run `step` at a time through pages dealt out of order."""
    config = model.config
    kind = kind_of(config, batch_invariant=batch_invariant)
    decoder = kind(copy.deepcopy(model).to(DEVICE, dtype), kernels_for(DEVICE), FP8_WEIGHTS if fp8 else NONE)
    blocks = -(-len(ids) // block_size)
    pages = KVCache(config, blocks, block_size, FP8 if fp8_cache else dtype, str(DEVICE))
    scale = torch.full((config.num_layers, config.num_kv_heads), 0.05, device=DEVICE) if fp8_cache else None
    cache = PagedCache(pages.keys, pages.values, scale, scale)
    workspace = DecodeWorkspace.allocate(DEVICE, 1, config.num_heads, config.num_kv_heads, config.head_dim)
    table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32, device=DEVICE)[None]
    found = []
    for start in range(0, len(ids), step):
        count = min(step, len(ids) - start)
        positions = torch.arange(start, start + count, device=DEVICE)
        slots = table[0].long()[positions // block_size] * block_size + positions % block_size
        attention = PagedLayers(
            config,
            decoder.kernels,
            cache,
            workspace,
            StepShape(1) if count == 1 else StepShape(0, chunks=1, chunk_rows=count),
            table,
            torch.tensor([start + count], dtype=torch.int32, device=DEVICE),
            torch.tensor([0, count], dtype=torch.int32, device=DEVICE),
            batch_invariant=batch_invariant,
        )
        tokens = StepTokens(ids[start : start + count].to(DEVICE), positions, slots, None)
        found.append(decoder(tokens, cache, attention))
    return torch.cat(found).cpu()


def exact(model: Decoder, ids: Tensor) -> Tensor:
    return plain_logits(copy.deepcopy(model).double(), ids)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(0, 320, (70,), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("step", [1, 3, 33, 70])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_plain_decoder_in_double_precision(name: str, step: int, ids: Tensor) -> None:
    model = tiny_family(name, 7)
    assert distance(by_kernels(model, ids, torch.float32, step=step), exact(model, ids)) < 2e-5


@pytest.mark.parametrize("changes", [{"head_dim": 128}, {"head_dim": 80}, {"num_key_value_heads": 4}], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_heads_of_any_width_and_group(name: str, changes: dict[str, Any], ids: Tensor) -> None:
    model = tiny_family(name, 8, **changes)
    for step in (1, 40):
        assert distance(by_kernels(model, ids, torch.float32, step=step, block_size=32), exact(model, ids)) < 2e-5


@pytest.mark.parametrize("step", [1, 16, 70])
@pytest.mark.parametrize("name", FAMILIES)
def test_batch_invariant_products_give_the_same(name: str, step: int, ids: Tensor) -> None:
    model = tiny_family(name, 9)
    found = by_kernels(model, ids, torch.float32, step=step, batch_invariant=True)
    assert distance(found, exact(model, ids)) < 2e-5


@pytest.mark.parametrize("step", [1, 20, 70])
@pytest.mark.parametrize("cache", [False, True], ids=["cache as is", "cache in fp8"])
@pytest.mark.parametrize("fp8", [False, True], ids=["weights as they are", "weights in fp8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_less_precise_forms_stay_as_near_as_their_precision(
    name: str, fp8: bool, cache: bool, step: int, ids: Tensor
) -> None:
    model = tiny_family(name, 10)
    found = distance(by_kernels(model, ids, torch.bfloat16, fp8=fp8, fp8_cache=cache, step=step), exact(model, ids))
    assert found < (0.5 if fp8 or cache else 0.06)
    assert fp8 or cache or found > 1e-4  # bfloat16 was really used


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"sliding_window": 30}),
        ("gemma2", {"query_pre_attn_scalar": 16}),
        ("gemma3", {"rope_local_base_freq": 2000.0}),
        ("granite", {"residual_multiplier": 1.0}),
        ("granite", {"attention_multiplier": 0.25}),
        ("granite", {"embedding_multiplier": 1.0}),
        ("granite", {"logits_scaling": 1.0}),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),
    ],
    ids=str,
)
def test_each_departure_counts(name: str, changes: dict[str, Any], ids: Tensor) -> None:
    """A road that passed one of them over would be as far from the family as the family is from its sister without."""
    model, other = tiny_family(name, 11), tiny_family(name, 11, **changes)
    assert distance(by_kernels(other, ids, torch.float32), exact(model, ids)) > 1e-3


def test_no_soft_cap_is_left_out_by_a_rope_or_a_row_that_ends_a_prompt(ids: Tensor) -> None:
    """Logits of one row alone are capped as those of many."""
    model = tiny_family("gemma2", 12)
    limit = 12.0
    assert by_kernels(model, ids, torch.float32, step=1).abs().max() < limit
    assert by_kernels(model, ids, torch.float32).abs().max() < limit


def test_norms_that_count_from_one_lose_nothing_to_the_models_dtype() -> None:
    model = tiny_family("gemma3", 13).to(torch.bfloat16)
    decoder = VariantDecoder(model, reference)
    weight = model.layers[0].attention_before
    before = decoder.layers[0].attention_before
    assert before is not None and before.dtype == torch.float32
    assert torch.equal(before, 1.0 + weight.float())
    assert not torch.equal(before, (1.0 + weight).float())


def test_a_layer_without_positions_leaves_its_heads_as_they_are() -> None:
    for head_dim in (16, 64):
        table = unturned(head_dim, 8, torch.device("cpu"))
        assert table.shape == (8, UNTURNED)
        qkv, position = torch.randn(3, 4 * head_dim), torch.tensor([0, 5, 7])
        cache = torch.zeros(1, 16, 1, head_dim)
        slots = torch.tensor([0, 1, 2])
        q = reference.rotary_kv(qkv, position, table, slots, cache, cache.clone())
        assert torch.equal(q.flatten(1), qkv[:, : 2 * head_dim])
        assert torch.equal(cache[0, :3, 0], qkv[:, 2 * head_dim : 3 * head_dim])


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_all_that_is_multiplied_by_is_named_once_and_fp8_empties_the_model(family: str) -> None:
    model = tiny_family(family, 14).to(torch.bfloat16)
    decoder = VariantDecoder(model, reference, FP8_WEIGHTS)
    named = decoder.weights()
    assert all(isinstance(tensor, Tensor) for tensor in named)
    assert len({id(tensor) for tensor in named}) == len(named)
    assert any(tensor is decoder.embedding for tensor in named)
    assert any(tensor is decoder.norm for tensor in named)
    assert sum(p.numel() for layer in model.layers for p in layer.parameters() if p.dim() > 1) == 0
    assert all(layer.qkv.data.dtype == FP8 for layer in decoder.layers)


def test_each_model_takes_the_road_that_knows_it() -> None:
    llama, gemma = tiny_model().config, tiny_family("gemma3").config
    assert (kind_of(llama, batch_invariant=False), kind_of(llama, batch_invariant=True)) == (
        FusedDecoder,
        InvariantDecoder,
    )
    assert (kind_of(gemma, batch_invariant=False), kind_of(gemma, batch_invariant=True)) == (
        VariantDecoder,
        InvariantVariantDecoder,
    )


def test_what_the_head_reads_is_what_the_plain_decoder_calls_states(ids: Tensor) -> None:
    model = tiny_family("olmo2", 15)
    decoder = VariantDecoder(copy.deepcopy(model), reference)
    residual, added = torch.randn(5, 64), torch.randn(5, 64)
    found = decoder.states(Hidden(residual, added))
    torch.testing.assert_close(found, reference.rms_norm(residual + added, model.norm, 1e-6))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_layer_from_its_attention_on_is_the_same_for_fewer_tokens(name: str) -> None:
    decoder = VariantDecoder(copy.deepcopy(tiny_family(name, 16)), reference)
    heads = decoder.config.num_heads * decoder.config.head_dim
    before = Attended(torch.randn(5, decoder.config.hidden_size), torch.randn(5, heads))
    whole, last = decoder.states(decoder.finish(before, None)), torch.tensor([3, 1])
    torch.testing.assert_close(decoder.states(decoder.finish(before, last)), whole[last])
