"""Routing, blocks by expert and grouped products: the kernels against their twins and against the plain definition."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from backend.kernels.launching.launch import FP8, KernelArgumentError
from backend.kernels.linear.fp8_block import quantize_groups
from backend.kernels.linear.quant import quantize_rows
from backend.kernels.moe import blocks, products, reference, routing
from backend.kernels.moe.reference import blocks_needed
from backend.kernels.moe.rule import Routing

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
ROUTINGS = {
    "softmax, normalised (Qwen3-MoE, Mixtral)": (Routing(4), False),
    "softmax as it is": (Routing(2, normalised=False), False),
    "one expert": (Routing(1), False),
    "all experts": (Routing(24), False),
    "groups by their best (DeepSeek-V2)": (Routing(3, normalised=False, scale=16.0, groups=4, groups_taken=2), False),
    "sigmoid with a bias in groups (DeepSeek-V3)": (
        Routing(5, sigmoid=True, scale=2.5, groups=6, groups_taken=2),
        True,
    ),
    "sigmoid with a bias": (Routing(6, sigmoid=True), True),
}


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 9])
def test_routing_is_its_twin(name, tokens, dtype, device):
    how, biased = ROUTINGS[name]
    logits = torch.randn(tokens, 24, device=device).to(dtype) * 2
    bias = torch.rand(24, device=device) if biased else None
    (found, experts), (wanted, others) = routing.route(logits, how, bias), reference.route(logits, how, bias)
    assert torch.equal(experts, others)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    assert all(len(set(row)) == how.per_token for row in experts.tolist())


def test_routing_is_what_the_models_define(device):
    """Written out token by token, as the papers have it; no code of ours in it."""
    logits, bias = torch.randn(7, 24, device=device), torch.rand(24, device=device)
    how = Routing(5, sigmoid=True, scale=2.5, groups=6, groups_taken=2)
    weights, experts = routing.route(logits, how, bias)
    for token in range(7):
        score = [float(value) for value in logits[token].sigmoid()]
        wanted = [a + float(b) for a, b in zip(score, bias, strict=True)]
        of_group = {g: sum(sorted(wanted[4 * g : 4 * g + 4])[-2:]) for g in range(6)}
        best = sorted(of_group, key=lambda g: -of_group[g])[:2]
        allowed = [e for e in range(24) if e // 4 in best]
        taken = sorted(allowed, key=lambda e: -wanted[e])[:5]
        assert experts[token].tolist() == taken
        total = sum(score[e] for e in taken)
        assert weights[token].tolist() == pytest.approx([2.5 * score[e] / total for e in taken], rel=1e-5)


def test_of_equal_scores_the_first_expert_is_taken(device):
    for module in (routing, reference):
        weights, experts = module.route(torch.zeros(2, 10, device=device), Routing(3))
        assert experts.tolist() == [[0, 1, 2]] * 2
        assert weights.flatten().tolist() == pytest.approx([1 / 3] * 6)


def test_a_token_is_routed_alike_alone_and_among_others(dtype, device):
    logits = torch.randn(20, 24, device=device).to(dtype)
    together = routing.route(logits, Routing(4))
    alone = routing.route(logits[7:8].contiguous(), Routing(4))
    assert torch.equal(alone[0], together[0][7:8])
    assert torch.equal(alone[1], together[1][7:8])


def chosen_of(tokens, experts, per_token, device, *, crowded=False):
    """Different experts for each token; crowded: everyone takes the same."""
    scores = torch.rand(1 if crowded else tokens, experts, device=device)
    return scores.topk(per_token).indices.to(torch.int32).expand(tokens, per_token).contiguous()


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "crowded"),
    [(1, 12, 3, False), (5, 3, 2, False), (40, 12, 4, False), (40, 12, 4, True), (300, 24, 4, False), (3, 1, 1, True)],
)
def test_every_pair_has_one_slot_in_a_block_of_its_expert(tokens, experts, per_token, crowded, size, device):
    chosen = chosen_of(tokens, experts, per_token, device, crowded=crowded)
    pairs = tokens * per_token
    for module in (blocks, reference):
        found = module.blocks_by_expert(chosen, experts, size)
        assert len(found.experts) == blocks_needed(pairs, experts, size)
        assert len(found.slots) == len(found.experts) * size
        table = found.slots.view(-1, size)
        assert sorted(table[table >= 0].tolist()) == list(range(pairs))
        for owner, slots in zip(found.experts.tolist(), table.tolist(), strict=True):
            mine = [pair for pair in slots if pair >= 0]
            assert (owner < 0) == (not mine)
            assert all(int(chosen.flatten()[pair]) == owner for pair in mine)
            assert slots[: len(mine)] == mine  # those left over come last
            assert mine == sorted(mine)
        owners = [owner for owner in found.experts.tolist() if owner >= 0]
        assert owners == sorted(owners)
        full = [sum(pair >= 0 for pair in slots) for slots in table.tolist()]
        assert all(a == size for a, (o, p) in zip(full, pairwise(found.experts.tolist()), strict=False) if o == p >= 0)


def exact_mixture(x, gate_up, down, chosen, weights):
    """Token by token, in float64."""
    out = torch.zeros(len(x), down.shape[1], dtype=torch.float64, device=x.device)
    for token, (experts, factors) in enumerate(zip(chosen.tolist(), weights.double(), strict=True)):
        for expert, factor in zip(experts, factors, strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            out[token] += factor * (down[expert].double() @ (F.silu(gate) * up))
    return out


def mixture(module, x, gate_up, down, chosen, weights, size):
    per_token = chosen.shape[1]
    laid_out = (blocks if module is products else reference).blocks_by_expert(chosen, len(gate_up), size)
    inner = module.grouped_linear(x, gate_up, laid_out, per_token=per_token, gated=True)
    return module.grouped_linear(inner, down, laid_out, per_token=per_token, factors=weights, out_dtype=torch.float32)


@pytest.mark.parametrize("module", [products, reference], ids=["kernel", "twin"])
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "width", "inner", "size"),
    [(1, 6, 2, 48, 24, 16), (9, 5, 3, 64, 40, 8), (33, 4, 2, 32, 70, 32)],
)
def test_a_mixture_is_what_it_is_defined_to_be(module, tokens, experts, per_token, width, inner, size, dtype, device):
    x = torch.randn(tokens, width, device=device).to(dtype)
    gate_up = (torch.randn(experts, 2 * inner, width, device=device) / width**0.5).to(dtype)
    down = (torch.randn(experts, width, inner, device=device) / inner**0.5).to(dtype)
    chosen = chosen_of(tokens, experts, per_token, device)
    weights = torch.rand(tokens, per_token, device=device)
    parts = mixture(module, x, gate_up, down, chosen, weights, size)
    assert parts.shape == (per_token, tokens, width)
    exact = exact_mixture(x, gate_up, down, chosen, weights)
    assert error(parts.sum(0), exact) < BOUNDS[dtype]
    residual = torch.randn(tokens, width, device=device).to(dtype)
    assert error(module.combine(parts, residual), exact + residual.double()) < BOUNDS[dtype]


@pytest.mark.parametrize("tokens", [2, 20])
def test_fp8_by_rows_is_the_product_of_numbers_and_scales(tokens, device):
    experts, per_token, width, inner = 5, 2, 64, 96
    x, x_scale = quantize_rows(torch.randn(tokens, width, device=device))
    weight, scale = quantize_rows(torch.randn(experts * 2 * inner, width, device=device))
    weight, scale = weight.view(experts, 2 * inner, width), scale.view(experts, 2 * inner, 1)
    laid_out = blocks.blocks_by_expert(chosen := chosen_of(tokens, experts, per_token, device), experts, 16)
    for module in (products, reference):
        found = module.grouped_linear(x, weight, laid_out, per_token=per_token, gated=True, scales=(x_scale, scale))
        assert found.dtype == torch.bfloat16
        assert found.shape == (tokens * per_token, inner)
        rows = x.double() * x_scale.double()
        for pair, expert in enumerate(chosen.flatten().tolist()):
            gate, up = ((weight[expert].double() * scale[expert].double()) @ rows[pair // per_token]).chunk(2)
            assert error(found[pair], F.silu(gate) * up) < 2e-2
    assert x.dtype == FP8


@pytest.mark.parametrize(("tokens", "outputs", "span"), [(2, 128, 128), (20, 96, 32)])
@pytest.mark.parametrize("second", [False, True], ids=["gated", "with factors"])
def test_fp8_in_blocks_is_the_product_of_numbers_and_scales(tokens, outputs, span, second, device):
    experts, per_token, width = 3, 2, 256
    rows, both = (tokens * per_token, outputs) if second else (tokens, 2 * outputs)
    x, x_scale = quantize_groups(torch.randn(rows, width, device=device))
    weight = torch.randn(experts, both, width, device=device).to(FP8)
    scale = torch.rand(experts * both // span, width // 128, device=device) + 0.1
    exact_w = weight.double() * scale.double().repeat_interleave(span, 0).repeat_interleave(128, 1).view(weight.shape)
    exact_x = x.double() * x_scale.double().t().repeat_interleave(128, 1)
    laid_out = blocks.blocks_by_expert(chosen := chosen_of(tokens, experts, per_token, device), experts, 16)
    factors = torch.rand(tokens, per_token, device=device) if second else None
    for module in (products, reference):
        found = module.grouped_linear(
            x,
            weight,
            laid_out,
            per_token=per_token,
            gated=not second,
            scales=(x_scale, scale),
            span=span,
            factors=factors,
            out_dtype=torch.float32,
        )
        by_pair = found.transpose(0, 1).reshape(-1, outputs) if second else found
        for pair, expert in enumerate(chosen.flatten().tolist()):
            product = exact_w[expert] @ exact_x[pair if second else pair // per_token]
            if not second:
                gate, up = product.chunk(2)
                product = F.silu(gate) * up
            else:
                product = product * factors.flatten()[pair].double()
            assert error(by_pair[pair], product) < 5e-3


def test_blocks_that_leave_something_over_are_refused(device):
    x, x_scale = quantize_groups(torch.randn(2, 128, device=device))
    laid_out = blocks.blocks_by_expert(chosen_of(2, 3, 1, device), 3, 16)
    weight, scale = torch.zeros(3, 100, 128, device=device).to(FP8), torch.ones(3, 1, device=device)
    with pytest.raises(KernelArgumentError, match="blocks of 64 × 128 leave something over"):
        products.grouped_linear(x, weight, laid_out, per_token=1, scales=(x_scale, scale), span=64)
    with pytest.raises(KernelArgumentError, match="a scale a row of x and of a weight"):
        products.grouped_linear(x, weight, laid_out, per_token=1, scales=(x_scale, scale), span=50)


def test_a_token_has_the_same_bits_alone_and_anywhere_among_others(dtype, device):
    experts, per_token, width, inner = 6, 3, 48, 32
    x = torch.randn(40, width, device=device).to(dtype)
    gate_up = torch.randn(experts, 2 * inner, width, device=device).to(dtype) / 8
    down = torch.randn(experts, width, inner, device=device).to(dtype) / 8
    chosen, weights = chosen_of(40, experts, per_token, device), torch.rand(40, per_token, device=device)
    size = products.block_size(120, experts, batch_invariant=True)
    assert size == products.block_size(3, experts, batch_invariant=True)
    residual = torch.randn(40, width, device=device).to(dtype)
    together = products.combine(mixture(products, x, gate_up, down, chosen, weights, size), residual)
    for first, last in ((0, 1), (17, 20)):
        mine = slice(first, last)
        alone = mixture(products, x[mine], gate_up, down, chosen[mine].contiguous(), weights[mine].contiguous(), size)
        assert torch.equal(products.combine(alone, residual[mine].contiguous()), together[mine])


def test_a_token_that_is_no_number_leaves_the_others_alone(device):
    x = torch.randn(10, 32, device=device)
    gate_up, down = torch.randn(4, 32, 32, device=device), torch.randn(4, 32, 16, device=device)
    chosen, weights = chosen_of(10, 4, 2, device), torch.rand(10, 2, device=device)
    whole = mixture(products, x, gate_up, down, chosen, weights, 8)
    x[4] = float("nan")
    again = mixture(products, x, gate_up, down, chosen, weights, 8)
    others = torch.arange(10, device=device) != 4
    assert again[:, 4].isnan().all()
    assert torch.equal(again[:, others], whole[:, others])


def test_no_tokens_are_no_work(device):
    logits = torch.empty(0, 6, device=device)
    weights, chosen = routing.route(logits, Routing(2))
    laid_out = blocks.blocks_by_expert(chosen, 6, 16)
    x, gate_up = torch.empty(0, 32, device=device), torch.randn(6, 64, 32, device=device)
    inner = products.grouped_linear(x, gate_up, laid_out, per_token=2, gated=True)
    assert inner.shape == (0, 32)
    down = torch.randn(6, 32, 32, device=device)
    parts = products.grouped_linear(inner, down, laid_out, per_token=2, factors=weights)
    assert products.combine(parts, x).shape == (0, 32)


def test_what_does_not_fit_is_refused(device):
    logits = torch.randn(3, 12, device=device)
    for how, message in (
        (Routing(13), "13 of 12 experts"), (Routing(2, groups=5), "12 experts in 5 groups"),
        (Routing(5, groups=4, groups_taken=1), "5 experts of 3 in the groups"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=message):
            routing.route(logits, how)
    with pytest.raises(KernelArgumentError, match=r"a bias is float32 \[12\]"):
        routing.route(logits, Routing(2), torch.zeros(3, device=device))
    with pytest.raises(KernelArgumentError, match="experts are int32"):
        blocks.blocks_by_expert(torch.zeros(3, 2, device=device), 12, 16)
    x, weight = torch.randn(3, 32, device=device), torch.randn(4, 16, 32, device=device)
    laid_out = blocks.blocks_by_expert(chosen_of(3, 4, 2, device), 4, 16)
    for arguments, message in (
        ((x[:, :16].contiguous(), weight), "16 wide; the weights are not"),
        ((x, weight.half()), "the weights are not"),
        ((x, weight[0]), r"weights are \[experts, outputs, width\]"),
        ((x, weight[:, :15].contiguous()), "as many rows of up as of gate"),
    ):
        with pytest.raises(KernelArgumentError, match=message):
            products.grouped_linear(*arguments, laid_out, per_token=2, gated=True)
    with pytest.raises(KernelArgumentError, match="FP8 comes with scales"):
        products.grouped_linear(x, weight, laid_out, per_token=2, scales=(x, x))
    with pytest.raises(KernelArgumentError, match="factors are of 3 pairs"):
        products.grouped_linear(x, weight, laid_out, per_token=2, factors=torch.ones(3, 2, device=device))
    with pytest.raises(KernelArgumentError, match="do not add to"):
        products.combine(torch.zeros(2, 3, 16, device=device), x)


def test_blocks_are_as_large_as_what_an_expert_gets():
    assert [products.block_size(pairs, 128) for pairs in (8, 1024, 4096, 8192, 65536)] == [16, 16, 32, 64, 128]
