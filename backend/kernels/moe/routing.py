# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Experts of each token and their weights, in one kernel (Shazeer et al. 2017; DeepSeek-AI 2024, V3, 2.1.2).

A program handles one token: it keeps the scores of all experts in registers and selects the largest `per_token` times.
Of equal scores the expert with the lower number is selected, so a token's experts do not depend on other tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.moe.reference import require_routing
from backend.kernels.moe.rule import Routing


@triton.jit
def _first_largest(values, index, SIZE: tl.constexpr):
    """Return (largest value, lowest index with that value)."""
    largest = tl.max(values, 0)
    return largest, tl.min(tl.where(values == largest, index, SIZE), 0)


@triton.jit
def _group_scores(scores, group, GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr, BEST: tl.constexpr):
    """Return the sum of the BEST largest scores of each group, [GROUP_BLOCK]. scores, group: [BLOCK]."""
    names = tl.arange(0, GROUP_BLOCK)
    table = tl.where(group[None, :] == names[:, None], scores[None, :], float("-inf"))
    total = tl.max(table, 1)
    if BEST == 2:
        lane = tl.arange(0, table.shape[1])
        at = tl.min(tl.where(table == total[:, None], lane[None, :], table.shape[1]), 1)
        total += tl.max(tl.where(lane[None, :] == at[:, None], float("-inf"), table), 1)
    return tl.where(names < GROUPS, total, float("-inf"))


@triton.jit
def _route(
    logit_ptr, bias_ptr, weight_ptr, chosen_ptr, experts, factor,
    PER_TOKEN: tl.constexpr, SIGMOID: tl.constexpr, NORMALISED: tl.constexpr, BIAS: tl.constexpr,
    GROUPS: tl.constexpr, GROUPS_TAKEN: tl.constexpr, BEST: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, PLACES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < experts
    logits = tl.load(logit_ptr + token * experts + expert, inside, float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        shifted = tl.exp(logits - tl.max(logits, 0))
        scores = shifted / tl.sum(shifted, 0)
    wanted = scores
    if BIAS:
        wanted = scores + tl.load(bias_ptr + expert, inside, 0.0)
    wanted = tl.where(inside, wanted, float("-inf"))
    if GROUPS > 1:
        group = expert // (experts // GROUPS)
        found = _group_scores(wanted, group, GROUPS, GROUP_BLOCK, BEST)
        names = tl.arange(0, GROUP_BLOCK)
        allowed = tl.zeros([BLOCK], tl.int32)
        for _ in tl.static_range(GROUPS_TAKEN):
            _, best = _first_largest(found, names, GROUP_BLOCK)
            allowed = tl.where(group == best, 1, allowed)
            found = tl.where(names == best, float("-inf"), found)
        wanted = tl.where(allowed == 1, wanted, float("-inf"))
    place = tl.arange(0, PLACES)
    weights = tl.zeros([PLACES], tl.float32)
    chosen = tl.zeros([PLACES], tl.int32)
    for i in tl.static_range(PER_TOKEN):
        _, best = _first_largest(wanted, expert, BLOCK)
        weights = tl.where(place == i, tl.sum(tl.where(expert == best, scores, 0.0), 0), weights)
        chosen = tl.where(place == i, best, chosen)
        wanted = tl.where(expert == best, float("-inf"), wanted)
    if NORMALISED:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    at = token * PER_TOKEN + place
    tl.store(weight_ptr + at, weights * factor, place < PER_TOKEN)
    tl.store(chosen_ptr + at, chosen, place < PER_TOKEN)


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Select the experts of each token.

    Args:
        logits: [tokens, experts], contiguous, float16/bfloat16/float32; finite.
        routing: see `rule.Routing`.
        bias: float32 [experts], added to the scores for the selection but not for the weights (V3).
    Returns:
        (weights float32, experts int32), both [tokens, per_token], the best first.
    Raises:
        KernelArgumentError: shapes do not fit.
    """
    tokens, experts = require_routing(logits, routing, bias)
    weights = logits.new_empty(tokens, routing.per_token, dtype=torch.float32)
    chosen = logits.new_empty(tokens, routing.per_token, dtype=torch.int32)
    if tokens:
        block = triton.next_power_of_2(experts)
        best = 1 if bias is None or experts == routing.groups else 2
        _route[(tokens,)](
            logits, bias, weights, chosen, experts, routing.scale, PER_TOKEN=routing.per_token,
            SIGMOID=routing.sigmoid, NORMALISED=routing.normalised, BIAS=bias is not None, GROUPS=routing.groups,
            GROUPS_TAKEN=routing.groups_taken, BEST=best, GROUP_BLOCK=triton.next_power_of_2(routing.groups),
            BLOCK=block, PLACES=triton.next_power_of_2(routing.per_token),
            num_warps=4 if routing.groups > 1 and block >= 128 else 1, **chained(),
        )  # fmt: skip
    return weights, chosen
