"""Torch twins of `routing`, `blocks` and `products`, and the definition of blocks.

A pair is a token and one of its experts; its number is ``token * per_token + place``. Pairs are sorted into blocks of
`size` slots, each for one expert, so that a program multiplies a block by one expert's weight; unused slots hold -1.
The number of blocks follows from the numbers of pairs and experts and not from the routing: shapes are constant, and a
step can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.launching.launch import require
from backend.kernels.moe.rule import Routing

MOST_EXPERTS = 512
GROUP = 128  # columns per scale
SIZES: tuple[int, ...] = (16, 32, 64, 128)  # block sizes
INVARIANT_SIZE = 32


@dataclass(frozen=True, slots=True)
class Blocks:
    """slots: int32 [blocks * size], pairs or -1. experts: int32 [blocks], -1 for a block without pairs."""

    slots: Tensor
    experts: Tensor
    size: int


def require_routing(logits: Tensor, routing: Routing, bias: Tensor | None) -> tuple[int, int]:
    """Return (tokens, experts). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    require(logits.dim() == 2 and logits.is_contiguous(), f"logits must be contiguous, got {tuple(logits.shape)}")
    tokens, experts = logits.shape
    require(experts <= MOST_EXPERTS, f"{experts} experts; {MOST_EXPERTS} at most")
    require(0 < routing.per_token <= experts, f"{routing.per_token} of {experts} experts")
    divides = routing.groups > 0 and experts % routing.groups == 0
    require(divides and 0 < routing.groups_taken <= routing.groups, f"{experts} experts in {routing.groups} groups")
    within = experts // routing.groups * routing.groups_taken
    require(routing.per_token <= within, f"{routing.per_token} experts of {within} in the groups that are taken")
    fits = bias is None or (bias.shape == (experts,) and bias.dtype == torch.float32)
    require(fits, f"a bias is float32 [{experts}]")
    return tokens, experts


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `routing.route`."""
    tokens, experts = require_routing(logits, routing, bias)
    scores = logits.float().sigmoid() if routing.sigmoid else logits.float().softmax(-1)
    chosen_by = scores if bias is None else scores + bias
    if routing.groups > 1:
        grouped = chosen_by.view(tokens, routing.groups, -1)
        best = 1 if bias is None else min(2, grouped.shape[-1])
        taken = _largest(grouped.topk(best, -1).values.sum(-1), routing.groups_taken)
        allowed = torch.zeros(tokens, routing.groups, dtype=torch.bool, device=logits.device).scatter_(1, taken, True)
        chosen_by = grouped.masked_fill(~allowed[:, :, None], float("-inf")).view(tokens, experts)
    chosen = _largest(chosen_by, routing.per_token)
    weights = scores.gather(1, chosen)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * routing.scale, chosen.to(torch.int32)


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the columns of the `count` largest values of each row; of equal values the first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def blocks_needed(pairs: int, experts: int, size: int) -> int:
    """Return a number of blocks that suffices for every routing: each expert has at most one partly filled block."""
    return pairs // size + min(pairs, experts)


def block_size(pairs: int, experts: int, *, batch_invariant: bool = False) -> int:
    """Return the slots of a block: the average number of pairs per expert, rounded down to a supported size.

    Not yet timed. batch_invariant: one size for every number of pairs.
    """
    if batch_invariant:
        return INVARIANT_SIZE
    return max((size for size in SIZES if size * experts <= pairs), default=SIZES[0])


def blocks_by_expert(chosen: Tensor, experts: int, size: int) -> Blocks:
    """See `blocks.blocks_by_expert`. The host does not wait for the device, and no shape depends on `chosen`."""
    pairs, device = chosen.numel(), chosen.device
    blocks = blocks_needed(pairs, experts, size)
    slots = torch.full((blocks * size,), -1, dtype=torch.int32, device=device)
    mine, order = chosen.flatten().sort(stable=True)
    begin = torch.searchsorted(mine, torch.arange(experts + 1, dtype=mine.dtype, device=device))
    filled = torch.div(begin.diff() + size - 1, size, rounding_mode="floor")
    ends = filled.cumsum(0)
    place = torch.arange(pairs, device=device) - begin[mine] + (ends - filled)[mine] * size
    slots[place] = order.to(torch.int32)
    owner = torch.searchsorted(ends, torch.arange(blocks, device=device), right=True)
    return Blocks(slots, torch.where(owner < experts, owner, -1).to(torch.int32), size)


def clamped_gate(gate_up: Tensor, limit: float, slope: float) -> Tensor:
    """gpt-oss's gate: ``g * sigmoid(slope * g) * (u + 1)``, with g at most `limit` and u between -limit and limit.

    gate_up: [rows, 2 * inner], gate and up columns interleaved. Returns [rows, inner].
    """
    gate, up = gate_up[:, ::2].clamp(max=limit), gate_up[:, 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(gate * slope) * (up + 1)


def grouped_linear(
    x: Tensor,
    weight: Tensor,
    blocks: Blocks,
    *,
    per_token: int,
    gated: bool = False,
    scales: tuple[Tensor, Tensor] | None = None,
    span: int = 0,
    factors: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """See `products.grouped_linear`."""
    pairs, outputs = require_grouped(x, weight, blocks, per_token, gated, scales, span, factors)
    own = factors is not None
    y = torch.zeros(pairs, outputs, dtype=torch.float32, device=x.device)
    values, by_row = x.float(), None
    if scales is not None and span:
        values = values * scales[0].t().repeat_interleave(GROUP, 1)
        by_row = scales[1].repeat_interleave(span, 0).repeat_interleave(GROUP, 1).view(weight.shape)
    elif scales is not None:
        values, by_row = values * scales[0], scales[1]
    for block, expert in enumerate(blocks.experts.tolist()):
        if expert < 0:
            continue
        slots = blocks.slots[block * blocks.size : (block + 1) * blocks.size].long()
        slots = slots[slots >= 0]
        matrix = weight[expert].float() if by_row is None else weight[expert].float() * by_row[expert]
        product = F.linear(values[slots if own else slots // per_token], matrix)
        if gated:
            gate, up = product.chunk(2, -1)
            product = F.silu(gate) * up
        y[slots] = product if factors is None else product * factors.flatten()[slots, None]
    if factors is not None:
        y = y.view(-1, per_token, outputs).transpose(0, 1).contiguous()
    wide = torch.bfloat16 if scales is not None else x.dtype
    return y.to(out_dtype or wide)


def combine(parts: Tensor, residual: Tensor) -> Tensor:
    """See `products.combine`."""
    total = residual.float()
    for part in parts:
        total = total + part.float()
    return total.to(residual.dtype)


def require_grouped(
    x: Tensor,
    weight: Tensor,
    blocks: Blocks,
    per_token: int,
    gated: bool,
    scales: tuple[Tensor, Tensor] | None,
    span: int,
    factors: Tensor | None,
) -> tuple[int, int]:
    """Return (pairs, outputs). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    require(x.dim() == 2 and x.is_contiguous(), f"x must be a contiguous matrix, got shape {tuple(x.shape)}")
    require(weight.dim() == 3 and weight.is_contiguous(), "weights are [experts, outputs, width], contiguous")
    rows, width = x.shape
    experts, weight_rows, columns = weight.shape
    require(width == columns and weight.dtype == x.dtype, f"x is {x.dtype}, {width} wide; the weights are not")
    require(len(blocks.slots) == len(blocks.experts) * blocks.size, "blocks have as many slots as they say")
    require(not gated or weight_rows % 2 == 0, f"a gated weight has as many rows of up as of gate, not {weight_rows}")
    require((scales is not None) == (x.dtype == torch.float8_e4m3fn), "FP8 comes with scales, and nothing else does")
    if scales is not None:
        shapes: tuple[tuple[int, ...], tuple[int, ...]] = (rows, 1), (experts, weight_rows, 1)
        if span:
            require(width % GROUP == 0 and weight_rows % span == 0, f"blocks of {span} × {GROUP} leave something over")
            shapes = (width // GROUP, rows), (experts * weight_rows // span, width // GROUP)
        fits = (scales[0].shape, scales[1].shape) == shapes
        require(fits and scales[0].is_contiguous() and scales[1].is_contiguous(), "a scale a row of x and of a weight")
    pairs = rows * per_token if factors is None else rows
    require(factors is None or (factors.numel() == rows and rows % per_token == 0), f"factors are of {rows} pairs")
    return pairs, weight_rows // 2 if gated else weight_rows
