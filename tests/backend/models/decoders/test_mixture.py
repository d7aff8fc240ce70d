"""Mixtures of experts on the road of the kernels: what the plain decoder computes, in any size of step and format."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kernels.interface import kernels_for
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.invariant_decoder import InvariantDecoder
from backend.models.decoders.layer_paths import FusedLayer, MixtureLayer
from backend.models.families import mixtral, qwen3_moe
from backend.models.families.family import Experts
from backend.quantization import FORMATS, of_name
from backend.quantization.format import StoredWeights
from tests.backend.models.decoders.test_fused_decoder import distance, fused, plain
from tests.backend.tiny import tiny_model

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "num_layers": 3,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTURES = {
    "mixtral": Experts(4, 2, 96, mixtral.NAMES),
    "qwen3-moe": Experts(12, 4, 48, qwen3_moe.NAMES),
    "not normalised, a layer dense": Experts(6, 3, 32, qwen3_moe.NAMES, normalised=False, dense_layers=frozenset({1})),
}
EVERY = pytest.mark.parametrize("name", MIXTURES)


def mixture(name: str, seed: int = 7, **changes: Any) -> Decoder:
    return tiny_model(seed, **SHAPE, experts=MIXTURES[name], **changes)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 320, (50,))


@EVERY
@pytest.mark.parametrize("step", [1, 3, 20, 64])
def test_logits_are_those_of_the_plain_decoder_in_double_precision(name: str, step: int, ids: Tensor) -> None:
    model = mixture(name, qk_norm=name == "qwen3-moe")
    assert distance(fused(model, ids, torch.float32, step=step), plain(model, ids)) < 1e-5


@EVERY
@pytest.mark.parametrize("step", [1, 8, 64])
def test_experts_in_fp8_stay_as_near_as_their_precision(name: str, step: int, ids: Tensor) -> None:
    """A token whose router's logits nearly tie takes another expert; so the bound is wider than a dense model's."""
    model = mixture(name, seed=8)
    exact = plain(model, ids)
    found = distance(fused(model, ids, torch.bfloat16, fp8=True, step=step), exact)
    assert 1e-3 < found < 0.7
    assert distance(fused(model, ids, torch.bfloat16, step=step), exact) < 0.35


@pytest.mark.parametrize("count", [1, 5, 40])
def test_tokens_whose_logits_are_wanted_get_those_they_have_among_all(count: int, ids: Tensor) -> None:
    model, last = mixture("qwen3-moe"), torch.randperm(50)[:count]
    found = fused(model, ids, torch.float32, last=last)
    assert distance(found, fused(model, ids, torch.float32)[last].double()) < 1e-5


@pytest.mark.parametrize("step", [1, 7, 64])
def test_where_the_batch_is_not_to_matter_it_computes_the_same(step: int, ids: Tensor) -> None:
    model = mixture("qwen3-moe")
    found = fused(model, ids, torch.float32, step=step, kind=InvariantDecoder)
    assert distance(found, plain(model, ids)) < 1e-5


@pytest.mark.parametrize("format", [f for f in FORMATS if f.from_any], ids=lambda format: format.name)
def test_every_format_multiplies_experts_or_leaves_them_dense(format: Any, ids: Tensor) -> None:
    """From dense weights: what a format cannot be made from is tested with its checkpoints."""
    model = mixture("mixtral", seed=9).to(torch.bfloat16)
    layer = model.layers[0]
    assert layer.experts is not None
    made = format.experts(
        kernels_for(torch.device("cpu")), layer.experts.shape.routing, layer.experts.gate_up, layer.experts.down
    )
    held = sum(t.numel() * t.element_size() for t in made.tensors())
    hidden, inner = SHAPE["hidden_size"], MIXTURES["mixtral"].intermediate_size
    assert held == 4 * (format.expert_bytes(2 * inner, hidden, 2) + format.expert_bytes(hidden, inner, 2))
    x, logits = torch.randn(5, 64).bfloat16(), torch.randn(5, 4).bfloat16()
    assert made.parts(x, logits).shape == (2, 5, 64)


def test_experts_and_routers_are_among_the_weights_that_sleep_each_once() -> None:
    model = mixture("not normalised, a layer dense").to(torch.bfloat16)
    decoder = FusedDecoder(model, kernels_for(torch.device("cpu")), of_name("fp8"))
    assert [type(layer) for layer in decoder.layers] == [MixtureLayer, FusedLayer, MixtureLayer]
    weights = {id(tensor) for tensor in decoder.weights()}
    for layer in decoder.layers:
        if isinstance(layer, MixtureLayer):
            assert len(layer.experts.tensors()) == 4
            assert {id(t) for t in (*layer.experts.tensors(), *layer.router.tensors())} <= weights
    assert sum(p.numel() for p in model.layers.parameters()) < 5000  # norms and routers alone are left


@pytest.mark.parametrize("kept", ["re:.*experts.*", "model.layers.1.mlp.experts", "mlp.experts"])
def test_experts_that_the_checkpoint_keeps_stay_in_the_models_dtype(kept: str) -> None:
    model = mixture("qwen3-moe").to(torch.bfloat16)
    model.config = replace(model.config, stored_weights=StoredWeights(of_name("fp8"), (kept,)))
    decoder = FusedDecoder(model, kernels_for(torch.device("cpu")), of_name("fp8"))
    dtypes = [layer.experts.gate_up.dtype for layer in decoder.layers if isinstance(layer, MixtureLayer)]
    expected = torch.bfloat16
    others = torch.float8_e4m3fn if "layers.1" in kept else expected
    assert dtypes == [others, expected, others]


def test_what_a_large_step_costs_goes_by_the_experts_that_a_token_takes() -> None:
    decoder = FusedDecoder(mixture("qwen3-moe"), kernels_for(torch.device("cpu")))
    attention = 64 * (64 + 2 * 32) + 64 * 64
    assert decoder.layer_bytes == 4 * (attention + 12 * 64 + 4 * 3 * 64 * 48)
