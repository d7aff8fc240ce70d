"""The fused decoder computes what the plain one does, on each of its paths; FP8 as closely as FP8 can."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.gpu.paged_layers import PagedLayers, StepShape
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.interface import kernels_for
from backend.kernels.launching.launch import FP8
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import InvariantDecoder
from backend.models.decoders.paged_decoder import PagedCache, StepTokens
from backend.models.layers.matrices import Matrices
from backend.quantization.format import Quantization
from backend.quantization.fp8 import FP8 as FP8_WEIGHTS
from backend.quantization.none import NONE
from tests.backend.tiny import tiny_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip


class FullAttention:
    """Causal, without a cache: what the plain decoder is given here."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)


def plain(model: Decoder, ids: Tensor) -> Tensor:
    rows = torch.arange(len(ids))
    return copy.deepcopy(model).double()(ids, rows, FullAttention(), rows)


def on_device(model: Decoder, dtype: torch.dtype) -> Decoder:
    """A copy; one with packed weights is where it is to be, and cannot be moved."""
    packed = any(layer.packed for layer in model.layers if isinstance(layer, Matrices))
    return model if packed else copy.deepcopy(model).to(DEVICE, dtype)


def fused(
    model: Decoder,
    ids: Tensor,
    dtype: torch.dtype,
    *,
    fp8: bool = False,
    fp8_cache: bool = False,
    step: int = 1 << 30,
    last: Tensor | None = None,
    kind: type[FusedDecoder] = FusedDecoder,
    quantization: Quantization = NONE,
) -> Tensor:
    """Logits of every token, or of those that ``last`` names; the tokens run `step` at a time through the cache."""
    kernels = kernels_for(DEVICE)
    decoder = kind(on_device(model, dtype), kernels, FP8_WEIGHTS if fp8 else quantization)
    config = model.config
    pages = KVCache(config, 4, 16, FP8 if fp8_cache else dtype, str(DEVICE))
    scale = torch.full((config.num_kv_heads,), 0.05, device=DEVICE) if fp8_cache else None
    layers = None if scale is None else scale.repeat(pages.keys.shape[0], 1)
    cache = PagedCache(pages.keys, pages.values, layers, layers)
    workspace = DecodeWorkspace.allocate(DEVICE, 1, config.num_heads, config.num_kv_heads, config.head_dim)
    table = torch.tensor([[3, 1, 2, 0]], dtype=torch.int32, device=DEVICE)
    logits = []
    for start in range(0, len(ids), step):
        count = min(step, len(ids) - start)
        positions = torch.arange(start, start + count, device=DEVICE)
        slots = table[0].long()[positions // 16] * 16 + positions % 16
        shape = StepShape(1) if count == 1 else StepShape(0, chunks=1, chunk_rows=count)
        attention = PagedLayers(
            config,
            kernels,
            cache,
            workspace,
            shape,
            table,
            torch.tensor([start + count], dtype=torch.int32).to(DEVICE),
            torch.tensor([0, count], dtype=torch.int32).to(DEVICE),
        )
        tokens = StepTokens(
            ids[start : start + count].to(DEVICE), positions, slots, None if last is None else last.to(DEVICE)
        )
        logits.append(decoder(tokens, cache, attention))
    return torch.cat(logits).cpu()


def distance(mine: Tensor, exact: Tensor) -> float:
    return float((mine.double() - exact).norm() / exact.norm())


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 320, (50,))


@pytest.mark.parametrize("step", [1, 3, 20, 64])
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"qkv_bias": True}], ids=["llama", "qwen3", "qwen2"])
def test_logits_are_those_of_the_plain_decoder_in_double_precision(
    ids: Tensor, changes: dict[str, bool], step: int
) -> None:
    model = tiny_model(7, **SHAPE, **changes)
    assert distance(fused(model, ids, torch.float32, step=step), plain(model, ids)) < 1e-5


@pytest.mark.parametrize("step", [1, 64])
@pytest.mark.parametrize("cache", [False, True], ids=["cache as is", "cache in fp8"])
@pytest.mark.parametrize("fp8", [False, True], ids=["weights as they are", "weights in fp8"])
def test_less_precise_forms_stay_as_near_as_their_precision(ids: Tensor, fp8: bool, cache: bool, step: int) -> None:
    model = tiny_model(8, **SHAPE)
    exact = plain(model, ids)
    found = distance(fused(model, ids, torch.bfloat16, fp8=fp8, fp8_cache=cache, step=step), exact)
    assert found < (0.4 if fp8 or cache else 0.05)
    assert fp8 or cache or found > 1e-4  # bfloat16 was really used


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("fp8", [False, True], ids=["weights as they are", "weights in fp8"])
def test_tokens_whose_logits_are_wanted_get_those_they_have_among_all(ids: Tensor, fp8: bool, count: int) -> None:
    """The last layer's second half runs for them alone, on the road of as many rows."""
    model, last = tiny_model(10, **SHAPE), torch.randperm(50)[:count]
    dtype = torch.bfloat16 if fp8 else torch.float32
    found = fused(model, ids, dtype, fp8=fp8, last=last)
    assert found.shape == (count, model.config.vocab_size)
    assert distance(found, fused(model, ids, dtype, fp8=fp8)[last].double()) < (0.1 if fp8 else 1e-5)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_where_the_batch_is_not_to_matter_they_are_the_same_to_the_bit(ids: Tensor, count: int) -> None:
    model, last = tiny_model(11, **SHAPE), torch.randperm(50)[:count]
    alone = fused(model, ids, torch.bfloat16, last=last, kind=InvariantDecoder)
    assert torch.equal(alone, fused(model, ids, torch.bfloat16, kind=InvariantDecoder)[last])


def test_fp8_weights_leave_the_model_they_came_from_empty() -> None:
    model = tiny_model(9, **SHAPE).to(torch.bfloat16)
    before = sum(p.numel() for p in model.layers.parameters())
    decoder = FusedDecoder(model, kernels_for(torch.device("cpu")), FP8_WEIGHTS)
    assert sum(p.numel() for p in model.layers.parameters()) < before / 20
    assert all(layer.qkv.data.dtype == FP8 for layer in decoder.layers)
