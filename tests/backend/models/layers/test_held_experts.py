"""Experts held as wholes: each pair of a token and an expert is one rank's to compute, and copies are as originals."""

from typing import Any

import torch
from torch import Tensor

from backend.models.families import mixtral
from backend.models.families.family import Experts
from backend.models.layers.experts import ExpertLayer
from backend.models.layers.held_experts import HeldExperts
from backend.parallel.expert_placement import Placement
from backend.parallel.group import DistributedGroup, ParallelGroup
from backend.parallel.shard import Shard
from tests.backend.parallel.crew import Crews

EXPERTS, PER_TOKEN, WIDTH, INNER = 6, 2, 24, 16


def test_of_all_ranks_one_computes_a_pair_and_holders_take_turns() -> None:
    placement = Placement.even(EXPERTS, 3, 2)
    chosen = torch.stack([torch.randperm(EXPERTS)[:PER_TOKEN] for _ in range(60)])
    ranks = [
        HeldExperts(placement, DistributedGroup(Shard(rank, 3), torch.device("cpu")), EXPERTS, torch.device("cpu"))
        for rank in range(3)
    ]
    slots = torch.stack([held.local(chosen) for held in ranks])
    assert torch.equal((slots >= 0).sum(0), torch.ones_like(chosen))
    for held, own in zip(ranks, slots, strict=True):
        mine = own >= 0
        assert torch.equal(torch.tensor(held.own)[own[mine].long()], chosen[mine])
        assert 0.15 < mine.float().mean() < 0.55
        assert held.counts.sum() == chosen.numel()
        assert torch.equal(held.counts, torch.bincount(chosen.flatten(), minlength=EXPERTS))


def layer_of(group: ParallelGroup, spare: int) -> ExpertLayer:
    """A rank's share of one and the same layer."""
    shape = Experts(EXPERTS, PER_TOKEN, INNER, mixtral.NAMES, placement=Placement.even(EXPERTS, group.size, spare))
    layer = ExpertLayer(shape, WIDTH, torch.float32, torch.device("cpu"), group=group)
    source = torch.Generator().manual_seed(3)
    whole = [torch.randn(EXPERTS, *shape, generator=source) for shape in ((2 * INNER, WIDTH), (WIDTH, INNER))]
    layer.router.data = torch.randn(EXPERTS, WIDTH, generator=source)
    own = list(layer.experts)
    layer.gate_up.data, layer.down.data = whole[0][own].clone(), whole[1][own].clone()
    return layer


def rebalanced(group: ParallelGroup, x: Tensor) -> dict[str, Any]:
    layer = layer_of(group, 1)
    held = layer.held
    assert held is not None
    before, first = held.own, layer(x)
    moved = [layer.rebalance(len(x) * PER_TOKEN + 1), layer.rebalance(1), layer.rebalance(1)]
    fresh = layer_of(group, 1)
    fresh_weights = {e: fresh.gate_up[slot] for slot, e in enumerate(before)}
    kept = all(
        torch.equal(layer.gate_up[slot], fresh_weights[e]) for slot, e in enumerate(held.own) if e in fresh_weights
    )
    return {
        "first": first, "second": layer(x), "moved": moved, "slots": held.placement.slots, "kept": kept,
        "own": {e: layer.gate_up[slot].clone() for slot, e in enumerate(held.own)}, "loads": held.rank_loads(),
    }  # fmt: skip


def test_copies_of_hot_experts_move_on_all_ranks_at_once_and_change_no_answer(crews: Crews) -> None:
    torch.manual_seed(5)
    x = torch.randn(40, WIDTH)
    # Most tokens take expert 0, and the others are about as many tokens' second choice
    x += 0.3 * layer_of(DistributedGroup(Shard(0, 4), torch.device("cpu")), 0).router.data[0]
    found = crews[4].run(rebalanced, x)
    assert all(rank["moved"] == [False, True, False] for rank in found)
    assert len({str(rank["slots"]) for rank in found}) == 1
    assert sum(0 in held for held in found[0]["slots"]) >= 3
    weights: dict[int, Tensor] = {}
    for rank in found:
        assert rank["kept"] and rank["loads"] == found[0]["loads"]
        assert torch.allclose(rank["second"], rank["first"], atol=1e-3)
        assert torch.equal(rank["second"], found[0]["second"])
        for expert, weight in rank["own"].items():
            assert torch.equal(weights.setdefault(expert, weight), weight)
